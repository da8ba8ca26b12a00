"""Where the curves go: files and console always, TensorBoard, W&B and trackio on wish."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal

from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.runs import console, run_folder
from vlmrl.runs.rollout_rows import to_json
from vlmrl.schema import StepReport
from vlmrl.system.atomic_files import append_line, truncate_lines

Phase = Literal["sft", "rl"]
Sink = Callable[[Phase, int, Mapping[str, float]], None]
"""Takes the metrics of one step of one phase; each phase counts its own steps."""


class Tracker:
    """Tells files, console and services how a run goes; use it as a context manager.

    `step` steps are already done (a resumed run): whatever the run folder holds of later ones is
    dropped, so that every step has exactly one line.

    Raises:
        UserError: the config asks for a service whose package is not installed.
    """

    def __init__(self, config: Config, folder: Path, total_steps: int, step: int = 0) -> None:
        self._config = config
        self._folder = folder
        self._step = step
        self._sft_begun = False
        self._stack = ExitStack()
        self._sinks: list[Sink] = []
        title = f"{config.run.name} · {config.algorithm.name} · {folder}"
        self._view = console.view(title, total_steps, step)

    def __enter__(self) -> Tracker:
        tracking = self._config.tracking
        with self._stack:  # closes what is open if a later one fails
            if tracking.tensorboard:
                self._sinks.append(_tensorboard(self._folder, self._stack))
            if tracking.wandb:
                self._sinks.append(_wandb(tracking.wandb, self._config, self._folder, self._stack))
            if tracking.trackio:
                self._sinks.append(_trackio(tracking.trackio, self._config, self._stack))
            run_folder.rewind(self._folder, self._step)
            self._view.start()
            self._stack.callback(self._view.close)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def sft_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step of the cold start: a line of sft.jsonl."""
        path = run_folder.sft_path(self._folder)
        if not self._sft_begun:
            truncate_lines(path, step - 1)
            self._sft_begun = True
        append_line(path, {"step": step, **to_json(metrics)})
        self._send("sft", step, metrics)
        assert self._config.sft is not None
        self._view.sft(step, self._config.sft.max_steps, metrics)

    def step(self, report: StepReport) -> None:
        """One GRPO step: a line of metrics.jsonl."""
        line = {"step": report.step, **to_json(report.metrics)}
        append_line(run_folder.metrics_path(self._folder), line)
        self._send("rl", report.step, report.metrics)
        self._view.step(report.step, report.metrics)

    def evaluation(self, step: int, result: Mapping[str, Any]) -> None:
        """An evaluation after `step` steps; its file is written by `runfolder.write_evaluation`."""
        metrics = {f"evaluation/{key}": value for key, value in result["metrics"].items()}
        self._send("rl", step, metrics)
        self._view.evaluation(step, result)

    def message(self, text: str) -> None:
        """Tell the person something."""
        self._view.message(text)

    def _send(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink(phase, step, metrics)


class Silent(Tracker):
    """The tracker of ranks that are not the main one: it writes and shows nothing."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sft_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def step(self, report: StepReport) -> None:
        """Nothing."""

    def evaluation(self, step: int, result: Mapping[str, Any]) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """Nothing."""


def _tensorboard(folder: Path, stack: ExitStack) -> Sink:
    """Event files under tensorboard/, one run a phase."""
    from torch.utils.tensorboard import SummaryWriter  # takes a second to import

    writers: dict[Phase, SummaryWriter] = {}

    def close() -> None:
        for writer in writers.values():
            writer.close()

    stack.callback(close)

    def send(phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        if phase not in writers:
            # purge_step hides what an interrupted run wrote after its last checkpoint
            writers[phase] = SummaryWriter(str(folder / "tensorboard" / phase), purge_step=step)
        for key, value in metrics.items():
            writers[phase].add_scalar(key, value, step)

    return send


def _wandb(project: str, config: Config, folder: Path, stack: ExitStack) -> Sink:
    wandb = _extra("wandb")
    folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=project,
        name=config.run.name,
        dir=str(folder),
        config=config.model_dump(mode="json"),
    )
    stack.callback(run.finish)
    # W&B's own step must never fall, ours starts again after the cold start
    for phase in ("sft", "rl"):
        run.define_metric(f"{phase}/step")
        run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")

    def send(phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        run.log({f"{phase}/step": step, **{f"{phase}/{k}": v for k, v in metrics.items()}})

    return send


def _trackio(project: str, config: Config, stack: ExitStack) -> Sink:
    trackio = _extra("trackio")
    run = trackio.init(
        project=project,
        name=config.run.name,
        config=config.model_dump(mode="json"),
        resume="allow",
        embed=False,
    )
    stack.callback(run.finish)

    def send(phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        run.log({f"{phase}/{k}": v for k, v in metrics.items()}, step=step)

    return send


def _extra(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise UserError(
            f"tracking.{package} is set, but the package {package!r} is not installed: "
            f"pip install 'vlmrl[{package}]', or remove the key"
        ) from error
