"""How clips and recordings are read, before any model family sees them."""

from __future__ import annotations

from pydantic import Field

from vlmrl.config.section import Section


class VideoConfig(Section):
    """Which frames are taken of a clip, and how large they may be."""

    fps: float = Field(2.0, gt=0)
    """Frames a second to take."""
    min_frames: int = Field(4, ge=1)
    max_frames: int = Field(64, ge=1)
    max_pixels: int = Field(768 * 28 * 28, ge=1)
    """Of one frame."""
    total_pixels: int = Field(24576 * 28 * 28, ge=1)
    """Of all frames of a clip together; frames are made smaller to fit."""


class AudioConfig(Section):
    """How recordings are read."""

    rate: int = Field(16000, ge=1)
    """Samples a second that recordings are resampled to; what the model family was trained with."""
    max_seconds: float = Field(30.0, gt=0)
    """A longer recording is refused, never cut."""
