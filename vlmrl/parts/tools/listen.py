"""Hear a stretch of audio again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vlmrl.interaction.tool import Refused, Span, Tool, View
from vlmrl.schema.media import Audio


@dataclass(frozen=True)
class Listen(Tool):
    """Hear a stretch of an audio, or of a video's sound, alone."""

    max_duration_s: float = 30.0
    """Seconds of the longest stretch."""

    def __call__(
        self,
        view: View,
        span: Annotated[Span, "the stretch"],
        audio: Annotated[int, "number of the audio, from 1"] = 1,
    ) -> Audio:
        """Return the stretch."""
        if span.end - span.start > self.max_duration_s:
            long = f"{span.end - span.start:g}"
            raise Refused(f"expected at most {self.max_duration_s:g} seconds, got {long}")
        return view.audio(audio, span)
