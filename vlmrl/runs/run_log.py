"""Where the curves of a run go: files and the command's output always, trackers as the config names them."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from vlmrl import plugins
from vlmrl.config import Config
from vlmrl.config.sections.run import hide_secrets
from vlmrl.errors import UserError
from vlmrl.runs import run_folder
from vlmrl.runs.complaints import complain, complain_of_evaluation
from vlmrl.runs.metrics import find, rank_value, step_seconds
from vlmrl.runs.output.events import ColdStartStep, Evaluated, Noted, Saved, Started, Step, Warned
from vlmrl.runs.output.outputs import Activity, Output
from vlmrl.runs.tracker import TrackedRun, Tracker
from vlmrl.schema import StepReport
from vlmrl.system import distributed
from vlmrl.system.files import append_line, truncate_lines
from vlmrl.truths.json_form import to_json

SILENT = Output()
LAST_STEPS = 20
"""Last steps whose median is taken: one slow step does not count, and a change is seen soon."""
LAST_BESIDES = 5
"""Last evaluations and checkpoints whose median is taken."""


class RunLog:
    """Write and show how a run goes, on the main rank alone; use it as a context manager.

    `step` steps are already done (a resumed run): whatever the run folder holds of later ones is
    dropped, so that every step has exactly one line. A tracker that fails costs a warning and, at the
    end, the count of the reports it lost; the run goes on. `output` says all of it.

    Raises:
        UserError: the config names a tracker that does not exist, or whose package is not installed.
    """

    def __init__(
        self, config: Config, folder: Path, total_steps: int, step: int = 0, output: Output = SILENT
    ) -> None:
        self._config = config
        self._folder = folder
        self._step = step
        self._sft_begun: tuple[int, float] | None = None
        """The first step of the cold start and when it was done."""
        self._stack = ExitStack()
        self._is_main = distributed.is_main()
        self._trackers: dict[str, Tracker] = {
            name: plugins.build("tracker", name, options)
            for name, options in config.tracking.items()
            if isinstance(options, dict) and self._is_main
        }
        self._lost: Counter[str] = Counter()
        self._total = total_steps
        self._output = output if self._is_main else SILENT
        evaluation = config.evaluation
        self._metric = evaluation.metric if evaluation else "reward"
        every = {"checkpoint": config.run.save_every}
        self._time_left = TimeLeft(
            total_steps, every | ({"evaluate": evaluation.every} if evaluation else {})
        )

    def __enter__(self) -> RunLog:
        with self._stack:  # closes what is open if a later one fails
            if self._is_main:
                self._start_trackers()
                run_folder.rewind(self._folder, self._step)
            run = self._config.run.name, self._config.algorithm.name, self._folder
            self._output.say(Started(*run, self._step, self._total))
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
        if not self._is_main:
            return
        path = run_folder.sft_path(self._folder)
        now = time.monotonic()
        if self._sft_begun is None:
            truncate_lines(path, step - 1)
            self._sft_begun = step, now
        append_line(path, {"step": step, **to_json(metrics)})
        self._send(lambda tracker: tracker.log("sft", step, metrics))
        assert self._config.sft is not None
        (first, begin), total = self._sft_begun, self._config.sft.total_steps
        left = (now - begin) / (step - first) * (total - step) if step > first else None
        self._output.say(ColdStartStep(step, total, left, metrics))

    def step(self, report: StepReport) -> None:
        """Report one GRPO step: a line of metrics.jsonl; warn of what it says is wrong."""
        if not self._is_main:
            return
        line = {"step": report.step, **to_json(report.metrics)}
        append_line(run_folder.metrics_path(self._folder), line)
        self._send(lambda tracker: tracker.log("rl", report.step, report.metrics))
        left = self._time_left.add(report.step, report.metrics)
        self._output.say(Step(report.step, self._total, left, report.metrics))
        for complaint in complain(report.metrics):
            self.message(complaint)

    def evaluation(self, evaluations: Mapping[int, Mapping[str, Any]], seconds: float) -> None:
        """Report the last of a run's evaluations, by step, which took `seconds`; others write its file."""
        if not self._is_main:
            return
        step = max(evaluations)
        result, metric = evaluations[step], self._metric
        self._send(lambda tracker: tracker.log_evaluation(step, result["metrics"]))
        values = {at: content["metrics"][metric] for at, content in evaluations.items()}
        best = max(values, key=lambda at: rank_value(evaluations[at], metric))
        for complaint in complain_of_evaluation(result, metric):
            self.message(complaint)
        self._output.say(
            Evaluated(
                step,
                metric,
                values[step],
                interval=result["intervals"][metric],
                change=values[step] - values[min(values)] if len(values) > 1 else None,
                best=values[best],
                best_step=best,
                samples=result["num_samples"],
                seconds=seconds,
                metrics=result["metrics"],
            )
        )

    def saved(self, step: int, phase: Literal["sft", "rl"], folder: Path, seconds: float) -> None:
        """Report a checkpoint, and the seconds that training waited for it."""
        self._output.say(Saved(step, phase, folder, seconds))

    def message(self, text: str) -> None:
        """Warn the person who watches, in one line."""
        self._output.say(Warned(text))

    def note(self, text: str) -> None:
        """Show the person who watches one line that asks for nothing."""
        self._output.say(Noted(text))

    def doing(self, what: str, total: int | None = None) -> AbstractContextManager[Activity]:
        """Follow a block that may take long; see `Output.doing`."""
        return self._output.doing(what, total)

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


class TimeLeft:
    """Estimates the seconds that a run has left, from its steps as they come.

    `every` says after how many steps each planned phase comes (`evaluate`, `checkpoint`); all of them come
    after the last step as well. What a phase took is `time/<phase>` in the line of the step that
    follows it; of a phase that never came nothing is known, and nothing counted.
    """

    def __init__(
        self, steps: int, every: Mapping[str, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps, self._every, self._clock = steps, every, clock
        self._own: deque[float] = deque(maxlen=LAST_STEPS)
        self._besides = {phase: deque[float](maxlen=LAST_BESIDES) for phase in every}
        self._at: float | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> float:
        """Note a finished step and return the seconds left after it."""
        before, self._at = self._at, self._clock()
        planned = {phase: metrics.get(f"time/{phase}", 0.0) for phase in self._besides}
        for phase, seconds in planned.items():
            if seconds > 0:
                self._besides[phase].append(seconds)
        if before is None:  # nobody knows when the first one began
            self._own.append(step_seconds(metrics))
        else:
            self._own.append(max(0.0, self._at - before - sum(planned.values())))
        seconds = max(0, self._steps - step) * statistics.median(self._own)
        for phase, taken in self._besides.items():
            if taken:  # what is due after this step has not come yet
                every, ended = self._every[phase], max(0, step - 1)
                times = self._steps // every - ended // every + (self._steps % every != 0)
                seconds += times * statistics.median(taken)
        return seconds


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
