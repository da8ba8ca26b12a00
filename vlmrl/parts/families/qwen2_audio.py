"""Qwen2-Audio: a Whisper-like encoder before a Qwen2 language model; 25 tokens per second of audio.

Source: Chu et al. 2024, "Qwen2-Audio Technical Report", arXiv:2407.10759.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.whisper.modeling_whisper import sinusoids

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models import media_features
from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR, Family
from vlmrl.models.chat import CHATML_ENDS, chatml
from vlmrl.models.media_features import count_audio_tokens, make_mel_features, stand_alone
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import Format
from vlmrl.schema import Encoded, Frame, MediaKind, Space
from vlmrl.schema.media import Audio, Decoded

AUDIO = "<|AUDIO|>"
MEDIA_TOKENS = (AUDIO, "<|audio_bos|>", "<|audio_eos|>")
POSITIONS_PER_SECOND = 50
"""Positions of the encoder per second; two of them become one token."""

CHAT_TEMPLATE = chatml(audio="<|audio_bos|><|AUDIO|><|audio_eos|>")


@dataclass(frozen=True)
class Qwen2Audio(Family):
    """The family of checkpoints of model type `qwen2_audio`: audio and text.

    `input_features` is float32 [audios, mel, frames], padded to the length of the encoder;
    `feature_attention_mask`, int64 [audios, frames], marks the frames that are not padding.
    """

    model_types: ClassVar[tuple[str, ...]] = ("qwen2_audio",)
    kinds: ClassVar[tuple[MediaKind, ...]] = ("audio",)
    space: ClassVar[Space] = "norm1000"
    media_tokens: ClassVar[tuple[str, ...]] = MEDIA_TOKENS
    turn_ends: ClassVar[tuple[str, ...]] = CHATML_ENDS
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "audio": ("model.audio_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "audio": ENCODER_LINEAR,
        "projector": ("linear",),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.audio_tower.layers",
    )
    shared: ClassVar[bool] = True
    media_token_id: ClassVar[str] = "audio_token_id"
    # transformers writes wrong names for this model (5.19: `language_model.model.model`); vLLM refuses them.
    saves_exports: ClassVar[bool] = True

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """Build a small model of this architecture, see `Family.build`; it takes two seconds of audio.

        For other lengths set `model.build.audio: {max_source_positions: ...}`, 50 per second.
        """
        chat = Format(special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *MEDIA_TOKENS))
        name = "Qwen2AudioForConditionalGeneration"
        model, tokenizer = builder.build(
            name, lambda t: _config(build, t), build, corpus, seed, chat
        )
        extractor = fit_extractor(model)
        return model, transformers.Qwen2AudioProcessor(
            feature_extractor=extractor, tokenizer=tokenizer, chat_template=CHAT_TEMPLATE
        )

    # ------------------------------------------------------------------------------- prompts

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Encode a prompt as ids and mel features, equal to those of the HF processor; positions [1, T].

        Raises:
            UserError: The placeholders do not match the audios, or an audio is too long.
        """
        audios = [m for m in media if isinstance(m, Audio)]
        placeholder = processor.audio_token_id
        compact = processor.tokenizer(text)["input_ids"]
        if (places := compact.count(placeholder)) != len(media) or len(audios) != len(media):
            raise UserError(f"the prompt has {places} audio placeholders for {len(audios)} audios")
        tensors = make_mel_features(processor.feature_extractor, audios, whole=True)
        lengths = iter(count_audio_tokens(tensors["feature_attention_mask"]) if audios else ())
        ids: list[int] = []
        for token in compact:
            ids += [token] * (next(lengths) if token == placeholder else 1)
        positions = torch.arange(len(ids))[None]
        return Encoded(tuple(ids), tuple(compact), tensors, positions, len(ids))

    def frame(self, processor: object, medium: Decoded | None) -> Frame:
        seconds = medium.duration if isinstance(medium, Audio) else None
        return Frame(space=self.space, duration=seconds)

    # ------------------------------------------------------------------------------- forward

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> media_features.ByPrompt | None:
        """Compute the features [tokens, H] of the audio of each prompt, with gradient."""
        seen = [p.tensors for p in prompts if p.tensors]
        if not seen:
            return None
        tower, device = model.model.audio_tower, model.device
        mels = torch.cat([t["input_features"] for t in seen]).to(device)
        mask = torch.cat([t["feature_attention_mask"] for t in seen]).to(device)
        heard = (mask.sum(-1) - 1) // 2 + 1  # after the encoder's convolution of stride 2
        length = mels.shape[-1] // 2
        attend = create_bidirectional_mask(
            config=tower.config,
            inputs_embeds=mels.new_empty(len(mels), length, 1),
            attention_mask=(torch.arange(length, device=device) < heard[:, None]).long(),
        )
        hidden = tower(mels, attention_mask=attend).last_hidden_state
        features = model.model.multi_modal_projector(hidden)
        real = [row[:n] for row, n in zip(features, count_audio_tokens(mask), strict=True)]
        return media_features.split_by_prompt(torch.cat(real), prompts, model.config.audio_token_id)

    def media_of(self, model: Any, prompt: Encoded) -> list[Encoded]:
        if not prompt.tensors:
            return []
        lengths = count_audio_tokens(prompt.tensors["feature_attention_mask"])
        cut = ({n: t[i : i + 1] for n, t in prompt.tensors.items()} for i in range(len(lengths)))
        pairs = zip(cut, lengths, strict=True)
        return [stand_alone(model.config.audio_token_id, clip, length) for clip, length in pairs]

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rename the weights as in published checkpoints, from before transformers 5; vLLM expects them."""
        return {_published_name(name): value for name, value in named.items()}


def fit_extractor(model: Any) -> Any:
    """Return the mel extractor of a small model's encoder, whose positions become Whisper's own."""
    places = model.model.audio_tower.embed_positions.weight
    places.data = sinusoids(*places.shape)  # a fixed table that a checkpoint would contain
    audio = model.config.audio_config
    return transformers.WhisperFeatureExtractor(
        feature_size=audio.num_mel_bins,
        chunk_length=audio.max_source_positions // POSITIONS_PER_SECOND,
        return_attention_mask=True,
    )


def _published_name(name: str) -> str:
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    name = name.removeprefix("model.")
    inner = "language_model."
    return f"{inner}model.{name[len(inner) :]}" if name.startswith(inner) else name


def _config(build: BuildConfig, tokenizer: Any) -> Any:
    text, audio = config_fields(
        build,
        tokenizer,
        transformers.Qwen2Config,
        {*transformers.Qwen2AudioEncoderConfig.__annotations__},
    )
    return transformers.Qwen2AudioConfig(
        text_config={**text, "model_type": "qwen2"},
        audio_config=audio,
        audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO),
    )


def config_fields(
    build: BuildConfig, tokenizer: Any, text_class: type, audio_fields: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of both configs of a small model with an encoder like Whisper's; UserError if bad."""
    fixed = builder.token_fields(tokenizer, build)
    # It does not tie its head.
    text_fields = {*text_class.__annotations__} - {builder.TIED, *fixed} | {"vocab_size"}
    builder.check_fields(build, "text", build.text, text_fields)
    builder.check_fields(build, "audio", build.audio, audio_fields)
    builder.check_fields(build, "vision", build.vision, set())
    text, width = builder.text_fields(build, {"num_hidden_layers": 2})
    if "head_dim" in text_fields:
        text["head_dim"] = width
    audio = {**builder.AUDIO, "max_source_positions": 2 * POSITIONS_PER_SECOND, **build.audio}
    builder.head_dim("audio", "d_model", audio, "encoder_attention_heads", 1)
    positions = audio["max_source_positions"]
    if not isinstance(positions, int) or positions < 1 or positions % POSITIONS_PER_SECOND:
        raise UserError(
            f"model.build.audio: max_source_positions ({positions!r}) must be a multiple of "
            f"{POSITIONS_PER_SECOND} (one second)"
        )
    text.setdefault("rope_parameters", {**builder.ROPE})
    return {**text, **fixed}, audio
