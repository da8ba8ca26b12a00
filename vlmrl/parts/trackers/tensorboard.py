"""TensorBoard: event files in the run folder, read with `tensorboard --logdir runs`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.runs.tracker import Phase, TrackedRun, Tracker


@dataclass
class Tensorboard(Tracker):
    """Event files under `tensorboard/` of the run folder, one TensorBoard run per phase.

    A resumed run hides what an interrupted one wrote after its last checkpoint.
    """

    extra: ClassVar[str] = "tensorboard"

    _writers: dict[Phase, Any] = field(default_factory=dict, init=False, repr=False)
    _folder: Path = field(default=Path(), init=False, repr=False)
    _hook: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Remember the folder; files are opened with the first step of each phase."""
        self.import_package("tensorboard")
        self._folder = run.folder / "tensorboard"
        if self._hook is None:
            self._hook, threading.excepthook = threading.excepthook, self._report_thread

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        if phase not in self._writers:
            from torch.utils.tensorboard import SummaryWriter  # takes a second to import

            self._writers[phase] = SummaryWriter(str(self._folder / phase), purge_step=step)
        for key, value in metrics.items():
            self._writers[phase].add_scalar(key, value, step)

    def close(self) -> None:
        """Write what is buffered and close the files."""
        try:
            while self._writers:
                self._writers.popitem()[1].close()
        finally:
            if self._hook is not None:
                threading.excepthook, self._hook = self._hook, None

    def _report_thread(self, failed: threading.ExceptHookArgs) -> None:
        """Keep quiet about TensorBoard's thread: `log` raises its error again, for one line."""
        if type(failed.thread).__module__ != "tensorboard.summary.writer.event_file_writer":
            self._hook(failed)
