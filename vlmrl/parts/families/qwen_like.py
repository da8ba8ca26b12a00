"""The base of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: prompts, sizes, M-RoPE positions, towers.

The three differ in the vision tower, in the coordinate space and in their small models; those are in
their own files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models.base import Family
from vlmrl.models.chat import CHATML_ENDS
from vlmrl.models.media_features import (
    check_places,
    media_of_rows,
    place_features,
    stand_alone,
)
from vlmrl.parts.families.small import qwen_models
from vlmrl.schema import Encoded, Frame, MediaKind, Prompt
from vlmrl.schema.media import Decoded, PilImage, Video

# --------------------------------------------------------------------------------------------------
# The layout of a Qwen prompt: expanded ids with M-RoPE positions, medium by medium.


class PromptLayout:
    """The ids and positions of a prompt while it is being laid out.

    The next piece begins one past the LARGEST position so far, as in Qwen's own code and vLLM;
    transformers (5.4 to at least 5.23) continues from a video's rows and columns alone, so that text
    after a long video would share positions with its frames.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._pieces: list[torch.Tensor] = []
        self.start: float = 0
        """The next position; Qwen3-Omni has fractions."""

    @property
    def positions(self) -> torch.Tensor:
        """The positions [3, T]: time, row, column."""
        return torch.cat(self._pieces, dim=1)

    def text(self, ids: Sequence[int]) -> None:
        """Append ids at consecutive positions, the same on all axes."""
        self.ids += ids
        self._pieces.append(torch.arange(self.start, self.start + len(ids)).expand(3, -1))
        self.start += len(ids)

    def grid(self, token: int, times: int, rows: int, columns: int, step: float = 1.0) -> None:
        """Append a placeholder per cell of a grid; frames are `step` positions apart in time."""
        indices = np.indices((times, rows, columns))
        indices[0] = (indices[0] * step).astype(np.int64)
        places = torch.from_numpy(indices.reshape(3, -1)) + self.start
        self.put([token] * places.shape[1], places)

    def put(self, ids: Sequence[int], places: torch.Tensor) -> None:
        """Append ids at these positions [3, N]; the next piece begins one past the largest of them."""
        self.ids += ids
        self._pieces.append(places)
        self.start = places.max().item() + 1


def seconds_per_grid(processor: Any, video: Video) -> float:
    """Return the seconds that one step of the grid spans, as the HF processor computes it (float32)."""
    meta = video.paired().metadata
    rate = len(meta["frames_indices"]) / meta["total_num_frames"] * meta["fps"]
    return float(np.float32(processor.video_processor.temporal_patch_size / rate))


def fit_size(
    smart_resize: Callable[..., tuple[int, int]],
    processor: Any,
    kind: str,
    *sizes: int,
    **more: int,
) -> tuple[int, int]:
    """Return the (width, height) to which the processor of images or videos resizes one of these sizes.

    `sizes` are the leading arguments of its `smart_resize`, of which the last are height and width.

    Raises:
        UserError: `smart_resize` refuses them.
    """
    try:
        high, wide = smart_resize(
            *sizes,
            factor=processor.patch_size * processor.merge_size,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
            **more,
        )
    except ValueError as error:
        raise UserError(f"{kind} of {sizes[-1]}x{sizes[-2]} pixels is refused: {error}") from error
    return wide, high


# --------------------------------------------------------------------------------------------------


IMAGE = "<|image_pad|>"
PIXELS = ("pixel_values", "pixel_values_videos")
GRIDS = ("image_grid_thw", "video_grid_thw")


@dataclass(frozen=True, slots=True)
class MediaFeatures:
    """Features of images and videos, in order: `merged[i]` and `deepstack[level][i]`, each [tokens, H].

    Only Qwen3-VL has DeepStack levels: level k is added to the output of decoder layer k.
    """

    merged: tuple[torch.Tensor, ...]
    deepstack: tuple[tuple[torch.Tensor, ...], ...] = ()

    def pick(self, media: Sequence[int]) -> MediaFeatures:
        """Return the features of these media, in this order; a medium may occur more than once."""
        return MediaFeatures(
            tuple(self.merged[i] for i in media),
            tuple(tuple(level[i] for i in media) for level in self.deepstack),
        )


@dataclass(frozen=True)
class MropeFamily(Family):
    """The base of the Qwen vision-language families."""

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

    small: ClassVar[qwen_models.SmallQwenModel]
    """The recipe of the family's small models."""

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        model, processor = qwen_models.build(self.small, build, corpus, seed)
        model.generation_config.eos_token_id = list(self.stop_token_ids(processor))
        return model, processor

    # ------------------------------------------------------------------------------- prompts

    def adopt(self, processor: Any, config: Any) -> None:
        """Store the positions per second on the processor, and leave the pixel limit to `data.video`."""
        processor.tokens_per_second = getattr(config.vision_config, "tokens_per_second", 1)
        if hasattr(processor.video_processor, "cap_pixels_per_frame"):
            processor.video_processor.cap_pixels_per_frame = False

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Encode a prompt as ids, pixels and M-RoPE positions, equal to those of the HF processor.

        `pixel_values` is float32 [patches, channels * time * patch * patch], `image_grid_thw` int64
        [images, 3] in patches; for videos, `pixel_values_videos` and `video_grid_thw`.

        Raises:
            UserError: The placeholders do not match the media, or the model refuses the shape of an
                image or a video.
        """
        kinds = {getattr(processor, f"{kind}_token_id"): kind for kind in self.kinds}
        compact = processor.tokenizer(text)["input_ids"]
        check_places(self.kinds, [kinds[i] for i in compact if i in kinds], media)
        videos = [m for m in media if isinstance(m, Video)]
        tensors, grids = self._pixels(processor, [m for m in media if isinstance(m, PilImage)])
        more, video_grids = self._frames(processor, videos)
        audio_tensors, lengths = self._encode_audio(processor, media)
        waiting, pairs = iter(grids), iter(zip(videos, video_grids, strict=True))
        merge, layout = processor.image_processor.merge_size, PromptLayout()
        for kind, run in itertools.groupby(compact, kinds.get):
            if kind is None:
                layout.text([*run])
                continue
            for token in run:
                if kind == "image":
                    _, rows, columns = next(waiting)
                    layout.grid(token, 1, rows // merge, columns // merge)
                elif kind == "audio":
                    layout.text([token] * next(lengths))
                else:
                    video, (times, rows, columns) = next(pairs)
                    grid = (times, rows // merge, columns // merge)
                    self._lay_video(processor, layout, video, grid, next(lengths))
        return Encoded(
            ids=tuple(layout.ids),
            compact_ids=tuple(compact),
            tensors={**tensors, **more, **audio_tensors},
            position_ids=layout.positions,
            next_position=layout.positions.max().item() + 1,
        )

    def _encode_audio(
        self, processor: object, media: Sequence[Decoded]
    ) -> tuple[dict[str, torch.Tensor], Iterator[int]]:
        """Return the audio tensors of the media, and the number of audio tokens of each video and audio."""
        return {}, itertools.repeat(0)

    def _lay_video(
        self,
        processor: Any,
        layout: PromptLayout,
        video: Video,
        grid: tuple[int, int, int],
        audio_tokens: int,
    ) -> None:
        """Lay out a video as one grid whose steps in time are `_time_step` positions apart.

        `audio_tokens` is the number of tokens of its audio, 0 for families that do not take it.
        """
        layout.grid(processor.video_token_id, *grid, self._time_step(processor, video))

    def _time_step(self, processor: object, video: Video) -> float:
        """Return the distance in positions between two steps in time of a video's grid."""
        return 1.0

    def _pixels(
        self, processor: Any, images: Sequence[Any]
    ) -> tuple[dict[str, torch.Tensor], list[tuple[int, int, int]]]:
        if not images:
            return {}, []
        for image in images:
            self._fit_image(processor, *image.size)
        out = processor.image_processor(images=list(images), return_tensors="pt")
        grid = out["image_grid_thw"]
        return {"pixel_values": out["pixel_values"], "image_grid_thw": grid}, grid.tolist()

    def _frames(
        self, processor: Any, videos: Sequence[Video]
    ) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
        if not videos:
            return {}, []
        for video in videos:
            self._fit_video(processor, video)
        out = processor.video_processor(
            videos=[video.paired().frames for video in videos],
            video_metadata=[video.paired().metadata for video in videos],
            do_sample_frames=False,
            return_tensors="pt",
        )
        grid = out["video_grid_thw"]
        tensors = {"pixel_values_videos": out["pixel_values_videos"], "video_grid_thw": grid}
        return tensors, grid.tolist()

    # --------------------------------------------------------------------------------- sizes

    def served(self, processor: object, prompt: Prompt) -> Prompt:
        """Return the prompt with an even number of frames in each video, as the model sees them."""
        media = (m.paired() if isinstance(m, Video) else m for m in prompt.media)
        return replace(prompt, media=tuple(media))

    def frame(self, processor: object, medium: Decoded | None) -> Frame:
        """Return the original and resized size of the first medium, with the family's space."""
        if isinstance(medium, Video):
            width, height = self._fit_video(processor, medium)
            return Frame(
                *medium.original,
                space=self.space,
                resized_width=width,
                resized_height=height,
                duration=medium.duration,
            )
        if not isinstance(medium, PilImage):
            return Frame(space=self.space)
        width, height = self._fit_image(processor, *medium.size)
        return Frame(*medium.size, space=self.space, resized_width=width, resized_height=height)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        width, height = self._fit_image(processor, width, height)
        factor = processor.image_processor.patch_size * processor.image_processor.merge_size
        return (width // factor) * (height // factor)

    def _fit_video(self, processor: Any, video: Video) -> tuple[int, int]:
        """Return the (width, height) in pixels to which the processor resizes a video's frames."""
        from transformers.models.qwen2_vl.video_processing_qwen2_vl import smart_resize

        return fit_size(smart_resize, processor.video_processor, "a video", *video.size[::-1])

    def _fit_image(self, processor: Any, width: int, height: int) -> tuple[int, int]:
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        return fit_size(smart_resize, processor.image_processor, "an image", height, width)

    # ------------------------------------------------------------------------------- forward

    def visual(self, model: Any) -> Any:
        """Return the vision tower."""
        return model.model.visual

    def language(self, model: Any) -> Any:
        """Return the decoder, which takes embeddings."""
        return model.model.language_model

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> MediaFeatures | None:
        """Run the vision tower on all images and videos of all prompts at once, with gradient."""
        media = [medium for p in prompts for medium in _media(model.config, p)]
        if not media:
            return None
        visual = self.visual(model)
        pixels = torch.cat([pixels for _, pixels, _ in media]).to(model.device, visual.dtype)
        grid = torch.stack([grid for _, _, grid in media])
        tokens = (grid.prod(-1) // visual.spatial_merge_size**2).tolist()
        out = visual(pixels, grid_thw=self._seen_grids(grid).to(model.device), return_dict=True)
        levels = getattr(out, "deepstack_features", ())  # Qwen3-VL only
        return MediaFeatures(
            out.pooler_output.split(tokens), tuple(level.split(tokens) for level in levels)
        )

    def _seen_grids(self, grids: torch.Tensor) -> torch.Tensor:
        """Return the grids [N, 3] inside which the tower attends, of the media's grids [M, 3]."""
        return grids

    def media_of(self, model: Any, prompt: Encoded) -> list[Encoded]:
        names = {
            model.config.image_token_id: (PIXELS[0], GRIDS[0]),
            model.config.video_token_id: (PIXELS[1], GRIDS[1]),
        }
        return [
            stand_alone(token, dict(zip(names[token], (pixels, grid[None]), strict=True)))
            for token, pixels, grid in _media(model.config, prompt)
        ]

    def join_features(self, found: Sequence[Sequence[MediaFeatures]]) -> MediaFeatures:
        media = [medium for of_prompt in found for medium in of_prompt]
        # Audio has none.
        levels = zip(*(medium.deepstack for medium in media if medium.merged), strict=True)
        return MediaFeatures(
            tuple(itertools.chain.from_iterable(medium.merged for medium in media)),
            tuple(tuple(itertools.chain.from_iterable(level)) for level in levels),
        )

    def spread(
        self, features: MediaFeatures | None, prompts: Sequence[Encoded], rows: Sequence[int]
    ) -> MediaFeatures | None:
        if features is None:
            return None
        media = media_of_rows(prompts, GRIDS, rows)
        return features.pick(media) if media else None

    def embed(
        self, model: Any, input_ids: torch.Tensor, features: MediaFeatures | None
    ) -> torch.Tensor:
        """Return the embeddings [B, T, H] before features of images and videos are put in."""
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
        """Compute hidden states [B, T, H]; `features` replace the placeholders of `input_ids` in order.

        The language model is called directly: it keeps no `rope_deltas` between calls, and older
        transformers (5.16) takes image features in no other way.
        """
        embeds = self.embed(model, input_ids, features)
        deepstack = {}
        if features is not None and features.merged:
            places = (input_ids == model.config.image_token_id) | (
                input_ids == model.config.video_token_id
            )
            embeds = place_features(embeds, places, features.merged)
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


def _media(config: object, prompt: Encoded) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """Return of each image and video, in prompt order, its token, pixels [patches, dim] and grid [3]."""
    by_token = {}
    names = zip(("image_token_id", "video_token_id"), PIXELS, GRIDS, strict=True)
    for token, pixels, grids in names:
        grid = prompt.tensors.get(grids, torch.zeros(0, 3, dtype=torch.long))
        cut = prompt.tensors[pixels].split(grid.prod(-1).tolist()) if len(grid) else ()
        by_token[getattr(config, token)] = iter(zip(cut, grid, strict=True))
    return [(i, *next(by_token[i])) for i in prompt.compact_ids if i in by_token]
