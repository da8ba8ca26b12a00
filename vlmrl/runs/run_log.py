"""Where the curves of a run go: files and console always, trackers as the config names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from vlmrl import plugins
from vlmrl.config import Config
from vlmrl.config.sections.tracking import hide_secrets
from vlmrl.errors import UserError
from vlmrl.runs import console, run_folder
from vlmrl.runs.metric_glossary import find
from vlmrl.schema import StepReport
from vlmrl.system.atomic_files import append_line, truncate_lines
from vlmrl.trackers.base import TrackedRun, Tracker
from vlmrl.truths.json_form import to_json

__all__ = ["RunLog", "SilentLog"]


class RunLog:
    """Write and show how a run goes; use it as a context manager.

    `step` steps are already done (a resumed run): whatever the run folder holds of later ones is
    dropped, so that every step has exactly one line. A tracker that fails costs one line on the
    console and, at the end, the count of the reports it lost; the run goes on.

    Raises:
        UserError: the config names a tracker that does not exist, or whose package is not installed.
    """

    def __init__(self, config: Config, folder: Path, total_steps: int, step: int = 0) -> None:
        self._config = config
        self._folder = folder
        self._step = step
        self._sft_begun = False
        self._stack = ExitStack()
        self._trackers: dict[str, Tracker] = {
            name: plugins.build("tracker", name, options)
            for name, options in config.tracking.items()
            if isinstance(options, dict)
        }
        self._lost: Counter[str] = Counter()
        title = f"{config.run.name} · {config.algorithm.name} · {folder}"
        self._view = console.view(title, total_steps, step)

    def __enter__(self) -> RunLog:
        with self._stack:  # closes what is open if a later one fails
            self._start_trackers()
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
        """Report one step of the cold start: a line of sft.jsonl."""
        path = run_folder.sft_path(self._folder)
        if not self._sft_begun:
            truncate_lines(path, step - 1)
            self._sft_begun = True
        append_line(path, {"step": step, **to_json(metrics)})
        self._send(lambda tracker: tracker.log("sft", step, metrics))
        assert self._config.sft is not None
        self._view.sft(step, self._config.sft.max_steps, metrics)

    def step(self, report: StepReport) -> None:
        """Report one GRPO step: a line of metrics.jsonl."""
        line = {"step": report.step, **to_json(report.metrics)}
        append_line(run_folder.metrics_path(self._folder), line)
        self._send(lambda tracker: tracker.log("rl", report.step, report.metrics))
        self._view.step(report.step, report.metrics)

    def evaluation(self, step: int, result: Mapping[str, Any]) -> None:
        """Report an evaluation after `step` steps, whose file `write_evaluation` writes."""
        self._send(lambda tracker: tracker.log_evaluation(step, result["metrics"]))
        self._view.evaluation(step, result)

    def message(self, text: str) -> None:
        """Show one line to the person who watches."""
        self._view.message(text)

    # ----------------------------------------------------------------------------------- trackers

    def _start_trackers(self) -> None:
        config = hide_secrets(self._config.model_dump(mode="json"))
        run = TrackedRun(self._config.run.name, self._folder, config, self._step, find)
        for name, tracker in list(self._trackers.items()):
            self._stack.callback(self._close, name, tracker)
            try:
                tracker.start(run)
            except UserError as error:
                raise UserError(f"tracking.{name}: {error}") from error
            except Exception as error:  # a service that cannot be reached must not end the run
                self.message(f"tracker {name!r} is off: {_brief(error)}")
                del self._trackers[name]

    def _send(self, report: Callable[[Tracker], None]) -> None:
        for name, tracker in self._trackers.items():
            try:
                report(tracker)
            except Exception as error:  # as above
                self._lost[name] += 1
                if self._lost[name] == 1:
                    self.message(f"tracker {name!r} lost a report: {_brief(error)}")

    def _close(self, name: str, tracker: Tracker) -> None:
        try:
            tracker.close()
        except Exception as error:  # as above
            self.message(f"tracker {name!r} did not close: {_brief(error)}")
        if self._lost[name]:
            self.message(f"tracker {name!r} lost {self._lost[name]} reports")


class SilentLog(RunLog):
    """The log of ranks that are not the main one: it writes and shows nothing."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sft_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing."""

    def step(self, report: StepReport) -> None:
        """Do nothing."""

    def evaluation(self, step: int, result: Mapping[str, Any]) -> None:
        """Do nothing."""

    def message(self, text: str) -> None:
        """Do nothing."""


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
