"""Have things found by another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vlmrl.answers import geometry, parsing
from vlmrl.interaction.tool import WHOLE, Refused, View
from vlmrl.parts.tools.vision_endpoint import EndpointTool
from vlmrl.schema import Frame
from vlmrl.system.chat_endpoint import Invalid

MAX_LABEL = 100


@dataclass(frozen=True)
class Detect(EndpointTool):
    """Have all things of a kind found in an image by another model, as boxes.

    The model is behind an OpenAI-style endpoint of yours; no reply, or one without boxes, is a fault.
    Boxes are told in the space in which the policy writes.
    """

    prompt: str = (
        'Find every {label}. Reply with a JSON list of {{"bbox_2d": [x1, y1, x2, y2]}} alone, from 0 to '
        "1000 across and down the image; [] if there is none."
    )
    """What it is asked, `{label}` being what the policy looks for."""

    def __call__(
        self,
        view: View,
        label: Annotated[str, "what to find"],
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> str:
        """Return the boxes."""
        if not label.strip() or len(label) > MAX_LABEL:
            raise Refused(f"label: expected 1 to {MAX_LABEL} characters")
        reply = self.ask(view.crop(image, WHOLE), self.prompt.format(label=label))
        unit_boxes, note = parsing.boxes(reply, Frame(space="norm1000"))
        if not unit_boxes and not parsing.says_nothing(reply):
            raise Invalid(f"expected boxes, got {reply!r:.80} ({note})")
        frame = view.frame("image", image)
        boxes = [[round(n, 3) for n in geometry.from_unit(box, frame)] for box in unit_boxes]
        return f"{label}: {boxes}" if boxes else f"{label}: none found"
