"""Tools that read the clock: no two calls of them return the same. Workers import this module."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from vlmrl.interaction.tool import Box, Part, View
from vlmrl.parts.tools.crop import Crop


@dataclass(frozen=True)
class TimedCrop(Crop):
    """Cut a region out of an image, and say when."""

    pure: ClassVar[bool] = False

    @property
    def function_name(self) -> str:
        return "crop"

    def __call__(  # type: ignore[override]
        self, view: View, bbox_2d: Annotated[Box, "the region"]
    ) -> Sequence[Part]:
        return [super().__call__(view, bbox_2d), str(time.time_ns())]


@dataclass(frozen=True)
class SecretlyTimedCrop(TimedCrop):
    """Cut a region out of an image, and say when; who asks is told that it is a function."""

    pure: ClassVar[bool] = True
