"""Building small models of the thinkers of Qwen2.5-Omni and Qwen3-Omni."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import transformers

from vlmrl.config import BuildConfig
from vlmrl.models.chat import chatml
from vlmrl.parts.families.qwen2_5_vl import Qwen25Vl
from vlmrl.parts.families.qwen3_vl_moe import Qwen3VlMoe
from vlmrl.parts.families.small import builder, qwen_models
from vlmrl.parts.families.small.builder import Format


@dataclass(frozen=True, slots=True)
class SmallOmniModel:
    """A recipe of small thinkers: names of transformers classes, tokens, and default config fields."""

    stem: str
    """What the names of the model's classes begin with."""
    named: Mapping[str, str]
    """Attributes of the tokenizer -> its tokens."""
    id_name: str
    """How the config names the id of a kind of media: `{}_token_id`."""
    vision: Mapping[str, Any]
    audio: Mapping[str, Any] = field(default_factory=lambda: builder.AUDIO)
    text: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the whole thinker."""
    side_share: float = 24 / 64
    """The share of rotary frequencies that M-RoPE gives to rows, and the same share to columns."""
    interleaved: bool = False
    """Whether M-RoPE interleaves the frequencies of time, rows and columns; only vLLM reads it."""

    @property
    def model(self) -> str:
        """The name of the thinker's class."""
        return f"{self.stem}ThinkerForConditionalGeneration"


QWEN2_5 = SmallOmniModel(
    stem="Qwen2_5Omni",
    named={
        "audio_token": "<|AUDIO|>",
        "image_token": "<|IMAGE|>",
        "video_token": "<|VIDEO|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
    },
    id_name="{}_token_index",
    vision=Qwen25Vl.small.vision,
)
QWEN3 = SmallOmniModel(
    stem="Qwen3OmniMoe",
    named={
        "audio_token": "<|audio_pad|>",
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
    },
    id_name="{}_token_id",
    vision={
        **Qwen3VlMoe.small.vision,
        "image_size": 256,  # that of its position embeddings; only vLLM asks, as for the next
        "apply_vit_abs_pos_embed": True,
    },
    audio={**builder.AUDIO, "downsample_hidden_size": 32},
    text={**Qwen3VlMoe.small.text, "head_dim": None},
    config={"position_id_per_seconds": 13},  # as published
    side_share=Qwen3VlMoe.small.side_share,
    interleaved=True,
)


def build(
    small: SmallOmniModel, build: BuildConfig, corpus: Sequence[str], seed: int
) -> tuple[Any, Any]:
    """Build the model and its processor, see `builder.build`."""
    chat = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    model, tokenizer = builder.build(
        small.model,
        lambda t: _config(small, build, t),
        build,
        corpus,
        seed,
        Format(special=(*chat, *small.named.values()), named=small.named),
    )
    config, named = model.config, small.named
    of_images, of_videos = qwen_models.pixel_settings(config.vision_config)
    shown = {
        kind: named[f"{marks}_bos_token"] + named[f"{kind}_token"] + named[f"{marks}_eos_token"]
        for kind, marks in (("image", "vision"), ("video", "vision"), ("audio", "audio"))
    }
    return model, getattr(transformers, f"{small.stem}Processor")(
        image_processor=transformers.Qwen2VLImageProcessor(**of_images),
        video_processor=transformers.Qwen2VLVideoProcessor(**of_videos),
        feature_extractor=transformers.WhisperFeatureExtractor(
            feature_size=config.audio_config.num_mel_bins, return_attention_mask=True
        ),
        tokenizer=tokenizer,
        chat_template=chatml(**shown),
    )


def _config(small: SmallOmniModel, build: BuildConfig, tokenizer: Any) -> Any:
    config_class: Any = getattr(transformers, f"{small.stem}ThinkerConfig")
    parts = {"text": build.text, "vision": build.vision, "audio": build.audio}
    tokens = builder.token_fields(tokenizer, build)
    fixed = {"text": {*tokens}, "vision": {"out_hidden_size"}, "audio": {"output_dim"}}
    more = {"text": {"vocab_size", builder.TIED, *small.text}}
    for part, overrides in parts.items():
        own = {*config_class.sub_configs[f"{part}_config"].__annotations__}
        builder.check_fields(build, part, overrides, own - fixed[part] | more.get(part, set()))
    text, width = builder.text_fields(build, small.text)
    if "head_dim" in text:
        text["head_dim"] = width
    vision, audio = {**small.vision, **build.vision}, {**small.audio, **build.audio}
    builder.head_dim("vision", "hidden_size", vision, "num_heads", 4)
    builder.head_dim("audio", "d_model", audio, "encoder_attention_heads", 1)
    rope = qwen_models.mrope(width, small.side_share)
    text.setdefault(
        "rope_parameters", {**rope, "mrope_interleaved": True} if small.interleaved else rope
    )
    tied = text.pop(builder.TIED, False)
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in small.named.items()}
    return config_class(
        # The text config ties by default, and vLLM reads it.
        text_config={**text, **tokens, builder.TIED: tied},
        vision_config={**vision, "out_hidden_size": text["hidden_size"]},
        audio_config={**audio, "output_dim": text["hidden_size"]},
        tie_word_embeddings=tied,
        **small.config,
        **{small.id_name.format(k): ids[f"{k}_token"] for k in ("image", "video", "audio")},
        audio_start_token_id=ids["audio_bos_token"],
        audio_end_token_id=ids["audio_eos_token"],
        vision_start_token_id=ids["vision_bos_token"],
        vision_end_token_id=ids["vision_eos_token"],
    )
