"""Masks in an image: polygons, or run lengths as COCO writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlmrl.answers import geometry
from vlmrl.schema import Frame, Polygon, Space, Truth
from vlmrl.truths import base
from vlmrl.truths.base import PLACES, Claim, Mark, Readers, TruthKind


@dataclass(frozen=True)
class Masks(TruthKind):
    """Masks: polygons `[[x, y], ...]` or COCO RLE `{"size": [h, w], "counts"}`.

    A polygon may also be written `{"polygon": [[x, y], ...]}`. Compressed run lengths are trusted
    in a truth only: they are never read from an answer, and never drawn.
    """

    rank: ClassVar[int] = 40
    form: ClassVar[str] = '{"polygon": [[x, y], ...]}'
    types: ClassVar[tuple[type, ...]] = (Polygon,)
    placed: ClassVar[bool] = True
    listed: ClassVar[bool] = True
    readers: ClassVar[Readers] = {"mask_iou": {}}

    def parse_item(self, value: object, frame: Frame) -> Any:
        if isinstance(value, Mapping) and "polygon" not in value:
            if set(value) != {"size", "counts"}:
                raise ValueError(
                    f'expected a polygon or an RLE {{"size": [h, w], "counts"}}, got {value!r:.80}'
                )
            return dict(value)
        listed = value["polygon"] if isinstance(value, Mapping) else value
        corners = [base.check_numbers(corner, "corner", 2) for corner in base.check_list(listed)]
        if len(corners) < 3:
            raise ValueError(f"expected at least 3 corners of a polygon, got {len(corners)}")
        width, height = geometry.extent(frame)
        return Polygon((x / width, y / height) for x, y in corners)

    def to_json(self, item: Polygon) -> dict[str, Any]:
        return {"polygon": [[x, y] for x, y in item]}

    def convert(self, item: Polygon, frame: Frame) -> Polygon:
        return Polygon(base.scale(item, frame))

    def instruct(self, truth: Truth, space: Space) -> str:
        return f'Write the outline as JSON {{"polygon": [[x, y], ...]}}, {PLACES[space]}.'

    def write(self, truth: Truth, frame: Frame) -> str | None:
        """Write the polygons; None where a mask is run lengths."""
        masks = truth.masks or ()
        if any(isinstance(mask, Mapping) for mask in masks):
            return None
        return base.list_items([{"polygon": base.write_corners(mask, frame)} for mask in masks])

    def draw(self, item: Mapping[str, Any]) -> Iterator[Mark]:
        match item:
            case {"polygon": [*corners]} if all(
                isinstance(corner, list) and len(corner) == 2 for corner in corners
            ):
                numbers = tuple(n for corner in corners for n in corner)
                yield Mark("outline", numbers, item.get("label"))

    def examples(self) -> Iterator[tuple[str, Truth]]:
        outline = Polygon([(0.225, 0.3125), (0.375, 0.325), (0.35, 0.525), (0.2375, 0.5)])
        yield "Outline the dog.", Truth(masks=(outline,))

    def mistake(self, truth: Truth) -> Truth:
        moved = (tuple((min(x + 0.1, 1.0), y) for x, y in mask) for mask in truth.masks or ())
        return replace(truth, masks=tuple(moved))

    def claim(self, truth: Truth, frame: Frame) -> Iterator[Claim]:
        """Yield the polygons; run lengths cannot be written."""
        if self.write(truth, frame) is None:
            return
        for claim in super().claim(truth, frame):
            yield replace(claim, form="polygons")

    def cover(self, x1: float, y1: float, x2: float, y2: float) -> dict[str, Any]:
        return {"polygon": [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]}

    def share(self, truth: Truth) -> float:
        """Return the largest polygon's share of the image; run lengths may cover all of it."""
        masks = truth.masks or ()
        if any(isinstance(mask, Mapping) for mask in masks):
            return 1.0
        return super().share(replace(truth, masks=tuple(map(Polygon, masks))))
