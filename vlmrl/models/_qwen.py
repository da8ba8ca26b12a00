"""What Qwen2-VL, Qwen2.5-VL and Qwen3-VL share: prompts, sizes, M-RoPE positions, towers run once.

The three differ in the vision tower, in the convention for coordinates and in what a small model of
them looks like; that is what their own files say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.config import BuildConfig
from vlmrl.decoded import Decoded, Picture
from vlmrl.errors import UserError
from vlmrl.models import _build
from vlmrl.models._chat import user_turn
from vlmrl.models.base import Family
from vlmrl.schema import Encoded, Frame, Sample

IMAGE = "<|image_pad|>"
LANGUAGE_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """Features of some images, in order: `merged[i]` [tokens, H], `deepstack[level][i]` likewise.

    Only Qwen3-VL has DeepStack levels: level k is added to the output of decoder layer k.
    """

    merged: tuple[torch.Tensor, ...]
    deepstack: tuple[tuple[torch.Tensor, ...], ...] = ()

    def pick(self, images: Sequence[int]) -> ImageFeatures:
        """The features of these images, in this order; an image may come more than once."""
        return ImageFeatures(
            tuple(self.merged[i] for i in images),
            tuple(tuple(level[i] for i in images) for level in self.deepstack),
        )


@dataclass(frozen=True)
class MropeFamily(Family):
    """Base of the Qwen vision-language families."""

    media_tokens: ClassVar[tuple[str, ...]] = (
        IMAGE,
        "<|video_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|audio_start|>",
        "<|audio_pad|>",
        "<|audio_end|>",
    )
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("model.visual.patch_embed.", "model.visual.pos_embed.", "model.visual.blocks."),
        "projector": ("model.visual.merger.", "model.visual.deepstack_merger_list."),
        "language": ("model.language_model.", "lm_head."),
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.visual.blocks",
    )
    shared: ClassVar[bool] = True

    small: ClassVar[_build.Small]
    """What a small model of the family looks like."""

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """A small model of this architecture, see `Family.build`."""
        return _build.build(self.small, build, corpus, seed)

    # ------------------------------------------------------------------------------- prompts

    def render(self, processor: Any, sample: Sample, instruction: str) -> str:
        """See `user_turn`."""
        return user_turn(self, processor, sample, instruction)

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Ids, pixels and M-RoPE positions of one prompt; equal to what the HF processor makes.

        `pixel_values` is float32 [patches, channels * time * patch * patch], `image_grid_thw` int64
        [images, 3] in patches.

        Raises:
            UserError: an image of a shape that the model refuses.
        """
        placeholder = processor.image_token_id
        compact = processor.tokenizer(text)["input_ids"]
        if (places := compact.count(placeholder)) != len(media):
            raise UserError(f"the prompt has {places} image placeholders for {len(media)} images")
        tensors, grids = self._pixels(processor, media)
        merge = processor.image_processor.merge_size
        ids: list[int] = []
        pieces: list[torch.Tensor] = []
        start = 0  # the next position: one past the largest so far, as get_rope_index counts
        remaining = iter(grids)
        for run in _split(compact, placeholder):
            if run == [placeholder]:
                _, rows, columns = next(remaining)
                rows, columns = rows // merge, columns // merge
                ids += run * (rows * columns)
                pieces.append(_grid_positions(rows, columns) + start)
                start += max(rows, columns)
            else:
                ids += run
                pieces.append(torch.arange(start, start + len(run)).expand(3, -1))
                start += len(run)
        return Encoded(
            ids=tuple(ids),
            compact_ids=tuple(compact),
            tensors=tensors,
            position_ids=torch.cat(pieces, dim=1),
            next_position=start,
        )

    def _pixels(
        self, processor: Any, images: Sequence[Any]
    ) -> tuple[dict[str, torch.Tensor], list[tuple[int, int, int]]]:
        if not images:
            return {}, []
        for image in images:
            self._resized(processor, *image.size)
        out = processor.image_processor(images=list(images), return_tensors="pt")
        grid = out["image_grid_thw"]
        return {"pixel_values": out["pixel_values"], "image_grid_thw": grid}, grid.tolist()

    # --------------------------------------------------------------------------------- sizes

    def frame(self, processor: Any, medium: Decoded | None) -> Frame:
        """Original and resized size of the first image, with the family's space for coordinates."""
        if not isinstance(medium, Picture):
            return Frame(space=self.space)
        width, height = self._resized(processor, *medium.size)
        return Frame(*medium.size, space=self.space, resized_width=width, resized_height=height)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        """One token per merged patch of the resized image."""
        width, height = self._resized(processor, width, height)
        factor = _factor(processor.image_processor)
        return (width // factor) * (height // factor)

    def _resized(self, processor: Any, width: int, height: int) -> tuple[int, int]:
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        sizes = processor.image_processor.size
        try:
            high, wide = smart_resize(
                height,
                width,
                factor=_factor(processor.image_processor),
                min_pixels=sizes["shortest_edge"],
                max_pixels=sizes["longest_edge"],
            )
        except ValueError as error:
            raise UserError(f"an image of {width}x{height} pixels is refused: {error}") from error
        return wide, high

    # -------------------------------------------------------------------------------- tokens

    def media_token_ids(self, processor: Any) -> tuple[int, ...]:
        """Ids of the media tokens that the tokenizer knows."""
        ids = (processor.tokenizer.backend_tokenizer.token_to_id(t) for t in self.media_tokens)
        return tuple(i for i in ids if i is not None)

    def stop_token_ids(self, processor: Any) -> tuple[int, ...]:
        """<|im_end|>, <|endoftext|> and the tokenizer's own end token."""
        backend = processor.tokenizer.backend_tokenizer
        ids = [backend.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
        ids.append(processor.tokenizer.eos_token_id)
        return tuple(dict.fromkeys(i for i in ids if i is not None))

    # ------------------------------------------------------------------------------- forward

    def tower_features(self, model: Any, prompts: Sequence[Encoded]) -> ImageFeatures | None:
        """The vision tower over all images of all prompts at once, with gradient."""
        seen = [p.tensors for p in prompts if p.tensors]
        if not seen:
            return None
        visual = model.model.visual
        pixels = torch.cat([t["pixel_values"] for t in seen]).to(model.device, visual.dtype)
        grid = torch.cat([t["image_grid_thw"] for t in seen])
        tokens = (grid.prod(-1) // visual.spatial_merge_size**2).tolist()
        out = visual(pixels, grid_thw=grid.to(model.device), return_dict=True)
        levels = getattr(out, "deepstack_features", ())  # Qwen3-VL only
        return ImageFeatures(
            out.pooler_output.split(tokens), tuple(level.split(tokens) for level in levels)
        )

    def spread(
        self, features: ImageFeatures | None, prompts: Sequence[Encoded], rows: Sequence[int]
    ) -> ImageFeatures | None:
        """The features of every row's images, row after row; None if no row shows an image."""
        if features is None:
            return None
        counts = [len(p.tensors["image_grid_thw"]) if p.tensors else 0 for p in prompts]
        first = [sum(counts[:i]) for i in range(len(counts))]
        images = [first[r] + k for r in rows for k in range(counts[r])]
        return features.pick(images) if images else None

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: ImageFeatures | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Hidden states [B, T, H]; `features` take the image placeholders of `input_ids` in order.

        The language model is called directly: it keeps no `rope_deltas` between calls, and older
        transformers (5.16) cannot be given image features in any other way.
        """
        embeds = model.get_input_embeddings()(input_ids)
        deepstack = {}
        if features is not None:
            places = input_ids == model.config.image_token_id
            merged = torch.cat(features.merged).to(embeds.dtype)
            if (wanted := int(places.sum())) != len(merged):
                raise ValueError(f"{len(merged)} image features for {wanted} placeholders")
            embeds = embeds.masked_scatter(places[..., None], merged)
            if features.deepstack:
                deepstack = {
                    "visual_pos_masks": places,
                    "deepstack_visual_embeds": [torch.cat(level) for level in features.deepstack],
                }
        out = model.model.language_model(
            inputs_embeds=embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=cache is not None,
            **deepstack,
        )
        return out.last_hidden_state


def _factor(image_processor: Any) -> int:
    return image_processor.patch_size * image_processor.merge_size


def _split(ids: Sequence[int], placeholder: int) -> list[list[int]]:
    """The ids cut into runs of text and single placeholders."""
    runs: list[list[int]] = []
    for i in ids:
        if i == placeholder or not runs or runs[-1] == [placeholder]:
            runs.append([i])
        else:
            runs[-1].append(i)
    return runs


def _grid_positions(rows: int, columns: int) -> torch.Tensor:
    """M-RoPE positions [3, rows * columns] of a still image from 0: time, row, column."""
    positions = torch.zeros(3, rows, columns, dtype=torch.long)
    positions[1] = torch.arange(rows)[:, None]
    positions[2] = torch.arange(columns)
    return positions.flatten(1)
