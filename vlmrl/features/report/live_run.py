"""One run as it stands now: what has been read of its folder, kept small however long it trains.

Its files are read a piece at a time, each line once. A resumed run rewrites them without the steps after
its checkpoint; then reading begins anew. A thread fits its compute, which takes longer than an update may.
"""

from __future__ import annotations

import socket
import statistics
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from vlmrl.errors import UserError
from vlmrl.features.report.compute_fit import ComputeFit, fit_panel
from vlmrl.features.report.first_screen import RunFacts, compare_ends
from vlmrl.features.report.gallery import alarm_sentences
from vlmrl.features.report.growing import GrowingCurves, GrowingStages, Spent, Stretch
from vlmrl.features.report.held_out import scored_demonstrations
from vlmrl.features.report.page import read_ends
from vlmrl.features.report.series import CurvePanel
from vlmrl.runs import run_folder, run_lock
from vlmrl.runs.complaints import WINDOW
from vlmrl.runs.metrics import step_seconds
from vlmrl.runs.run_lock import Owner
from vlmrl.system.files import read_json, stamp_of

Numbers = dict[str, float | int | bool | None]
"""A line of metrics.jsonl or sft.jsonl."""

MARK = 256
"""Bytes before the place read to that must be unchanged, or the file was rewritten."""


@dataclass
class AppendedLines:
    """What was read of a file of steps: `damaged` counts lines that are not, `starts` the beginnings.

    Each line is a JSON object of `kind` with its `step`.
    """

    path: Path
    kind: Any = Numbers
    damaged: int = 0
    starts: int = 0
    _offset: int = 0
    _mark: bytes = b""
    _decode: msgspec.json.Decoder[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._decode = msgspec.json.Decoder(self.kind)

    def read(self) -> list[dict[str, Any]]:
        """Return the lines that are new: all, with one more in `starts`, of a rewritten file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._mark))
                if file.read(len(self._mark)) != self._mark:
                    self._begin_anew()
                    file.seek(0)
                new = file.read()
        except FileNotFoundError:
            if self._offset:
                self._begin_anew()
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._mark = (self._mark + whole)[-MARK:]
        return [line for text in whole.splitlines() if (line := self._parse(text)) is not None]

    def _begin_anew(self) -> None:
        self.starts += 1
        self.damaged, self._offset, self._mark = 0, 0, b""

    def _parse(self, text: bytes) -> dict[str, Any] | None:
        try:
            line: dict[str, Any] = self._decode.decode(text)
        except msgspec.DecodeError:
            line = {}
        if type(line.get("step")) is int:
            return line
        self.damaged += 1
        return None


State = dict[str, Any]


class LiveRun:
    """A run folder that may be written to: `refresh` reads what is new, `version` changes with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 0
        self.evaluated = 0
        """How often evaluations were new, or gone."""
        self.config: dict[str, Any] = {}
        self.evaluations: dict[int, dict[str, Any]] = {}
        self.rollouts: tuple[int, Path] | None = None
        self.rolled = 0
        """How often the newest rollouts were others."""
        self.alarms: list[str] = []
        self.mistake = ""
        self._stamps: dict[str, Any] = {}
        self._compared: tuple[Any, RunFacts] = (None, RunFacts())
        self._begin()

    def _begin(self) -> None:
        self._metrics = AppendedLines(run_folder.metrics_path(self.folder))
        self._sft = AppendedLines(run_folder.sft_path(self.folder))
        self._begin_metrics()
        self._begin_imitation()

    def _begin_metrics(self) -> None:
        self._starts = self._metrics.starts
        self.curves = GrowingCurves()
        self.first_lines: list[Mapping[str, Any]] = []
        self.last_lines: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self.newest: dict[str, Any] = {}
        self.spent = Spent.of(self.config) if self.config else Spent()
        self.beside_s = 0.0
        """Seconds beside the phases of the steps, such as evaluations."""
        self._stages = GrowingStages()

    def _begin_imitation(self) -> None:
        self._imitation_starts = self._sft.starts
        self.imitation = GrowingCurves()
        self.imitated = 0

    def refresh(self) -> None:
        """Read what is new. A file that cannot be read is said in `mistake`, and read again next time."""
        before = self.mistake
        try:
            self.mistake = ""
            if self._read():
                self.version += 1
        except (UserError, OSError) as error:
            self.mistake = str(error)
        self.version += self.mistake != before

    def progress(self) -> RunFacts:
        """Return what the sentence of the first screen is made of."""
        progress = RunFacts(
            metric=self.metric,
            planned=self.config["run"]["steps"],
            steps=self.steps,
            ended=not self.is_running and self.steps >= self.config["run"]["steps"],
            evaluations=self.results(),
            first_lines=self.first_lines,
            last_lines=list(self.last_lines),
            newest=self.newest,
            alarms=self.alarms,
        )
        key = (progress.metric, self.evaluated)
        if self._compared[0] != key:
            facts = RunFacts(metric=progress.metric)
            demonstrated = self.imitation.mean(scored_demonstrations(facts.metric))
            compare_ends(facts, read_ends(self.folder), demonstrated)
            self._compared = (key, facts)
        progress.levels, progress.change = self._compared[1].levels, self._compared[1].change
        return progress

    @property
    def metric(self) -> str:
        """Return the metric by which the run is judged."""
        return (self.config.get("evaluation") or {}).get("metric") or "reward"

    def results(self) -> list[dict[str, Any]]:
        """Return the contents of evals/step-N.json, ascending; another thread may ask, too."""
        return [evaluation for _, evaluation in sorted(self.evaluations.copy().items())]

    def held_out(self) -> list[tuple[int, float]]:
        """Return step and value of the metric of each evaluation that has one, ascending."""
        evaluations = sorted(self.evaluations.items())
        return [
            (s, evaluation["metrics"][self.metric])
            for s, evaluation in evaluations
            if self.metric in evaluation["metrics"]
        ]

    @property
    def steps(self) -> int:
        """Return how many steps are done."""
        return self.last_lines[-1]["step"] if self.last_lines else 0

    @property
    def is_running(self) -> bool:
        """Return whether a process owns the folder, as far as can be seen from here."""
        return self._owner() is not None

    @property
    def stages(self) -> tuple[Stretch, ...]:
        """Return the stages of training so far."""
        return self._stages.stretches(self.config)

    def state(self) -> State:
        """Return the line of numbers: steps, seconds of a step, samples a second, time left, memory.

        The time left is that of steps like the last ones, and of what came beside a step so far.
        """
        seconds = [step_seconds(line) for line in self.last_lines]
        step_s = statistics.fmean(seconds) if seconds else None
        beside_s = self.beside_s / max(self.steps, 1)
        rollout = self.config["rollout"]
        planned, owner = self.config["run"]["steps"], self._owner()
        running = owner is not None
        left = max(planned - self.steps, 0)
        return {
            "name": self.config["run"]["name"],
            "running": running,
            "steps": self.steps,
            "planned": planned,
            "imitated": self.imitated,
            "step_s": step_s,
            "samples_s": rollout["prompts"] * rollout["group_size"] / step_s if step_s else None,
            "left_s": left * (step_s + beside_s) if running and step_s is not None else None,
            "memory_mb": _memory_of(owner) or self.newest.get("machine/memory_mb"),
            "gpu_memory_mb": self.newest.get("machine/gpu_memory_mb"),
            "gpu_memory_total_mb": self.newest.get("machine/gpu_memory_total_mb"),
            "gpu_use": self.newest.get("machine/gpu_use"),
            "reward": self.newest.get("reward/mean"),
            "damaged": self._metrics.damaged + self._sft.damaged,
        }

    def _read(self) -> bool:
        path = self.folder / "config.json"
        if self.config and not path.is_file():
            raise UserError("the run folder is gone; this page shows what was read of it last")
        if self._has_changed(path):
            config = read_json(path)
            if config != self.config:  # another run took the folder
                self.config, self.evaluations, self.rollouts, self.alarms = config, {}, None, []
                self._stamps.clear()
                self._has_changed(path)
                self._begin()
        metrics, sft = self._metrics.read(), self._sft.read()
        if self._metrics.starts != self._starts:
            self._begin_metrics()
        if self._sft.starts != self._imitation_starts:
            self._begin_imitation()
        self._take(metrics, sft)
        return self._read_folders() or bool(metrics or sft)

    def _take(self, metrics: list[dict[str, Any]], sft: list[dict[str, Any]]) -> None:
        self.curves.extend(metrics)
        self.imitation.extend(sft)
        self.first_lines += metrics[: max(WINDOW - len(self.first_lines), 0)]
        self.last_lines.extend(metrics[-WINDOW:])
        self.imitated = sft[-1]["step"] if sft else self.imitated
        self.spent.extend(metrics)
        self._stages.extend(metrics)
        for line in metrics:
            whole_s = sum(v or 0.0 for k, v in line.items() if k.startswith("time/"))
            self.beside_s += whole_s - (line.get("time/sft") or 0.0) - step_seconds(line)
            self.newest.update({key: value for key, value in line.items() if value is not None})

    def _read_folders(self) -> bool:
        """Read evaluations that are new or were written again; note the newest rollouts."""
        paths = run_folder.steps_in(self.folder / "evals", ".json")
        changed = self.evaluations.keys() != paths.keys()
        self.evaluations = {
            s: evaluation for s, evaluation in self.evaluations.items() if s in paths
        }
        for step, path in paths.items():
            if self._has_changed(path):
                self.evaluations[step] = read_json(path)
                changed = True
        self.evaluated += changed
        rollouts = run_folder.steps_in(self.folder / "rollouts", ".jsonl")
        newest = max(rollouts.items(), default=None)
        rewritten = newest is not None and self._has_changed(newest[1])
        if rewritten or newest != self.rollouts:
            self.rollouts, changed = newest, True
            self.rolled += 1
        return self._read_alarms() or changed

    def _read_alarms(self) -> bool:
        """Read what the loophole watch said, if it is new."""
        path = run_folder.loopholes_path(self.folder)
        if path.is_file() and not self._has_changed(path):
            return False
        before, self.alarms = self.alarms, alarm_sentences(self.folder)
        return before != self.alarms

    def _has_changed(self, path: Path) -> bool:
        """Return whether a file is another than at the last call."""
        try:
            stamp = stamp_of(path.stat())
        except FileNotFoundError:
            return False
        return self._stamps.get(path.name) != stamp and not self._stamps.update({path.name: stamp})

    def _owner(self) -> Owner | None:
        """Return the process that owns the folder now; None if there is none."""
        try:
            return run_lock.living_owner(self.folder)
        except UserError as error:
            self.mistake = str(error)
            return None


def _memory_of(owner: Owner | None) -> float | None:
    """Return the resident memory of a folder's owner in MiB, where it is a process of this machine."""
    if owner is None or owner.host != socket.gethostname():
        return None
    try:
        return psutil.Process(owner.pid).memory_info().rss / 2**20
    except psutil.Error:
        return None


class LaterFit:
    """The newest fit that is ready; `version` changes with it."""

    def __init__(self) -> None:
        self.result: tuple[CurvePanel, ComputeFit] | None = None
        self.version = 0
        self._evaluated = -1
        self._thread: threading.Thread | None = None

    def follow(self, run: LiveRun) -> None:
        """Begin a fit where evaluations are new and no other fit is being made."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or run.evaluated == self._evaluated:
            return
        self._evaluated = run.evaluated
        self._thread = threading.Thread(target=self._fit, args=(run,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when no fit is being made."""
        if self._thread is not None:
            self._thread.join()

    def _fit(self, run: LiveRun) -> None:
        metric = (run.config.get("evaluation") or {}).get("metric", "")
        result = fit_panel(metric, run.spent, run.results())
        if result != self.result:
            self.result, self.version = result, self.version + 1
