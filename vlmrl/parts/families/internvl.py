"""InternVL in the format of transformers (`-hf`): images as tiles of 448 pixels and a thumbnail, frames of
videos as one tile each, norm1000 boxes.

Sources: Zhu et al. 2025, "InternVL3", arXiv:2504.10479; the InternVL documentation, "Chat Data
Format" (boxes are normalised to [0, 1000]).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.models.chat import CHATML_ENDS, chatml
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import ImageFamily, SiglipFamily
from vlmrl.schema import Encoded, MediaKind, Prompt, Space
from vlmrl.schema.media import Decoded, Video

IMAGE, VIDEO = "<IMG_CONTEXT>", "<video>"
CHAT_TEMPLATE = chatml(image=f"{IMAGE}\n", video=f"{VIDEO}\n")


@dataclass(frozen=True)
class Internvl(ImageFamily):
    """The family of checkpoints of model type `internvl`.

    `pixel_values` is float32 [tiles, 3, side, side], of all images and frames in order. In `ids` the
    tokens of a frame are those of an image, behind its number in words.
    """

    model_types: ClassVar[tuple[str, ...]] = ("internvl",)
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image", "video")
    space: ClassVar[Space] = "norm1000"
    placeholder: ClassVar[str] = IMAGE
    placeholders: ClassVar[Mapping[MediaKind, str]] = {"image": IMAGE, "video": VIDEO}
    turn_ends: ClassVar[tuple[str, ...]] = CHATML_ENDS
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, "<img>", "</img>", VIDEO)
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = SiglipFamily.towers
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("q_proj", "k_proj", "v_proj", "projection_layer", "fc1", "fc2"),
        "projector": ("linear_1", "linear_2"),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.encoder.layer",
    )
    shared: ClassVar[bool] = True
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="InternVLForConditionalGeneration",
        config="InternVLConfig",
        text="qwen2",
        vision="internvl_vision",
        format=Format(
            special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *media_tokens),
            named={
                "start_image_token": "<img>",
                "end_image_token": "</img>",
                "context_image_token": IMAGE,
                "video_token": VIDEO,
            },
        ),
        vision_fields={"initializer_range": 0.05},
        token_ids={"image_token_id": IMAGE},
        shrink=2,
        tile_tokens="image_seq_length",
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        side = config.vision_config.image_size[0]
        shared: dict[str, Any] = {
            "size": {"height": side, "width": side},
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        }
        return transformers.InternVLProcessor(
            image_processor=transformers.GotOcr2ImageProcessor(
                crop_to_patches=True, max_patches=4, **shared
            ),
            tokenizer=tokenizer,
            video_processor=transformers.InternVLVideoProcessor(**shared),
            image_seq_length=config.image_seq_length,
            chat_template=CHAT_TEMPLATE,
        )

    # ------------------------------------------------------------------------------- prompts

    def _process(
        self, processor: Any, text: str, media: Sequence[Decoded], special: bool
    ) -> Encoded:
        """Encode as the HF processor does, but each medium alone: it takes videos of one length only."""
        if not any(isinstance(medium, Video) for medium in media):
            return super()._process(processor, text, media, special)
        shown = [self._show(processor, medium) for medium in media]
        return self._process_apart(processor, text, media, special, shown)

    def served(self, processor: Any, prompt: Prompt) -> Prompt:
        """Return the prompt with vLLM's ids, which are those of `<video>` for the tokens of a frame."""
        image, video = processor.tokenizer.convert_tokens_to_ids([IMAGE, VIDEO])
        shown = (
            [video] * len(medium.frames) if isinstance(medium, Video) else [image]
            for medium in prompt.media
        )
        marks = itertools.chain.from_iterable(shown)
        ids: list[int] = []
        for token, stretch in itertools.groupby(prompt.encoded.ids):
            ids += [next(marks) if token == image else token] * len(list(stretch))
        return replace(prompt, encoded=replace(prompt.encoded, ids=tuple(ids)))

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        images = processor.image_processor
        # The HF processor cuts images into tiles whatever the setting of its image processor is.
        tiles = images.get_number_of_image_patches(height, width, {"crop_to_patches": True})
        return tiles * processor.image_seq_length

    # ------------------------------------------------------------------------------- forward

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tiles, tokens, H]."""
        pixels = torch.cat([t["pixel_values"] for t in tensors]).to(model.device)
        return model.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
