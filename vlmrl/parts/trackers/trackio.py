"""Trackio: curves in a local database, or on a Hugging Face Space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlmrl.runs.tracker import Phase, TrackedRun, Tracker


@dataclass
class Trackio(Tracker):
    """Curves in a project of Trackio, shown by `trackio show`; a resumed run goes on in its own."""

    extra: ClassVar[str] = "trackio"
    offline: ClassVar[Mapping[str, str]] = {"TRACKIO_DIR": "{folder}"}

    project: str = "vlmrl"
    """Project of the run."""
    space: str | None = None
    """Hugging Face Space that shows the curves, `user/name`; absent: this machine only."""
    _run: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Begin a Trackio run, or go on with the one of the same name."""
        trackio = self.import_package("trackio")
        self._run = trackio.init(
            project=self.project,
            name=run.name,
            space_id=self.space,
            config=dict(run.config),
            resume="allow",
            embed=False,
        )

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Send metrics as `<phase>/<metric>`."""
        self._run.log({f"{phase}/{key}": value for key, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Finish the Trackio run."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()
