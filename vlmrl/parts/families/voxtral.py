"""Voxtral: Whisper's encoder over chunks of 30 seconds before a Llama; 12.5 tokens per second of audio.

Source: Liu et al. 2025, "Voxtral", arXiv:2507.13264. A published folder has Mistral's `tekken.json` in place
of a tokenizer and a chat template: transformers reads the first, the second is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models import media_features
from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR
from vlmrl.models.media_features import check_audios, stand_alone
from vlmrl.parts.families.mistral3 import TURNS, write_template
from vlmrl.parts.families.qwen2_audio import Qwen2Audio, config_fields, fit_extractor
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import Format
from vlmrl.schema import Encoded
from vlmrl.schema.media import Audio, Decoded

AUDIO, BEGIN = "[AUDIO]", "[BEGIN_AUDIO]"
FRAMES_PER_TOKEN = 8
"""Mel frames of 10 ms: the encoder halves them, and the projector takes four positions at a time."""
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CHAT_TEMPLATE = write_template("audio", BEGIN + AUDIO, between="{{ '\\n\\n' }}")


@dataclass(frozen=True)
class Voxtral(Qwen2Audio):
    """The family of checkpoints of model type `voxtral`: audio of any length and text.

    `input_features` is float32 [chunks, mel, frames]: each audio is filled up with silence to whole chunks,
    which the encoder hears one by one.
    """

    model_types: ClassVar[tuple[str, ...]] = ("voxtral",)
    media_tokens: ClassVar[tuple[str, ...]] = (AUDIO, BEGIN)
    turn_ends: ClassVar[tuple[str, ...]] = ("</s>",)
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "audio": ENCODER_LINEAR,
        "projector": ("linear_1", "linear_2"),
        "language": LANGUAGE_LINEAR,
    }
    one_call: ClassVar[bool] = False  # it renders conversations itself, by mistral-common
    unserved: ClassVar[str] = (
        "vLLM 0.32 reads Voxtral in Mistral's own format alone (params.json, tekken.json)"
    )

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """Build a small model of this architecture, see `Family.build`; a chunk is two seconds of audio."""
        chat = Format(
            special=(*SPECIALS.values(), *TURNS, *self.media_tokens),
            roles=(),
            end="</s>",
            pad="<pad>",
            start="<s>",
        )
        name = "VoxtralForConditionalGeneration"
        model, tokenizer = builder.build(
            name, lambda t: _config(build, t), build, corpus, seed, chat
        )
        processor = transformers.VoxtralProcessor(fit_extractor(model), tokenizer)
        self.adopt(processor, model.config)
        return model, processor

    # ------------------------------------------------------------------------------- prompts

    def adopt(self, processor: Any, config: Any) -> None:
        """Give the processor the template and the special tokens that a published folder does not name."""
        tokenizer = processor.tokenizer
        processor.audio_token_id = config.audio_token_id
        processor.audio_token = tokenizer.convert_ids_to_tokens(config.audio_token_id)
        for name, token in SPECIALS.items():
            if getattr(tokenizer, name) is None:
                setattr(tokenizer, name, token)
        processor.chat_template = processor.chat_template or CHAT_TEMPLATE

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Encode a prompt as ids and mel features, equal to those of the HF processor; positions [1, T].

        Raises:
            UserError: The placeholders do not match the audios.
        """
        audios = [m for m in media if isinstance(m, Audio)]
        placeholder = processor.audio_token_id
        compact = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        if (places := compact.count(placeholder)) != len(media) or len(audios) != len(media):
            raise UserError(f"the prompt has {places} audio placeholders for {len(audios)} audios")
        chunks = _make_chunks(processor.feature_extractor, audios)
        lengths = iter(len(c) * c.shape[-1] // FRAMES_PER_TOKEN for c in chunks)
        ids: list[int] = []
        for token in compact:
            ids += [token] * (next(lengths) if token == placeholder else 1)
        tensors = {"input_features": torch.cat(chunks)} if chunks else {}
        positions = torch.arange(len(ids))[None]
        return Encoded(tuple(ids), tuple(compact), tensors, positions, len(ids))

    # ------------------------------------------------------------------------------- forward

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> media_features.ByPrompt | None:
        """Compute the features [tokens, H] of the audio of each prompt, with gradient."""
        seen = [p.tensors["input_features"] for p in prompts if p.tensors]
        if not seen:
            return None
        mels = torch.cat(seen).to(model.device)
        features = model.model.get_audio_features(mels, return_dict=True).pooler_output
        return media_features.split_by_prompt(features, prompts, model.config.audio_token_id)

    def media_of(self, model: Any, prompt: Encoded) -> list[Encoded]:
        """Return the chunks of a prompt's audio, each as a prompt that shows nothing else."""
        chunks = prompt.tensors["input_features"].split(1) if prompt.tensors else ()
        token = model.config.audio_token_id
        return [
            stand_alone(token, {"input_features": c}, c.shape[-1] // FRAMES_PER_TOKEN)
            for c in chunks
        ]


def _make_chunks(extractor: Any, audios: Sequence[Audio]) -> list[torch.Tensor]:
    """Make the mel features [chunks, mel, frames] of each audio; UserError at another sampling rate."""
    check_audios(audios, extractor.sampling_rate)
    made = (
        extractor(
            audio.samples,
            sampling_rate=extractor.sampling_rate,
            padding=True,
            truncation=False,
            pad_to_multiple_of=extractor.n_samples,
            return_tensors="pt",
        )["input_features"][0]
        for audio in audios
    )
    return [torch.stack(mel.split(extractor.nb_max_frames, -1)) for mel in made]


def _config(build: BuildConfig, tokenizer: Any) -> Any:
    encoder: Any = transformers.VoxtralEncoderConfig
    # Whisper's names, as in published configs; `attribute_map` leads them to transformers' own.
    known = {*encoder.__annotations__} - {*encoder.attribute_map.values()} | {
        *encoder.attribute_map
    }
    text, audio = config_fields(build, tokenizer, transformers.LlamaConfig, known)
    if "encoder_ffn_dim" not in build.audio:
        audio["encoder_ffn_dim"] = 4 * audio["d_model"]
    width, wide, positions = (
        audio[k] for k in ("d_model", "encoder_ffn_dim", "max_source_positions")
    )
    if wide != 4 * width or positions % 4:
        raise UserError(
            "model.build.audio: four positions become one token: expected encoder_ffn_dim = 4 * d_model and "
            f"max_source_positions a multiple of 4, got {wide!r}, {width!r} and {positions!r}"
        )
    return transformers.VoxtralConfig(
        text_config={**text, "model_type": "llama"},
        audio_config={**audio, "model_type": "voxtral_encoder"},
        audio_token_id=tokenizer.convert_tokens_to_ids(AUDIO),
    )
