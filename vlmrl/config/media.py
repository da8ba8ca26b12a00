"""How videos and recordings are read, before any model family sees them."""

from __future__ import annotations

from pydantic import Field, model_validator

from vlmrl.config.section import Section


class VideoConfig(Section):
    """Which frames are taken of a video, how large they may be, and whether it is heard."""

    fps: float = Field(2.0, gt=0)
    """Frames a second to take."""
    min_frames: int = Field(4, ge=1)
    max_frames: int = Field(64, ge=1)
    max_pixels: int = Field(768 * 28 * 28, ge=1)
    """Of one frame; a larger one is made smaller."""
    total_pixels: int = Field(24576 * 28 * 28, ge=1)
    """Of all frames of a video together, two frames counting as one (they share their tokens)."""
    size_divisor: int = Field(28, ge=1)
    """Sides of frames that are made smaller become multiples of it: patch size times merge size of
    the model (28; Qwen3-VL: 32)."""
    audio: bool | None = None
    """Whether the model hears the videos' own sound; absent: if its family can (Qwen2.5-Omni)."""

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> VideoConfig:
        if self.min_frames > self.max_frames:
            raise ValueError(f"min_frames {self.min_frames} exceeds max_frames {self.max_frames}")
        return self


class AudioConfig(Section):
    """How recordings are read."""

    sampling_rate: int = Field(16000, ge=1)
    """Samples a second that recordings are resampled to; what the model family was trained with."""
    max_duration_s: float = Field(30.0, gt=0)
    """A longer recording is refused, never cut."""
