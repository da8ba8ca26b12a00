"""Have a region read by another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vlmrl.interaction.tool import WHOLE, Box, View
from vlmrl.parts.tools.vision_endpoint import EndpointTool


@dataclass(frozen=True)
class Ocr(EndpointTool):
    """Have the text in a region of an image read by another model.

    The model is behind an OpenAI-style endpoint of yours; no reply from it is a fault.
    """

    prompt: str = "Read all text in this image. Reply with the text alone."
    """What it is asked."""

    def __call__(
        self,
        view: View,
        bbox_2d: Annotated[Box | None, "the region; absent: all of it"] = None,
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> str:
        """Return the text."""
        return self.ask(view.crop(image, bbox_2d or WHOLE), self.prompt)
