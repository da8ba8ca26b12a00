"""Weights & Biases: curves on wandb.ai or on a server of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlmrl.runs.tracker import Phase, TrackedRun, Tracker


@dataclass
class Wandb(Tracker):
    """Curves in a project of Weights & Biases; the key is read from WANDB_API_KEY.

    A resumed run is a new W&B run of the same name. Offline runs are sent later with `wandb sync`.
    """

    extra: ClassVar[str] = "wandb"
    offline: ClassVar[Mapping[str, str]] = {"WANDB_MODE": "offline"}

    project: str = "vlmrl"
    """Project of the run."""
    entity: str | None = None
    """User or team of the project; absent: your default one."""
    mode: Literal["online", "offline"] | None = None
    """Send curves at once, or keep them in the run folder; absent: WANDB_MODE, else online."""
    _run: Any = field(default=None, init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Begin a W&B run whose files are in the run folder."""
        wandb = self.import_package("wandb")
        run.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.config),
        )
        # W&B's own step must never fall; ours starts again after the cold start.
        for phase in ("sft", "rl"):
            self._run.define_metric(f"{phase}/step")
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Send metrics as `<phase>/<metric>`."""
        self._run.log({f"{phase}/step": step, **{f"{phase}/{k}": v for k, v in metrics.items()}})

    def close(self) -> None:
        """Finish the W&B run, which waits for what is still to be sent."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()
