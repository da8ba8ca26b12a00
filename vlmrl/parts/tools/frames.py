"""Look at more frames of a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from PIL import Image

from vlmrl.interaction.tool import Part, Span, Tool, View


@dataclass(frozen=True)
class Frames(Tool):
    """Look at frames of a stretch of a video, evenly spaced, each with its time.

    They are read from the video's file, so that frames can be seen that the prompt left out.

    Used by: Pixel-Reasoner.
    """

    count: int = 8
    """Frames that are returned at most."""

    def __call__(
        self,
        view: View,
        span: Annotated[Span, "the stretch"],
        video: Annotated[int, "number of the video, from 1"] = 1,
    ) -> Sequence[Part]:
        """Return times and frames."""
        cut = view.video(video, span, self.count)
        parts: list[Part] = []
        for time, frame in zip(cut.times, cut.frames, strict=True):
            parts += [f"{time:.2f} s", Image.fromarray(frame)]
        return parts
