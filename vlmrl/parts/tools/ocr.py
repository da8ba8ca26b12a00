"""Have a region read by another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from vlmrl.interaction.tool import Box, Tool, View
from vlmrl.parts.tools.vision_endpoint import WHOLE, ask


@dataclass(frozen=True)
class Ocr(Tool):
    """Have the text in a region of an image read by another model.

    The model is behind an OpenAI-style endpoint of yours; no reply from it is a fault.
    """

    pure: ClassVar[bool] = False
    waits: ClassVar[bool] = True

    url: str
    """Base address of the endpoint, `http://localhost:8000/v1`."""
    model: str = "default"
    """Name of the model there."""
    prompt: str = "Read all text in this image. Reply with the text alone."
    """What it is asked."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the key; unset: none is sent."""
    timeout_s: float = 30.0
    """Seconds that a reply may take."""

    @property
    def time_limit_s(self) -> float:
        """Return the seconds that a call may take."""
        return self.timeout_s + 5

    def __call__(
        self,
        view: View,
        bbox_2d: Annotated[Box | None, "the region; absent: all of it"] = None,
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> str:
        """Return the text."""
        region = view.crop(image, bbox_2d or WHOLE)
        return ask(self.url, self.model, region, self.prompt, self.key_variable, self.timeout_s)
