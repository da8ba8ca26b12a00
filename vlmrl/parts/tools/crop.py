"""Look at a region of an image again, at the size that the original has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vlmrl.interaction.tool import Box, Shown, Tool, View


@dataclass(frozen=True)
class Crop(Tool):
    """Cut a region out of an image and look at it in full detail.

    A crop of a crop is cut from the original image. A region smaller than `min_side` is enlarged.

    Used by: DeepEyes, Pixel-Reasoner, Mini-o3.
    """

    min_side: int = 28
    """Pixels that the shorter side has at least."""

    def __call__(
        self,
        view: View,
        bbox_2d: Annotated[Box, "the region"],
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> Shown:
        """Return the region."""
        return view.crop(image, bbox_2d).at_least(self.min_side)
