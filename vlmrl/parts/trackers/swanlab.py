"""SwanLab: curves on swanlab.cn or on a server of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlmrl.runs.tracker import Phase, TrackedRun, Tracker


@dataclass
class Swanlab(Tracker):
    """Curves in a project of SwanLab; the key is read from SWANLAB_API_KEY.

    A resumed run is a new SwanLab run of the same name. Offline runs, under `swanlab/` of the run
    folder, are sent later with `swanlab sync`.
    """

    extra: ClassVar[str] = "swanlab"
    offline: ClassVar[Mapping[str, str]] = {"SWANLAB_MODE": "offline"}

    project: str = "vlmrl"
    """Project of the run."""
    workspace: str | None = None
    """User or organisation of the project; absent: your default one."""
    mode: Literal["online", "offline"] | None = None
    """Send curves at once, or keep them in the run folder; absent: SWANLAB_MODE, else online."""
    _run: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Begin a SwanLab run."""
        swanlab = self.import_package("swanlab")
        self._run = swanlab.init(
            project=self.project,
            workspace=self.workspace,
            mode=self.mode,
            name=run.name,
            log_dir=str(run.folder / "swanlab"),
            config=dict(run.config),
        )

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Send metrics as `<phase>/<metric>`."""
        self._run.log({f"{phase}/{key}": value for key, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Finish the SwanLab run."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()
