"""The contract of a tool: a frozen dataclass whose fields are options and whose call is the function.

The policy reads its name, its docstring and the type hints of `__call__` as a JSON schema. A tool runs
in a process with a time and a memory limit. `Refused` is what the policy is told; whatever else a tool
raises is a fault: the rollout is masked, neither paid nor punished.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.media_types import Decoded
from vlmrl.schema import Space
from vlmrl.tools import arguments
from vlmrl.tools.views import Shown, View

__all__ = ["Part", "Tool"]

Part = str | Decoded | Shown
"""What a tool returns: a text, an image, a video, audio, or a `Shown` that says where it was cut from."""


@dataclass(frozen=True)
class Tool:
    """A function that the policy may call; `__call__(view, ...)` gets converted arguments."""

    owns_time: ClassVar[bool] = False
    """Whether it runs what the policy wrote, so that running out of time is told to the policy."""
    pure: ClassVar[bool] = True
    """Whether the same call always returns the same, so that a resumed run is exact."""
    waits: ClassVar[bool] = False
    """Whether it asks a server: contract tests then do not call it."""

    def __call__(self, view: View, *args: Any, **kwargs: Any) -> Part | Sequence[Part]:
        """Do what the policy asked for."""
        raise TypeError(f"{type(self).__name__} must define __call__")

    @property
    def function_name(self) -> str:
        """Return the name by which the policy calls it: that of its class in snake_case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def time_limit_s(self) -> float:
        """Return the seconds that a call may take."""
        return 20.0

    def schemas(self, space: Space = "norm1") -> list[dict[str, Any]]:
        """Return its functions in OpenAI's form; `space` is that of the policy's coordinates."""
        paragraph = (inspect.getdoc(type(self)) or "").split("\n\n")[0]
        text = " ".join(paragraph.split())
        return [arguments.schema(self.__call__, self.function_name, text, space)]

    def prepare(self) -> None:
        """Load what the first call needs; runs in each worker process, without a time limit."""

    def call(self, name: str, given: Mapping[str, Any], view: View) -> Part | Sequence[Part]:
        """Call the function of this name with a policy's arguments.

        Raises:
            Refused: the arguments are not those of the function, or it refuses.
        """
        return self(view, **arguments.to_values(self.__call__, given, view.frame))
