"""The image that places are in, with those of a candidate drawn on it, for a judge to look at.

Nothing that a candidate wrote becomes text in the image, labels of its boxes included: it could speak to
the judge outside of its field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlmrl.media_types import PilImage
from vlmrl.named_models.content import as_seen, image_part, text_part
from vlmrl.schema import Completion, Sample, Seen
from vlmrl.truths.drawn import RED, draw_places, read_places

__all__ = ["Drawn", "MarkedImage", "mark_image"]

Drawn = Literal["answer", "truth"]


@dataclass(frozen=True, slots=True)
class MarkedImage:
    """The `number`th image of a prompt, encoded, with marks drawn: `of_candidate` of them, and `of_truth`."""

    number: int
    of_candidate: int | None
    """None: the candidate's are not drawn; so below."""
    of_truth: int | None
    image: Mapping[str, Any]

    def parts(self, who: str) -> list[Mapping[str, Any]]:
        """Return the parts of a message that show it; `who` names the candidate."""
        drawn = []
        if self.of_candidate is not None:
            drawn.append(f"what {who} says is drawn in red ({self.of_candidate} marks)")
        if self.of_truth is not None:
            drawn.append(f"what is true is drawn in green ({self.of_truth} marks)")
        return [text_part(f"Image {self.number} again: {', '.join(drawn)}:"), self.image]


def mark_image(
    completion: Completion, sample: Sample, seen: Seen, draw: Sequence[Drawn]
) -> MarkedImage | None:
    """Return the image that coordinates of a sample refer to, with what `draw` names; None: there is none."""
    main = sample.main_medium
    if main is None or not isinstance(image := seen.media[main], PilImage):
        return None
    number = sum(isinstance(medium, PilImage) for medium in seen.media[: main + 1])
    of_truth = of_candidate = None
    image = as_seen(image, seen.frames[main])
    if "truth" in draw:
        image, of_truth = draw_places(image, sample.truth, labels=False)
    if "answer" in draw:
        places = read_places(completion.answer or "", completion.frame)
        image, of_candidate = draw_places(image, places, RED, labels=False)
    return MarkedImage(number, of_candidate, of_truth, image_part(image))
