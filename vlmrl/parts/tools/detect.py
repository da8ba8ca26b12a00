"""Have things found by another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from vlmrl.answers import geometry, parsing
from vlmrl.interaction.tool import Refused, Tool, View
from vlmrl.parts.tools.vision_endpoint import WHOLE, ask
from vlmrl.schema import Frame
from vlmrl.system.chat_endpoint import Invalid

MAX_LABEL = 100


@dataclass(frozen=True)
class Detect(Tool):
    """Have all things of a kind found in an image by another model, as boxes.

    The model is behind an OpenAI-style endpoint of yours; no reply, or one without boxes, is a fault.
    Boxes are told in the space in which the policy writes.
    """

    pure: ClassVar[bool] = False
    waits: ClassVar[bool] = True

    url: str
    """Base address of the endpoint, `http://localhost:8000/v1`."""
    model: str = "default"
    """Name of the model there."""
    prompt: str = (
        'Find every {label}. Reply with a JSON list of {{"bbox_2d": [x1, y1, x2, y2]}} alone, from 0 to '
        "1000 across and down the image; [] if there is none."
    )
    """What it is asked, `{label}` being what the policy looks for."""
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
        label: Annotated[str, "what to find"],
        image: Annotated[int, "number of the image, from 1"] = 1,
    ) -> str:
        """Return the boxes."""
        if not label.strip() or len(label) > MAX_LABEL:
            raise Refused(f"label: expected 1 to {MAX_LABEL} characters")
        prompt = self.prompt.format(label=label)
        shown = view.crop(image, WHOLE)
        reply = ask(self.url, self.model, shown, prompt, self.key_variable, self.timeout_s)
        unit_boxes, note = parsing.boxes(reply, Frame(space="norm1000"))
        if not unit_boxes and not parsing.says_nothing(reply):
            raise Invalid(f"expected boxes, got {reply!r:.80} ({note})")
        frame = view.frame("image", image)
        boxes = [[round(n, 3) for n in geometry.from_unit(box, frame)] for box in unit_boxes]
        return f"{label}: {boxes}" if boxes else f"{label}: none found"
