"""Mark places on an image: VTool-R1's editing functions as data instead of code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from PIL import Image, ImageDraw

from vlmrl.interaction.tool import Box, Point, Refused, Tool, View
from vlmrl.schema.media import PilImage


@dataclass(frozen=True)
class Draw(Tool):
    """Mark places on a copy of an image: outlines, lines, dots, highlights, and parts to hide.

    Source: VTool-R1, arXiv 2505.19255 (focus by drawing, highlighting and masking, after ReFocus,
    arXiv 2501.05452), where the policy writes Python that is executed; here it writes coordinates.
    """

    colour: str = "#ff0000"
    """Of outlines, lines and dots, as `#rrggbb`."""
    strength: float = 0.3
    """Opacity of a highlight, in (0, 1)."""

    def __post_init__(self) -> None:
        if not 0 < self.strength < 1:
            raise ValueError(f"expected strength in (0, 1), got {self.strength}")

    def __call__(
        self,
        view: View,
        boxes: Annotated[Sequence[Box], "regions to outline"] = (),
        lines: Annotated[Sequence[Sequence[Point]], "lines, each through two or more points"] = (),
        points: Annotated[Sequence[Point], "dots"] = (),
        highlights: Annotated[Sequence[Box], "regions to tint"] = (),
        masks: Annotated[Sequence[Box], "regions to paint over in white"] = (),
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> PilImage:
        """Return the marked copy."""
        if not any((boxes, lines, points, highlights, masks)):
            raise Refused(
                "there is nothing to draw: expected boxes, lines, points, highlights or masks"
            )
        drawn = view.image(image)
        tinted = Image.blend(drawn, Image.new("RGB", drawn.size, self.colour), self.strength)
        pen, thick = ImageDraw.Draw(drawn), max(2, min(drawn.size) // 150)
        for box in masks:
            pen.rectangle(_pixels(drawn, box), fill="white")
        for box in highlights:
            corners = _pixels(drawn, box)
            drawn.paste(tinted.crop(corners), corners)
        for box in boxes:
            pen.rectangle(_pixels(drawn, box), outline=self.colour, width=thick)
        for line in lines:
            pen.line([_pixel(drawn, point) for point in line], fill=self.colour, width=thick)
        for x, y in (_pixel(drawn, point) for point in points):
            pen.ellipse((x - 2 * thick, y - 2 * thick, x + 2 * thick, y + 2 * thick), self.colour)
        return drawn


def _pixel(image: PilImage, point: Point) -> tuple[float, float]:
    return point.x * (image.width - 1), point.y * (image.height - 1)


def _pixels(image: PilImage, box: Box) -> tuple[int, int, int, int]:
    left, top = int(box.x1 * image.width), int(box.y1 * image.height)
    right, bottom = round(box.x2 * image.width), round(box.y2 * image.height)
    return left, top, max(right, left + 1), max(bottom, top + 1)
