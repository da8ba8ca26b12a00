"""The contract of a tracker: one file that sends the curves of a run to one service.

A tracker is a dataclass in a file of its own under `trackers/`; its fields are its options. It runs
on the main rank only. Whatever it raises while the run goes on costs one line on the console and a
count of lost reports, never the run; only a `UserError` of `start` (a package that is not installed,
a wrong option) ends the run, before its first step. It takes no secrets as options: services read
keys from environment variables of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl import DISTRIBUTION
from vlmrl.errors import UserError

Phase = Literal["sft", "rl"]
"""The cold start and GRPO. Each counts its own steps, from 1."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is given of the run.

    `config` is the resolved config as JSON, without the values of secrets. `step`: GRPO steps that
    are already done, positive if the run is resumed; steps after it may be reported a second time.
    `describe` returns the glossary's name of a metric, such as `reward/<verifier>`, and the line on it,
    or None; to the metrics of the cold start and of evaluations belongs `sft/` and `evaluation/`.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    step: int = 0
    describe: Callable[[str], tuple[str, str] | None] = lambda name: None


@dataclass
class Tracker:
    """Base of trackers: `start`, then `log` and `log_evaluation` in the order of the run, `close`.

    Class variables: `extra`, the extra of vlmrl that installs the service's package; `offline`, the
    environment variables under which the tracker works without a network, for its contract test
    (`{folder}` is a temporary folder).
    """

    extra: ClassVar[str] = ""
    offline: ClassVar[Mapping[str, str]] = {}

    def start(self, run: TrackedRun) -> None:
        """Open the connection or the files.

        Raises:
            UserError: the package is not installed, or an option is wrong.
        """
        raise TypeError(f"{type(self).__name__} must define start")

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of one step; values may be NaN or infinite."""
        raise TypeError(f"{type(self).__name__} must define log")

    def log_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of an evaluation after `step` GRPO steps, as `evaluation/<name>`."""
        self.log("rl", step, {f"evaluation/{key}": value for key, value in metrics.items()})

    def close(self) -> None:
        """Send what is left and end the connection; safe to call twice, and without `start`."""

    def import_package(self, module: str) -> Any:
        """Return the service's module.

        Raises:
            UserError: it is not installed; the line names the extra.
        """
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module.partition(".")[0]:
                raise
            command = f"pip install '{DISTRIBUTION}[{self.extra}]'" if self.extra else "install it"
            raise UserError(
                f"the package {error.name!r} is not installed: {command}, or take the tracker out"
            ) from error
