"""Gemma 4: images of any shape, videos as images with their times, audio; sliding windows in most layers.

Source: Google DeepMind 2026, model card of Gemma 4 (boxes are in thousandths).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models import media_features
from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.models.capped_head import CappedHead
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import ImageFamily
from vlmrl.schema import Encoded, Frame, MediaKind, Space
from vlmrl.schema.media import Audio, Decoded, PilImage, Video

IMAGE, AUDIO, VIDEO = "<|image|>", "<|audio|>", "<|video|>"
MARKS = ("<|image>", "<image|>", "<|audio>", "<audio|>")
TURN, END = "<|turn>", "<turn|>"
SECONDS = 30.0
"""The longest audio: the HF processor cuts longer ones off."""
AUDIO_TENSORS = ("input_features", "input_features_mask")
SOFT_TOKENS = 70
"""The most tokens of an image in a small model, the fewest that the processor allows."""
PATTERN = 6
"""Every layer of this number, and the last, attends to all; the others to a window."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] | trim }}"
    "{% else %}<|{{ part['type'] }}|>{% endif %}{% endfor %}{% endif %}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Gemma4(ImageFamily):
    """The family of checkpoints of model type `gemma4`.

    `pixel_values` is float32 [images, patches, 3 * side * side] and `image_position_ids` int64 [images,
    patches, 2], column and row, -1 for padding; for the frames of videos `pixel_values_videos` and
    `video_position_ids`, with `num_frames_per_video` int64 [videos]. `input_features` is float32 [audios,
    frames, mel] and `input_features_mask` bool [audios, frames].

    The features of a prompt's media are in the order of their placeholders, whatever their kinds.
    """

    model_types: ClassVar[tuple[str, ...]] = ("gemma4",)
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image", "video", "audio")
    space: ClassVar[Space] = "norm1000"
    placeholder: ClassVar[str] = IMAGE
    placeholders: ClassVar[Mapping[MediaKind, str]] = {
        "image": IMAGE,
        "video": VIDEO,
        "audio": AUDIO,
    }
    turn_ends: ClassVar[tuple[str, ...]] = (END, "<eos>")
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, VIDEO, AUDIO, *MARKS)
    two_way_media: ClassVar[bool] = True  # in large models, see `masks`
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("model.vision_tower.",),
        "audio": ("model.audio_tower.",),
        "projector": ("model.embed_vision.", "model.embed_audio."),
        "language": ("model.language_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "projector": ("embedding_projection",),
        "language": (
            *LANGUAGE_LINEAR,
            "per_layer_input_gate",
            "per_layer_projection",
            "per_layer_model_projection",
        ),
        "vision": ("linear", "input_proj"),
        "audio": ("linear", "input_proj_linear", "relative_k_proj", "output_proj"),
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.encoder.layers",
        "model.audio_tower.layers",
    )
    shared: ClassVar[bool] = True
    router: ClassVar[str] = "router"
    tensor_names: ClassVar[tuple[str, ...]] = (
        *("pixel_values", "image_position_ids"),
        *("pixel_values_videos", "video_position_ids", "num_frames_per_video"),
        *AUDIO_TENSORS,
    )
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="Gemma4ForConditionalGeneration",
        config="Gemma4Config",
        text="gemma4_text",
        vision="gemma4_vision",
        audio="gemma4_audio",
        format=Format(
            special=("<pad>", "<eos>", "<bos>", TURN, END, *media_tokens),
            roles=("user\n", "model\n"),
            end=END,
            pad="<pad>",
            start="<bos>",
            named={
                "image_token": IMAGE,
                "boi_token": MARKS[0],
                "eoi_token": MARKS[1],
                "audio_token": AUDIO,
                "boa_token": MARKS[2],
                "eoa_token": MARKS[3],
            },
        ),
        text_fields={
            "sliding_window": 32,
            "global_head_dim": 64,
            "num_global_key_value_heads": None,
            "hidden_size_per_layer_input": 16,
            "final_logit_softcapping": 30.0,
            "rope_parameters": {
                "full_attention": {
                    **builder.ROPE,
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.25,
                },
                "sliding_attention": {**builder.ROPE},
            },
        },
        vision_fields={
            "patch_size": 16,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "position_embedding_size": 256,
            "default_output_length": SOFT_TOKENS,  # as published; only vLLM asks
            "initializer_range": 0.05,
        },
        audio_fields={
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "subsampling_conv_channels": [128, 8],
            "output_proj_dims": 64,
            "initializer_range": 0.05,
        },
        token_ids={
            "image_token_id": IMAGE,
            "video_token_id": VIDEO,
            "audio_token_id": AUDIO,
            "boi_token_id": MARKS[0],
            "eoi_token_id": MARKS[1],
            "boa_token_id": MARKS[2],
            "eoa_token_index": MARKS[3],
        },
    )

    def recipe(self, build: BuildConfig) -> SmallImageModel:
        last = int(build.text.get("num_hidden_layers", builder.TEXT["num_hidden_layers"]))
        layers = (layer % PATTERN == 0 or layer == last for layer in range(1, last + 1))
        types = [f"{'full' if full else 'sliding'}_attention" for full in layers]
        return replace(self.small, text_fields={"layer_types": types, **self.small.text_fields})

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        model, processor = super().build(build, corpus, seed)
        # transformers initialises this table with ones: no patch would know where it is.
        generator = torch.Generator().manual_seed(seed)
        table = model.model.vision_tower.patch_embedder.position_embedding_table
        torch.nn.init.normal_(table, std=0.05, generator=generator)
        return model, processor

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        vision = config.vision_config
        settings = {
            "patch_size": vision.patch_size,
            "pooling_kernel_size": vision.pooling_kernel_size,
            "max_soft_tokens": SOFT_TOKENS,
        }
        return transformers.Gemma4Processor(
            feature_extractor=transformers.Gemma4AudioFeatureExtractor(),
            image_processor=transformers.Gemma4ImageProcessor(**settings),
            tokenizer=tokenizer,
            video_processor=transformers.Gemma4VideoProcessor(**settings),
            chat_template=CHAT_TEMPLATE,
            image_seq_length=SOFT_TOKENS,
        )

    def adopt(self, processor: Any, config: Any) -> None:
        """Store on the processor whether the model hears: some checkpoints have no audio tower."""
        processor.hears = config.audio_config is not None

    def _shown(self, processor: Any, media: Sequence[Decoded]) -> dict[str, Any]:
        audios = [m for m in media if isinstance(m, Audio)]
        videos = [m for m in media if isinstance(m, Video)]
        if audios and not processor.hears:
            raise UserError("the model has no audio tower, so it takes no audio")
        media_features.check_audios(audios, processor.feature_extractor.sampling_rate, SECONDS)
        shown: dict[str, Any] = {
            "images": [m for m in media if isinstance(m, PilImage)] or None,
            "audio": [audio.samples for audio in audios] or None,
        }
        if videos:
            shown |= {"videos": [v.frames for v in videos], "do_sample_frames": False}
            shown |= {"video_metadata": [v.metadata for v in videos]}
        return shown

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return pad_frames([before, after]) if name in AUDIO_TENSORS else torch.cat([before, after])

    def frame(self, processor: object, medium: Decoded | None) -> Frame:
        if isinstance(medium, Audio):
            return Frame(space=self.space, duration=medium.duration)
        return super().frame(processor, medium)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        try:
            sizes = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])
        except ValueError as error:
            raise UserError(f"an image of {width}x{height} pixels is refused: {error}") from error
        return int(sizes.num_image_tokens[0])

    # ------------------------------------------------------------------------------- forward

    def features_of(
        self, model: Any, kind: MediaKind, tensors: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Compute the features [tokens, H] of each medium of a kind, of all prompts that have any."""
        if kind == "image":
            return self.image_features(model, tensors)
        if kind == "audio":
            mels, heard = (
                pad_frames([t[name] for t in tensors]).to(model.device) for name in AUDIO_TENSORS
            )
            out = model.model.get_audio_features(mels.to(model.dtype), heard, return_dict=True)
            return [
                row[own] for row, own in zip(out.pooler_output, out.attention_mask, strict=True)
            ]
        names = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
        pixels, places, frames = (torch.cat([t[name] for t in tensors]) for name in names)
        out = model.model.get_video_features(
            pixels.to(model.device), places.to(model.device), frames, return_dict=True
        )
        return out.pooler_output

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tokens, H] of each image."""
        names = ("pixel_values", "image_position_ids")
        inputs = (torch.cat([t[name] for t in tensors]).to(model.device) for name in names)
        return model.model.get_image_features(*inputs, return_dict=True).pooler_output

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> media_features.ByPrompt | None:
        """Compute the features [tokens, H] of the media of each prompt, with gradient."""
        media = {}
        for kind in self.kinds:
            token = getattr(model.config, f"{kind}_token_id")
            seen = [p.tensors for p in prompts if token in p.compact_ids and p.tensors]
            if seen:
                media[token] = iter(self.features_of(model, kind, seen))
        if not media:
            return None
        listed = [[next(media[i]) for i in p.compact_ids if i in media] for p in prompts]
        some = next(feature for features in listed for feature in features)
        return tuple(torch.cat(f) if f else some[:0] for f in listed)

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: media_features.ByPrompt | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Compute hidden states [B, T, H]; a medium has the embeddings of padding in every layer."""
        language = model.model.language_model
        tokens = [getattr(model.config, f"{kind}_token_id") for kind in self.kinds]
        places = torch.isin(input_ids, input_ids.new_tensor(tokens))
        # Ids of media may be outside of the vocabulary.
        ids = input_ids.masked_fill(places, model.config.text_config.pad_token_id)
        embeds = model.get_input_embeddings()(ids)
        layers = None
        if language.config.hidden_size_per_layer_input:
            layers = language.get_per_layer_inputs(ids, embeds)
        if features is not None:
            embeds = media_features.place_features(embeds, places, features)
        out = language(
            inputs_embeds=embeds,
            per_layer_inputs=layers,
            attention_mask=self.masks(
                model, input_ids, embeds, attention_mask, position_ids[0], cache
            ),
            position_ids=position_ids[0],
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=None,  # else it slices masks
        )
        return out.last_hidden_state

    def masks(
        self,
        model: Any,
        ids: torch.Tensor,
        embeds: torch.Tensor,
        attention_mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: Any,
    ) -> Any:
        """Let the tokens of an image see each other both ways in windows, where the config says so."""
        from transformers.models.gemma4 import modeling_gemma4 as theirs

        config = model.config.text_config
        seen = (ids == model.config.image_token_id) | (ids == model.config.video_token_id)
        if config.use_bidirectional_attention != "vision" or not seen.any():
            return attention_mask
        blocks = theirs.get_block_sequence_ids_for_mask(seen.long(), embeds.device)
        return theirs.create_masks_for_vision_model(
            config, embeds, attention_mask, cache, positions, blocks
        )

    def head(self, model: Any) -> torch.nn.Module:
        """Return the output projection, whose logits are bounded where the config says so."""
        cap = model.config.text_config.final_logit_softcapping
        head = model.get_output_embeddings()
        return head if cap is None else CappedHead(head, cap)

    def weigh(self, router: Any, logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the probabilities of these experts over their sum, scaled, see `Family.weigh`."""
        weights = logits.gather(1, experts)  # which the router returns as probabilities
        weights = weights / weights.sum(-1, keepdim=True)
        return weights * router.per_expert_scale[experts]


def pad_frames(audios: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join stacks [N, frames, ...], each with zeros up to the most frames."""
    most = max(stack.shape[1] for stack in audios)
    missing = (x.new_zeros(len(x), most - x.shape[1], *x.shape[2:]) for x in audios)
    return torch.cat([torch.cat(pair, 1) for pair in zip(audios, missing, strict=True)])
