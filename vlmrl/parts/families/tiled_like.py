"""The base of families with a vision tower of square tiles and plain positions.

An image becomes one or several tiles of one size. The HF processor decides which tiles and which tokens
around them, so it encodes every prompt, and none of its rules are repeated here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models import media_features
from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR, Family, shift
from vlmrl.parts.families.small import image_models
from vlmrl.schema import Encoded, Frame, MediaKind, Space
from vlmrl.schema.media import Decoded, PilImage, Video, kind_of


@dataclass(frozen=True)
class ImageFamily(Family):
    """The base of families that take images as tiles; a subclass computes the features of images."""

    placeholder: ClassVar[str]
    """The token that the chat template writes for an image."""
    placeholders: ClassVar[Mapping[MediaKind, str]] = {}
    """Kind of a medium -> the token that the chat template writes for it, where images are not all."""
    small: ClassVar[image_models.SmallImageModel]
    """The recipe of the family's small models."""

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        model, tokenizer = image_models.build(self.recipe(build), build, corpus, seed)
        processor = self.small_processor(model.config, tokenizer)
        model.generation_config.eos_token_id = list(self.stop_token_ids(processor))
        return model, processor

    def recipe(self, build: BuildConfig) -> image_models.SmallImageModel:
        """Return the recipe with what follows the sizes of a build; the base class changes nothing."""
        return self.small

    def small_processor(self, config: object, tokenizer: object) -> Any:
        """Build the processor of a small model with this config."""
        raise TypeError(f"{type(self).__name__} must define small_processor")

    def image_features(self, model: object, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [..., H] of all images of all prompts, in order."""
        raise TypeError(f"{type(self).__name__} must define image_features")

    # ------------------------------------------------------------------------------- prompts

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Encode a prompt as the HF processor does: ids, `tensor_names`, and positions [1, T] from 0.

        Raises:
            UserError: The numbers of placeholders and images differ, or an image is refused.
        """
        # The tokenizer adds the start token unless the chat template has written it.
        start = processor.tokenizer.bos_token
        special = start is None or not text.startswith(start)
        return self._process(processor, text, media, special)

    def extend(
        self,
        processor: object,
        text: str,
        media: Sequence[Decoded],
        start: float,
        seen: Sequence[Decoded] = (),
    ) -> Encoded:
        """Encode an observation as `encode` does, without a start token; see `Family.extend`."""
        return shift(self._process(processor, text, media, False), start)

    def _process(
        self, processor: Any, text: str, media: Sequence[Decoded], special: bool
    ) -> Encoded:
        compact = processor.tokenizer(text, add_special_tokens=special)["input_ids"]
        self._check_places(text, media)
        try:
            out = processor(
                text=[text],
                **self._shown(processor, media),
                add_special_tokens=special,
                return_tensors="pt",
            )
        except ValueError as error:
            raise UserError(f"the {' and '.join(self.kinds)}s are refused: {error}") from error
        ids = out.pop("input_ids")[0].tolist()
        tensors = {key: out[key] for key in self.tensor_names if key in out}
        positions = torch.arange(len(ids))[None]
        return Encoded(tuple(ids), tuple(compact), tensors, positions, len(ids))

    def _process_apart(
        self,
        processor: Any,
        text: str,
        media: Sequence[Decoded],
        special: bool,
        shown: Sequence[tuple[Mapping[str, torch.Tensor], str]],
    ) -> Encoded:
        """Encode a prompt from what the HF processor makes of each medium alone.

        `shown` are the tensors of each medium, and the text that stands in the place of its placeholder.
        """
        self._check_places(text, media)
        marks = "|".join(map(re.escape, self.placeholders.values()))
        texts = iter([expanded for _, expanded in shown])
        whole = re.sub(marks, lambda _: next(texts), text)
        compact, ids = (
            processor.tokenizer(written, add_special_tokens=special)["input_ids"]
            for written in (text, whole)
        )
        tensors: dict[str, torch.Tensor] = {}
        for own, _ in shown:
            for name, more in own.items():
                kept = tensors.get(name)
                tensors[name] = more if kept is None else self._join_tensors(name, kept, more)
        positions = torch.arange(len(ids))[None]
        return Encoded(tuple(ids), tuple(compact), tensors, positions, len(ids))

    def _show(
        self, processor: Any, medium: Decoded, **settings: Any
    ) -> tuple[dict[str, torch.Tensor], str]:
        """Return what the HF processor makes of a medium alone: its tensors, and the text in its place."""
        shown: dict[str, Any] = {"images": [medium]}
        if isinstance(medium, Video):
            shown = {"videos": [medium.frames], "video_metadata": [medium.metadata]}
            shown |= {"do_sample_frames": False}
        kind = kind_of(medium)
        settings |= {"text": [self.placeholders[kind]], "return_tensors": "pt"}
        try:
            out = processor(**shown, **settings, add_special_tokens=False)
        except ValueError as error:
            raise UserError(f"the {kind} is refused: {error}") from error
        text = processor.tokenizer.decode(out["input_ids"][0])
        return {key: out[key] for key in self.tensor_names if key in out}, text

    def _check_places(self, text: str, media: Sequence[Decoded]) -> None:
        """Raise a UserError unless the text has a placeholder for each medium, in order."""
        kinds = {mark: kind for kind, mark in self.placeholders.items()}
        kinds = kinds or {self.placeholder: "image"}
        # A placeholder is not one token in every tokenizer.
        marks = re.findall("|".join(map(re.escape, kinds)), text)
        media_features.check_places(self.kinds, [kinds[mark] for mark in marks], media)

    def _shown(self, processor: Any, media: Sequence[Decoded]) -> dict[str, Any]:
        """Return the media as the HF processor is to be given them."""
        return {"images": list(media) or None}

    tensor_names: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """The tensors of the HF processor that the tower needs; each family documents their shapes."""

    def frame(self, processor: object, medium: Decoded | None) -> Frame:
        if isinstance(medium, Video):
            return Frame(*medium.original, space=self.space, duration=medium.duration)
        if not isinstance(medium, PilImage):
            return Frame(space=self.space)
        return Frame(*medium.size, space=self.space)

    # ------------------------------------------------------------------------------- forward

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> media_features.ByPrompt | None:
        """Compute the features [tokens, H] of the images of each prompt, with gradient."""
        seen = [p.tensors for p in prompts if p.tensors]
        if not seen:
            return None
        features = self.image_features(model, seen)
        return media_features.split_by_prompt(features, prompts, model.config.image_token_id)


# --------------------------------------------------------------------------------------------------
# The base of families with a SigLIP vision tower.


SIGLIP_VISION = {"vision_use_head": False}
"""Fields of a small model's tower."""


@dataclass(frozen=True)
class SiglipFamily(ImageFamily):
    """The base of families with a SigLIP tower: weights are saved under the published names.

    transformers (5.19) leaves `vision_model` out of the names of the tower, which vLLM refuses.
    """

    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("model.vision_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ENCODER_LINEAR,
        "projector": ("linear_1", "linear_2"),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.encoder.layers",
    )
    shared: ClassVar[bool] = True
    saves_exports: ClassVar[bool] = True

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tiles, tokens, H] of `pixel_values` [tiles, 3, side, side]."""
        pixels = torch.cat([t["pixel_values"] for t in tensors])
        pixels = pixels.to(model.device, model.model.vision_tower.dtype)
        return model.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rename the weights as in published checkpoints, which vLLM expects."""
        return {_published_name(name): value for name, value in named.items()}


RENAMED = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.vision_model.": "vision_tower.vision_model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.": "",
}


def _published_name(name: str) -> str:
    ours = next(prefix for prefix in RENAMED if name.startswith(prefix))
    return RENAMED[ours] + name.removeprefix(ours)


# --------------------------------------------------------------------------------------------------
# The base of SmolVLM and Idefics3: a grid of tiles with row and column tokens, then the whole image.
#
# Their reports publish no format for boxes; Smol2Operator, in which their authors train SmolVLM2 to
# point, uses numbers from 0 to 1.


IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
GRID = 2
"""The largest number of rows and of columns in a small model's grid."""
PLACES = tuple(f"<row_{r + 1}_col_{c + 1}>" for r in range(6) for c in range(6))
SMALL_TOKENS = (IMAGE, AROUND, WHOLE, *(p for p in PLACES if int(p[5]) <= GRID >= int(p[-2])))
"""The media tokens of a small model's tokenizer."""
TURN_END = "<end_of_utterance>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% if message['content'] is string %} {{ message['content'] }}{% else %}"
    "{% if message['content'][0]['type'] != 'image' %} {% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
VISION = {"image_size": 84, "initializer_range": 0.05}
"""Fields of a small model's tower."""


@dataclass(frozen=True)
class IdeficsFamily(ImageFamily):
    """The base of SmolVLM and Idefics3.

    `pixel_values` is float32 [1, tiles, 3, side, side], `pixel_attention_mask` int64
    [1, tiles, side, side].
    """

    space: ClassVar[Space] = "norm1"
    placeholder: ClassVar[str] = IMAGE
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, AROUND, WHOLE, *PLACES)
    language_model: ClassVar[str] = "model.text_model"
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("model.vision_model.",),
        "projector": ("model.connector.",),
        "language": ("model.text_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ENCODER_LINEAR,
        "projector": ("proj",),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.text_model.layers",
        "model.vision_model.encoder.layers",
    )
    shared: ClassVar[bool] = True
    tensor_names: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_attention_mask")

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return torch.cat([before, after], 1)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        images = processor.image_processor
        tiles = 1
        if images.do_image_splitting:
            side = images.max_image_size["longest_edge"]
            longest = images.size["longest_edge"] if images.do_resize else max(width, height)
            tiles = _count_tiles(width, height, longest, side)
        return tiles * processor.image_seq_len

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tokens of all images, H]."""
        pixels, seen = (torch.cat([t[key] for t in tensors], 1) for key in self.tensor_names)
        out = model.model.get_image_features(
            pixel_values=pixels.to(model.device),
            pixel_attention_mask=seen.to(model.device),
            return_dict=True,
        )
        # [tiles, tokens, H]; since transformers 5.20, a list of [tokens, H], one per prompt.
        return torch.cat(tuple(out.pooler_output))


def small_sizes(config: Any) -> dict[str, Any]:
    """Return options of a small image processor: tiles of the tower's size, at most `GRID` per side."""
    side = config.vision_config.image_size
    return {"size": {"longest_edge": GRID * side}, "max_image_size": {"longest_edge": side}}


def tile_tokens(config: Any) -> int:
    """Count the tokens of one tile."""
    vision = config.vision_config
    return (vision.image_size // vision.patch_size // config.scale_factor) ** 2


def _count_tiles(width: int, height: int, longest: int, side: int) -> int:
    """Count tiles with the steps and the arithmetic of the processor itself.

    Its `get_number_of_image_patches` gives slightly different numbers. The longer edge becomes
    `longest`, then both edges are rounded up to whole tiles; if there is more than one tile, the
    whole image is added as one more.
    """
    landscape = width >= height
    ratio = width / height
    long, short = longest, int(longest / ratio if landscape else longest * ratio)
    short = max(short + short % 2, 1)
    ratio = long / short if landscape else short / long
    long = math.ceil(long / side) * side
    short = math.ceil(int(long / ratio if landscape else long * ratio) / side) * side
    if max(long, short) <= side:
        return 1
    return (long // side) * (short // side) + 1
