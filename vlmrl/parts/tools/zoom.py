"""Enlarge what is around a point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vlmrl.interaction.tool import Box, Point, Refused, Shown, Tool, View


@dataclass(frozen=True)
class Zoom(Tool):
    """Enlarge what is around a point of an image, to the size of the whole image."""

    max_factor: float = 16.0
    """Largest magnification."""

    def __call__(
        self,
        view: View,
        point: Annotated[Point, "the centre"],
        factor: Annotated[float, "how many times larger"] = 2.0,
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> Shown:
        """Return the surroundings of the point; at an edge the centre moves inward."""
        if not 1 < factor <= self.max_factor:
            raise Refused(
                f"factor: expected more than 1, at most {self.max_factor:g}, got {factor:g}"
            )
        side = 1 / factor
        left = min(max(point.x - side / 2, 0.0), 1 - side)
        top = min(max(point.y - side / 2, 0.0), 1 - side)
        size = view.image(image).size
        return view.crop(image, Box(left, top, left + side, top + side)).resized(*size)
