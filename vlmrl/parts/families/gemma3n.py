"""Gemma 3n: images through a MobileNetV5 of timm, audio through a conformer; layers share keys and values.

Source: Google DeepMind 2025, model card of Gemma 3n. It publishes no format for boxes; we ask for
thousandths, the space of Gemma 4, a model of the same authors.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError, import_extra
from vlmrl.models import media_features
from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.parts.families.gemma4 import AUDIO_TENSORS, SECONDS, Gemma4, pad_frames
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import ImageFamily
from vlmrl.schema import Encoded, MediaKind
from vlmrl.schema.media import Audio, Decoded, PilImage

IMAGE, AUDIO = "<image_soft_token>", "<audio_soft_token>"
IMAGE_START, IMAGE_END = "<start_of_image>", "<end_of_image>"
AUDIO_START, AUDIO_END = "<start_of_audio>", "<end_of_audio>"
SILENCE = "<silence>"
"""The last id of a small model, whose embedding stands where a recording has no more tokens."""
TOKEN_SECONDS = 0.16
"""One token of audio: 16 frames of 10 ms."""
TOWER = {
    "stem_size": 8,
    "fix_stem": True,
    "pad_type": "same",
    "layer_scale_init_value": 0.5,  # with the 1e-5 of published ones its blocks would do nothing
    "msfa_output_resolution": 4,
}
BLOCK = {"stride": 1, "exp_ratio": 2.0, "act_layer": None, "noskip": False}
INVERTED = {**BLOCK, "block_type": "uir", "out_chs": 16, "dw_kernel_size_end": 0}
STAGES = (
    (
        {
            **{**BLOCK, "block_type": "er", "out_chs": 8, "stride": 2},
            **{"exp_kernel_size": 3, "pw_kernel_size": 1},
        },
    ),
    (
        {**INVERTED, "stride": 2, "dw_kernel_size_start": 5, "dw_kernel_size_mid": 5},
        {
            **{"block_type": "mqa", "out_chs": 16, "stride": 1, "act_layer": None, "noskip": False},
            **{"dw_kernel_size": 3, "num_heads": 2, "key_dim": 8, "value_dim": 8, "kv_stride": 2},
        },
        {**INVERTED, "dw_kernel_size_start": 0, "dw_kernel_size_mid": 0},
    ),
)
"""The blocks of a small tower, of each kind that the published one has, in timm's words."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] | trim }}"
    "{% else %}<{{ part['type'] }}_soft_token>{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Gemma3n(Gemma4):
    """The family of checkpoints of model type `gemma3n`.

    `pixel_values` is float32 [images, 3, side, side], `input_features` float32 [audios, frames, mel] and
    `input_features_mask` bool [audios, frames]. Every image and every recording has one number of tokens.

    The last ids of the vocabulary are embedded by the projectors, those of images and then those of audio.
    """

    model_types: ClassVar[tuple[str, ...]] = ("gemma3n",)
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image", "audio")
    placeholder: ClassVar[str] = IMAGE
    placeholders: ClassVar[Mapping[MediaKind, str]] = {"image": IMAGE, "audio": AUDIO}
    turn_ends: ClassVar[tuple[str, ...]] = ("<end_of_turn>", "<eos>")
    media_tokens: ClassVar[tuple[str, ...]] = (
        *(IMAGE, IMAGE_START, IMAGE_END),
        *(AUDIO, AUDIO_START, AUDIO_END, SILENCE),
    )
    two_way_media: ClassVar[bool] = False
    router: ClassVar[str] = ""
    unserved: ClassVar[str] = (
        "vLLM 0.32 embeds the ends of Gemma 3n's images and audio by another table than transformers"
    )
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": (),  # convolutions alone
        "audio": (
            *("q_proj", "k_proj", "v_proj", "pos_proj", "post", "ffw_layer_1", "ffw_layer_2"),
            *("linear_start", "linear_end", "input_proj_linear"),
        ),
        "projector": ("embedding_projection",),
        "language": (
            *LANGUAGE_LINEAR,
            *("per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"),
            *("linear_left", "linear_right"),
            *("correction_coefs", "prediction_coefs", "modality_router"),
            *("0", "1", "2"),  # of altup_projections and altup_unembed_projections
        ),
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.timm_model.blocks",
        "model.audio_tower.conformer",
    )
    tensor_names: ClassVar[tuple[str, ...]] = ("pixel_values", *AUDIO_TENSORS)
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="Gemma3nForConditionalGeneration",
        config="Gemma3nConfig",
        text="gemma3n_text",
        vision="gemma3n_vision",
        audio="gemma3n_audio",
        format=Format(
            special=(
                *("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
                *(IMAGE_START, AUDIO_START),
            ),
            plain=("\n", "\n\n"),
            roles=("user\n", "model\n"),
            end="<end_of_turn>",
            pad="<pad>",
            start="<bos>",
            named={
                "image_token": IMAGE,
                "boi_token": IMAGE_START,
                "eoi_token": IMAGE_END,
                "audio_token": AUDIO,
                "boa_token": AUDIO_START,
                "eoa_token": AUDIO_END,
            },
            last=(IMAGE_END, IMAGE, AUDIO_END, AUDIO, SILENCE),
        ),
        vocabularies=(IMAGE_END, AUDIO_END),
        text_fields={
            "sliding_window": 32,
            "hidden_size_per_layer_input": 16,
            "laurel_rank": 8,
            "final_logit_softcapping": 30.0,
            "rope_parameters": {
                "full_attention": {**builder.ROPE},
                "sliding_attention": {**builder.ROPE},
            },
        },
        vision_fields={"architecture": "mobilenetv5_300m", "initializer_range": 0.1},
        audio_fields={
            "hidden_size": 32,
            "conf_num_attention_heads": 2,
            "conf_num_hidden_layers": 2,
            "sscp_conv_channel_size": [8, 4],
            "input_feat_size": 32,
            "initializer_range": 0.05,
        },
        token_ids={
            "image_token_id": IMAGE,
            "audio_token_id": AUDIO,
            "boi_token_id": IMAGE_START,
            "eoi_token_id": IMAGE_END,
            "boa_token_id": AUDIO_START,
            "eoa_token_id": AUDIO_END,
        },
        fields={"vision_soft_tokens_per_image": 16, "audio_soft_tokens_per_image": 20},
        side=112,
    )

    # --------------------------------------------------------------------------- small models, files

    def recipe(self, build: BuildConfig) -> SmallImageModel:
        layers = int(build.text.get("num_hidden_layers", builder.TEXT["num_hidden_layers"]))
        pattern = ["sliding_attention", "full_attention"]
        text = {
            "layer_types": [pattern[layer % 2] for layer in range(layers)],
            "num_kv_shared_layers": (layers - 1) // 2,
            "activation_sparsity_pattern": [0.5] + [0.0] * (layers - 1),
        }
        vision = {"model_args": _tower_arguments(build), **self.small.vision_fields}
        return replace(
            self.small, text_fields={**text, **self.small.text_fields}, vision_fields=vision
        )

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        import_extra("timm", "timm")
        if "language" in build.weights:
            raise UserError(
                "model.build.weights.language: Gemma 3n's projectors embed ids of its vocabulary; name a "
                "whole model as model.path"
            )
        build = build.model_copy(deep=True)
        arguments = copy.deepcopy(build.vision.get("model_args", _tower_arguments(build)))
        model, processor = ImageFamily.build(self, build, corpus, seed)
        # timm has written into those that it was given.
        model.config.vision_config.model_args = arguments
        # transformers initialises these with zeros: nothing would read the embeddings for each layer.
        for layer in model.model.language_model.layers:
            layer.altup.correct_output_scale.data.fill_(1.0)
        return model, processor

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        return transformers.Gemma3nProcessor(
            feature_extractor=transformers.Gemma3nAudioFeatureExtractor(
                feature_size=config.audio_config.input_feat_size
            ),
            image_processor=transformers.SiglipImageProcessor(
                size={"height": self.small.side, "width": self.small.side},
                do_normalize=False,  # as published
            ),
            tokenizer=tokenizer,
            chat_template=CHAT_TEMPLATE,
            audio_seq_length=config.audio_soft_tokens_per_image,
            image_seq_length=config.vision_soft_tokens_per_image,
        )

    def reader(self) -> Any:
        import_extra("timm", "timm")
        return _Reader

    # ------------------------------------------------------------------------------- prompts

    def _shown(self, processor: Any, media: Sequence[Decoded]) -> dict[str, Any]:
        audios = [m for m in media if isinstance(m, Audio)]
        extractor = processor.feature_extractor
        longest = min(SECONDS, round(processor.audio_seq_length * TOKEN_SECONDS, 2))
        media_features.check_audios(audios, extractor.sampling_rate, longest)
        for audio in audios:
            if len(audio.samples) <= extractor.frame_length:
                raise UserError(
                    f"expected audio of more than {extractor.frame_length} samples, got {len(audio.samples)}"
                )
        return {
            "images": [m for m in media if isinstance(m, PilImage)] or None,
            "audio": [audio.samples for audio in audios] or None,
        }

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        return processor.image_seq_length

    # ------------------------------------------------------------------------------- forward

    def media_of(self, model: Any, prompt: Encoded) -> list[Encoded]:
        """Return the images and recordings of a prompt, in order, each as a prompt of its own."""
        config, tensors = model.config, prompt.tensors
        media: dict[int, list[Encoded]] = {}
        for token, length, names in (
            (config.image_token_id, config.vision_soft_tokens_per_image, ("pixel_values",)),
            (config.audio_token_id, config.audio_soft_tokens_per_image, AUDIO_TENSORS),
        ):
            rows = zip(*(tensors[name].split(1) for name in names if name in tensors), strict=True)
            shown = (dict(zip(names, own, strict=True)) for own in rows)
            media[token] = [media_features.stand_alone(token, own, length) for own in shown]
        return [media[i].pop(0) for i in prompt.compact_ids if i in media]

    def features_of(
        self, model: Any, kind: MediaKind, tensors: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Compute the features [tokens, H] of each medium of a kind, of all prompts that have any."""
        if kind == "image":
            return self.image_features(model, tensors)
        mels, heard = (
            pad_frames([t[name] for t in tensors]).to(model.device) for name in AUDIO_TENSORS
        )
        return self.audio_features(model, mels.to(model.dtype), heard)

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [images, tokens, H], as transformers does, which scales them in place."""
        pixels = torch.cat([t["pixel_values"] for t in tensors]).to(model.device)
        out = model.model.vision_tower(pixel_values=pixels, do_pooling=False, return_dict=True)
        grid = out.last_hidden_state.flatten(2).mT
        scale = model.config.vision_config.hidden_size**0.5
        return model.model.embed_vision(inputs_embeds=grid * scale)

    def audio_features(self, model: Any, mels: torch.Tensor, heard: torch.Tensor) -> Any:
        """Compute the features [audios, tokens, H] of mels [audios, frames, mel]; 0 are frames of no prompt.

        Where a recording has no more tokens, as transformers does, the last embedding of audio follows.
        """
        tower, embed = model.model.audio_tower, model.model.embed_audio
        # The second convolution pads with zeros what the first made of the frames of a prompt.
        frames = mels.any(-1) * torch.arange(1, mels.shape[1] + 1, device=mels.device)
        first = tower.subsample_conv_projection.conv_0.conv.stride[0]
        made = (frames.amax(1) - 1) // first + 1

        def blank(_: object, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            steps = torch.arange(given[0].shape[2], device=mels.device)
            return (given[0].masked_fill((steps >= made[:, None])[:, None, :, None], 0.0),)

        hook = tower.subsample_conv_projection.conv_1.register_forward_pre_hook(blank)
        try:
            out = tower(mels, ~heard, return_dict=True)
        finally:
            hook.remove()
        last = torch.full((1, 1), model.config.text_config.vocab_size - 1, device=mels.device)
        silence = embed(input_ids=last)
        own = embed(inputs_embeds=out.last_hidden_state)
        own = torch.where(out.audio_mel_mask[..., None], silence, own)
        missing = model.config.audio_soft_tokens_per_image - own.shape[1]
        return torch.cat([own, silence.expand(len(own), missing, -1)], 1)

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: media_features.ByPrompt | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Compute hidden states [B, T, H]; ids of the projectors' vocabularies are embedded by them."""
        language = model.model.language_model
        places = torch.zeros_like(input_ids, dtype=torch.bool)
        if features is not None:
            tokens = [model.config.image_token_id, model.config.audio_token_id]
            places = torch.isin(input_ids, input_ids.new_tensor(tokens))
        embeds = model.get_input_embeddings()(input_ids)
        for embed in (model.model.embed_vision, model.model.embed_audio):
            row = input_ids - embed.vocab_offset
            own = (row >= 0) & (row < embed.vocab_size) & ~places
            if own.any():
                hard = embed(input_ids=input_ids[own])
                embeds = media_features.place_features(embeds, own, [hard])
        if features is not None:
            embeds = media_features.place_features(embeds, places, features)
        known = input_ids < language.config.vocab_size_per_layer_input
        for layer in language.layers:
            # In training mode it would clip weights in place, and pass by the adapters of some.
            layer.altup.training = False
        out = language(
            inputs_embeds=embeds,
            per_layer_inputs=language.get_per_layer_inputs(input_ids.where(known, 0)),
            attention_mask=attention_mask,
            position_ids=position_ids[0],
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state


def _tower_arguments(build: BuildConfig) -> dict[str, Any]:
    """Return what timm makes a small tower from."""
    blocks = [[dict(block) for block in stage] for stage in STAGES]
    return {**TOWER, "num_features": build.vision.get("hidden_size", 64), "block_args": blocks}


class _Reader:
    """Reads checkpoints as transformers does; timm writes into the arguments that their config has for it."""

    @staticmethod
    def from_pretrained(path: str, **settings: Any) -> Any:
        """Read a model, whose config stays what the folder says."""
        common = {key: settings[key] for key in ("local_files_only", "trust_remote_code")}
        model, report = transformers.AutoModelForMultimodalLM.from_pretrained(path, **settings)
        stated = transformers.AutoConfig.from_pretrained(path, **common)
        model.config.vision_config.model_args = stated.vision_config.model_args
        return model, report
