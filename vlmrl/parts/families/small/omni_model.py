"""Building small models of Qwen2.5-Omni's thinker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers

from vlmrl.config import BuildConfig
from vlmrl.models.chat import chatml
from vlmrl.parts.families.qwen2_5_vl import Qwen25Vl
from vlmrl.parts.families.small import builder, qwen_models
from vlmrl.parts.families.small.builder import Format

AUDIO, IMAGE, VIDEO = "<|AUDIO|>", "<|IMAGE|>", "<|VIDEO|>"
NAMED_TOKENS = {
    "audio_token": AUDIO,
    "image_token": IMAGE,
    "video_token": VIDEO,
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}
CHAT_TEMPLATE = chatml(
    image="<|vision_bos|><|IMAGE|><|vision_eos|>",
    video="<|vision_bos|><|VIDEO|><|vision_eos|>",
    audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
)


def build(build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
    """Build the model and its processor, see `builder.build`."""
    chat = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    model, tokenizer = builder.build(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        lambda t: _config(build, t),
        build,
        corpus,
        seed,
        Format(special=(*chat, *NAMED_TOKENS.values()), named=NAMED_TOKENS),
    )
    config = model.config
    of_images, of_videos = qwen_models.pixel_settings(config.vision_config)
    return model, transformers.Qwen2_5OmniProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(**of_images),
        video_processor=transformers.Qwen2VLVideoProcessor(**of_videos),
        feature_extractor=transformers.WhisperFeatureExtractor(
            feature_size=config.audio_config.num_mel_bins, return_attention_mask=True
        ),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


def _config(build: BuildConfig, tokenizer: Any) -> Any:
    config_class: Any = transformers.Qwen2_5OmniThinkerConfig
    parts = {"text": build.text, "vision": build.vision, "audio": build.audio}
    tokens = builder.token_fields(tokenizer, build)
    fixed = {"text": {*tokens}, "vision": {"out_hidden_size"}, "audio": {"output_dim"}}
    for part, overrides in parts.items():
        own = config_class.sub_configs[f"{part}_config"].__annotations__
        builder.check_fields(
            build,
            part,
            overrides,
            {*own} - fixed[part] | ({"vocab_size"} if part == "text" else set()),
        )
    text, width = builder.text_fields(build, {})
    vision, audio = {**Qwen25Vl.small.vision, **build.vision}, {**builder.AUDIO, **build.audio}
    builder.head_dim("vision", "hidden_size", vision, "num_heads", 4)
    builder.head_dim("audio", "d_model", audio, "encoder_attention_heads", 1)
    text.setdefault("rope_parameters", qwen_models.mrope(width))
    tied = text.pop(builder.TIED, False)
    token = tokenizer.convert_tokens_to_ids
    return config_class(
        # The text config ties by default, and vLLM reads it.
        text_config={**text, **tokens, builder.TIED: tied},
        vision_config={**vision, "out_hidden_size": text["hidden_size"]},
        audio_config={**audio, "output_dim": text["hidden_size"]},
        tie_word_embeddings=tied,
        image_token_index=token(IMAGE),
        video_token_index=token(VIDEO),
        audio_token_index=token(AUDIO),
        audio_start_token_id=token("<|audio_bos|>"),
        audio_end_token_id=token("<|audio_eos|>"),
        vision_start_token_id=token("<|vision_bos|>"),
        vision_end_token_id=token("<|vision_eos|>"),
    )
