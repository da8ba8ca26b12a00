"""MiniCPM-V 4.6: images whole and in slices of their own shape, videos as such images, layers of Qwen3.5.

Source: Yao et al. 2024, "MiniCPM-V", arXiv:2408.01800; transformers 5.23, `minicpmv4_6`. Nothing was seen
that is published on its boxes; those of MiniCPM-V 2.6 are in thousandths.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.models import media_features
from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR, shift
from vlmrl.models.chat import CHATML_ENDS, chatml
from vlmrl.parts.families.qwen3_5 import DELTA_NET_LINEAR, mask_of_layers
from vlmrl.parts.families.small import builder
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import ImageFamily
from vlmrl.schema import Encoded, MediaKind, Space
from vlmrl.schema.media import Decoded, kind_of

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
MARKS = {
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
CHAT_TEMPLATE = chatml(image=IMAGE, video=VIDEO)
PIXELS, SIZES = ("pixel_values", "pixel_values_videos"), ("target_sizes", "target_sizes_videos")


@dataclass(frozen=True)
class Minicpmv46(ImageFamily):
    """The family of checkpoints of model type `minicpmv4_6`.

    `pixel_values` is float32 [1, 3, side, side * patches], the patches of all images and slices in a row;
    `target_sizes` is int32 [images and slices, 2], height and width in patches. Those of the frames of
    videos are `pixel_values_videos` and `target_sizes_videos`.

    Images are numbered in the text from 0 on, videos likewise, over all turns.
    """

    model_types: ClassVar[tuple[str, ...]] = ("minicpmv4_6",)
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image", "video")
    space: ClassVar[Space] = "norm1000"
    placeholder: ClassVar[str] = IMAGE
    placeholders: ClassVar[Mapping[MediaKind, str]] = {"image": IMAGE, "video": VIDEO}
    turn_ends: ClassVar[tuple[str, ...]] = CHATML_ENDS
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, VIDEO, *MARKS.values())
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("model.vision_tower.",),
        "projector": ("model.merger.",),
        "language": ("model.language_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": (*ENCODER_LINEAR, "linear_1", "linear_2"),
        "projector": ("linear_1", "linear_2"),
        "language": (*LANGUAGE_LINEAR, *DELTA_NET_LINEAR),
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.encoder.layers",
    )
    shared: ClassVar[bool] = True
    tensor_names: ClassVar[tuple[str, ...]] = (*PIXELS, *SIZES)
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="MiniCPMV4_6ForConditionalGeneration",
        config="MiniCPMV4_6Config",
        text="qwen3_5_text",
        vision="minicpmv4_6_vision",
        format=Format(
            special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *media_tokens),
            named={"image_token": IMAGE, "video_token": VIDEO, **MARKS},
        ),
        text_fields={
            "full_attention_interval": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "rope_parameters": {**builder.ROPE, "partial_rotary_factor": 0.25},
        },
        token_ids={"image_token_id": IMAGE, "video_token_id": VIDEO},
        fields={"insert_layer_id": 0},
    )

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        model, processor = super().build(build, corpus, seed)
        # transformers initialises these layers with weights as large as 1.
        generator = torch.Generator().manual_seed(seed)
        for weight in model.model.vision_tower.vit_merger.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.05, generator=generator)
        return model, processor

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        vision = config.vision_config
        settings = {
            "patch_size": vision.patch_size,
            "scale_resolution": vision.image_size,
            "max_slice_nums": 4,
        }
        return transformers.MiniCPMV4_6Processor(
            image_processor=transformers.MiniCPMV4_6ImageProcessor(**settings),
            video_processor=transformers.MiniCPMV4_6VideoProcessor(**settings),
            tokenizer=tokenizer,
            chat_template=CHAT_TEMPLATE,
        )

    # ------------------------------------------------------------------------------- prompts

    def extend(
        self,
        processor: object,
        text: str,
        media: Sequence[Decoded],
        start: float,
        seen: Sequence[Decoded] = (),
    ) -> Encoded:
        return shift(self._process(processor, text, media, False, seen), start)

    def _process(
        self,
        processor: Any,
        text: str,
        media: Sequence[Decoded],
        special: bool,
        seen: Sequence[Decoded] = (),
    ) -> Encoded:
        """Encode as the HF processor does, the media numbered on from those that were `seen` before."""
        numbers = {kind: itertools.count([*map(kind_of, seen)].count(kind)) for kind in self.kinds}
        shown = []
        for medium in media:
            tensors, expanded = self._show(processor, medium, use_image_id=False)
            if processor.default_use_image_id:
                number = next(numbers[kind_of(medium)])
                before, after = processor.image_id_start_token, processor.image_id_end_token
                expanded = f"{before}{number}{after}{expanded}"
            shown.append((tensors, expanded))
        return self._process_apart(processor, text, media, special, shown)

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return torch.cat([before, after], -1 if name in PIXELS else 0)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        images, size = processor.image_processor, (height, width)
        sides = (images.scale_resolution, images.patch_size, images.downsample_mode)
        grid = images.slice_mode and images.get_sliced_grid(
            size, images.max_slice_nums, images.scale_resolution
        )
        sizes = [images.find_best_resize(size, *sides, allow_upscale=not grid)]
        if grid:  # of slices, beside the whole image
            sizes.append(images.get_refine_size(size, grid, *sides, allow_upscale=True))
        patches = sum(high * wide for high, wide in sizes) // images.patch_size**2
        return int(patches // processor.image_token_divisor)

    # ------------------------------------------------------------------------------- forward

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> media_features.ByPrompt | None:
        """Compute the features [tokens, H] of images and frames of each prompt, with gradient."""
        by_token: dict[int, media_features.ByPrompt] = {}
        for kind, pixels, sizes in zip(self.kinds, PIXELS, SIZES, strict=True):
            seen = [p.tensors for p in prompts if pixels in p.tensors]
            if seen:
                token = getattr(model.config, f"{kind}_token_id")
                features = self._run_tower(model, seen, pixels, sizes)
                by_token[token] = media_features.split_by_prompt(features, prompts, token)
        if not by_token:
            return None
        return tuple(
            _in_order(prompt, {token: features[row] for token, features in by_token.items()})
            for row, prompt in enumerate(prompts)
        )

    def _run_tower(
        self, model: Any, seen: Sequence[Mapping[str, torch.Tensor]], pixels: str, sizes: str
    ) -> torch.Tensor:
        """Compute the features [tokens, H] of one kind of media of all prompts, in order."""
        out = model.model.get_image_features(
            pixel_values=torch.cat([t[pixels] for t in seen], -1).to(model.device),
            target_sizes=torch.cat([t[sizes] for t in seen]).to(model.device),
            return_dict=True,
        )
        return torch.cat(tuple(out.pooler_output))

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: media_features.ByPrompt | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Compute hidden states [B, T, H]; the mask of `masked_by` goes to the delta-nets as well."""
        embeds = model.get_input_embeddings()(input_ids)
        if features is not None:
            tokens = (model.config.image_token_id, model.config.video_token_id)
            places = torch.isin(input_ids, input_ids.new_tensor(tokens))
            embeds = media_features.place_features(embeds, places, features)
        out = model.model.language_model(
            inputs_embeds=embeds,
            attention_mask=mask_of_layers(attention_mask),
            position_ids=position_ids.expand(3, -1, -1),
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state


def _in_order(prompt: Encoded, features: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Return features [tokens, H], given for each placeholder token, in the order of the prompt."""
    ids = torch.tensor([i for i in prompt.ids if i in features and prompt.tensors])
    some = next(iter(features.values()))
    placed = some.new_empty(len(ids), some.shape[-1])
    for token, own in features.items():
        placed[(ids == token).to(some.device)] = own
    return placed
