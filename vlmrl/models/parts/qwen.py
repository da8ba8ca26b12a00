"""What Qwen2-VL, Qwen2.5-VL and Qwen3-VL share: prompts, sizes, M-RoPE positions, towers run once.

The three differ in the vision tower, in the convention for coordinates and in what a small model of
them looks like; that is what their own files say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.media_types import Decoded, PilImage, Video, kind_of
from vlmrl.models.base import Family
from vlmrl.models.parts.chat import CHATML_ENDS, user_turn
from vlmrl.models.parts.media_features import placed, shown
from vlmrl.models.parts.qwen_layout import Layout, fitting, runs, video_pixels
from vlmrl.models.small import qwen_models
from vlmrl.schema import Encoded, Frame, MediaKind, Sample

IMAGE = "<|image_pad|>"
PIXELS = ("pixel_values", "pixel_values_videos")
GRIDS = ("image_grid_thw", "video_grid_thw")


@dataclass(frozen=True, slots=True)
class MediaFeatures:
    """Features of some images and videos, in order: `merged[i]` [tokens, H], `deepstack[level][i]` likewise.

    Only Qwen3-VL has DeepStack levels: level k is added to the output of decoder layer k.
    """

    merged: tuple[torch.Tensor, ...]
    deepstack: tuple[tuple[torch.Tensor, ...], ...] = ()

    def pick(self, media: Sequence[int]) -> MediaFeatures:
        """The features of these media, in this order; one may come more than once."""
        return MediaFeatures(
            tuple(self.merged[i] for i in media),
            tuple(tuple(level[i] for i in media) for level in self.deepstack),
        )


@dataclass(frozen=True)
class MropeFamily(Family):
    """Base of the Qwen vision-language families."""

    kinds: ClassVar[tuple[MediaKind, ...]] = ("image", "video")

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
    turn_ends: ClassVar[tuple[str, ...]] = CHATML_ENDS
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

    small: ClassVar[qwen_models.Small]
    """What a small model of the family looks like."""

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """A small model of this architecture, see `Family.build`."""
        return qwen_models.build(self.small, build, corpus, seed)

    # ------------------------------------------------------------------------------- prompts

    def render(self, processor: Any, sample: Sample, instruction: str) -> str:
        """See `user_turn`."""
        return user_turn(self, processor, sample, instruction)

    def adopt(self, processor: Any, config: Any) -> None:
        """The processor learns how many positions a second has, and that `data.video` bounds pixels."""
        processor.tokens_per_second = getattr(config.vision_config, "tokens_per_second", 1)
        if hasattr(processor.video_processor, "cap_pixels_per_frame"):
            processor.video_processor.cap_pixels_per_frame = False

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Ids, pixels and M-RoPE positions of one prompt; equal to what the HF processor makes.

        `pixel_values` is float32 [patches, channels * time * patch * patch], `image_grid_thw` int64
        [images, 3] in patches; of videos `pixel_values_videos` and `video_grid_thw`.

        Raises:
            UserError: an image or frames of a shape that the model refuses.
        """
        kinds = {getattr(processor, f"{kind}_token_id"): kind for kind in self.kinds}
        compact = processor.tokenizer(text)["input_ids"]
        places = [kinds[i] for i in compact if i in kinds]
        shown = [kind_of(medium) for medium in media]
        if places != shown:
            wanted = ", ".join(
                f"{places.count(k)} {k} placeholders for {shown.count(k)} {k}s"
                for k in kinds.values()
            )
            raise UserError(f"the prompt has {wanted}, or they stand in another order")
        videos = [m for m in media if isinstance(m, Video)]
        tensors, grids = self._pixels(processor, [m for m in media if isinstance(m, PilImage)])
        for video in videos:
            self._video_size(processor, video)
        more, video_grids = video_pixels(processor, videos)
        sounds, lengths = self._sounds(processor, media)
        waiting, pairs = iter(grids), iter(zip(videos, video_grids, strict=True))
        merge, layout = processor.image_processor.merge_size, Layout()
        for run in runs(compact, tuple(kinds)):
            kind = kinds.get(run[0])
            if kind is None:
                layout.text(run)
            elif kind == "image":
                _, rows, columns = next(waiting)
                layout.grid(run[0], 1, rows // merge, columns // merge)
            elif kind == "audio":
                layout.text(run * next(lengths))
            else:
                video, (times, rows, columns) = next(pairs)
                grid = (times, rows // merge, columns // merge)
                self._lay_video(processor, layout, video, grid, next(lengths))
        return Encoded(
            ids=tuple(layout.ids),
            compact_ids=tuple(compact),
            tensors={**tensors, **more, **sounds},
            position_ids=layout.positions,
            next_position=int(layout.positions.max()) + 1,
        )

    def _sounds(
        self, processor: Any, media: Sequence[Decoded]
    ) -> tuple[dict[str, torch.Tensor], Iterator[int]]:
        """Tensors of what is heard of the media; of each video and recording, as how many tokens."""
        return {}, itertools.repeat(0)

    def _lay_video(
        self, processor: Any, layout: Layout, video: Video, grid: tuple[int, int, int], heard: int
    ) -> None:
        """A video as one grid; its steps in time are as far apart as the family counts.

        `heard` is the number of tokens of its sound, 0 for families that do not hear videos.
        """
        layout.grid(processor.video_token_id, *grid, self._time_step(processor, video))

    def _time_step(self, processor: Any, video: Video) -> float:
        """Positions from one step of a video's grid in time to the next."""
        return 1.0

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
        """Original and resized size of the first medium, with the family's space for coordinates."""
        if isinstance(medium, Video):
            width, height = self._video_size(processor, medium)
            return Frame(
                *medium.original,
                space=self.space,
                resized_width=width,
                resized_height=height,
                duration=medium.duration,
            )
        if not isinstance(medium, PilImage):
            return Frame(space=self.space)
        width, height = self._resized(processor, *medium.size)
        return Frame(*medium.size, space=self.space, resized_width=width, resized_height=height)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        """One token per merged patch of the resized image."""
        width, height = self._resized(processor, width, height)
        factor = _factor(processor.image_processor)
        return (width // factor) * (height // factor)

    def _video_size(self, processor: Any, video: Video) -> tuple[int, int]:
        """(width, height) in pixels that the model sees of a video's frames."""
        from transformers.models.qwen2_vl.video_processing_qwen2_vl import smart_resize

        return fitting(smart_resize, processor.video_processor, video, video.size[::-1])

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

    # ------------------------------------------------------------------------------- forward

    def visual(self, model: Any) -> Any:
        """The vision tower."""
        return model.model.visual

    def language(self, model: Any) -> Any:
        """The decoder, to which embeddings are given."""
        return model.model.language_model

    def tower_features(self, model: Any, prompts: Sequence[Encoded]) -> MediaFeatures | None:
        """The vision tower over all images and videos of all prompts at once, with gradient."""
        media = [medium for p in prompts for medium in _media(model.config, p)]
        if not media:
            return None
        visual = self.visual(model)
        pixels = torch.cat([pixels for pixels, _ in media]).to(model.device, visual.dtype)
        grid = torch.stack([grid for _, grid in media])
        tokens = (grid.prod(-1) // visual.spatial_merge_size**2).tolist()
        out = visual(pixels, grid_thw=grid.to(model.device), return_dict=True)
        levels = getattr(out, "deepstack_features", ())  # Qwen3-VL only
        return MediaFeatures(
            out.pooler_output.split(tokens), tuple(level.split(tokens) for level in levels)
        )

    def spread(
        self, features: MediaFeatures | None, prompts: Sequence[Encoded], rows: Sequence[int]
    ) -> MediaFeatures | None:
        """The features of every row's media, row after row; None if no row shows any."""
        if features is None:
            return None
        media = shown(prompts, GRIDS, rows)
        return features.pick(media) if media else None

    def embedded(
        self, model: Any, input_ids: torch.Tensor, features: MediaFeatures | None
    ) -> torch.Tensor:
        """Embeddings [B, T, H] before images and videos take their places."""
        return model.get_input_embeddings()(input_ids)

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: MediaFeatures | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Hidden states [B, T, H]; `features` take the image placeholders of `input_ids` in order.

        The language model is called directly: it keeps no `rope_deltas` between calls, and older
        transformers (5.16) cannot be given image features in any other way.
        """
        embeds = self.embedded(model, input_ids, features)
        deepstack = {}
        if features is not None and features.merged:
            places = (input_ids == model.config.image_token_id) | (
                input_ids == model.config.video_token_id
            )
            embeds = placed(embeds, places, features.merged)
            if features.deepstack:
                deepstack = {
                    "visual_pos_masks": places,
                    "deepstack_visual_embeds": [torch.cat(level) for level in features.deepstack],
                }
        out = self.language(model)(
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


def _media(config: Any, prompt: Encoded) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pixels [patches, dim] and grid [3] of each image and video, in the prompt's order."""
    by_token = {}
    names = zip(("image_token_id", "video_token_id"), PIXELS, GRIDS, strict=True)
    for token, pixels, grids in names:
        grid = prompt.tensors.get(grids, torch.zeros(0, 3, dtype=torch.long))
        cut = prompt.tensors[pixels].split(grid.prod(-1).tolist()) if len(grid) else ()
        by_token[getattr(config, token)] = iter(zip(cut, grid, strict=True))
    return [next(by_token[i]) for i in prompt.compact_ids if i in by_token]
