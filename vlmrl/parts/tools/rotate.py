"""Turn an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from PIL import Image

from vlmrl.interaction.tool import Tool, View
from vlmrl.schema.media import PilImage


@dataclass(frozen=True)
class Rotate(Tool):
    """Turn an image clockwise, for text that is sideways or upside down.

    The corners of a slanted image are white.
    """

    def __call__(
        self,
        view: View,
        degrees: Annotated[float, "clockwise"],
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> PilImage:
        """Return the turned image."""
        turned = view.image(image)
        quarters = {90.0: Image.Transpose.ROTATE_270, 180.0: Image.Transpose.ROTATE_180}
        quarters[270.0] = Image.Transpose.ROTATE_90
        if (exact := quarters.get(degrees % 360)) is not None:
            return turned.transpose(exact)
        bicubic = Image.Resampling.BICUBIC
        return turned.rotate(-degrees % 360, bicubic, expand=True, fillcolor=(255, 255, 255))
