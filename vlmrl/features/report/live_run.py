"""One run as it stands now: what has been read of its folder, each line of its files once.

A resumed run rewrites its files without the steps after its checkpoint; then reading begins anew.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import psutil

from vlmrl.errors import UserError
from vlmrl.features.report.compute_fit import ComputeFit, fit_panel
from vlmrl.features.report.first_screen import RunFacts, compare_ends
from vlmrl.features.report.gallery import alarm_sentences
from vlmrl.features.report.growing import StepLines, Stretch, mean_of, stretches
from vlmrl.features.report.held_out import scored_demonstrations
from vlmrl.features.report.page import read_ends
from vlmrl.features.report.series import CurvePanel
from vlmrl.runs import run_folder, run_lock
from vlmrl.runs.complaints import WINDOW
from vlmrl.runs.metrics import step_seconds
from vlmrl.runs.run_lock import Owner
from vlmrl.system.files import read_json, stamp_of

MARK = 256
"""Bytes before the place read to that must be unchanged, or the file was rewritten."""
_decode = msgspec.json.Decoder(dict[str, float | int | bool | None]).decode


class AppendedLines:
    """What was read of metrics.jsonl or sft.jsonl; `damaged` counts lines that are no numbers of a step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin()

    def _begin(self) -> None:
        self.steps, self.damaged = StepLines(), 0
        self._offset, self._mark = 0, b""

    def read(self) -> bool:
        """Read the lines that are new, and a rewritten file from its begin; return whether there are any."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._mark))
                if file.read(len(self._mark)) != self._mark:
                    self._begin()
                    file.seek(0)
                new = file.read()
        except FileNotFoundError:
            self._begin()
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._mark = (self._mark + whole)[-MARK:]
        for text in whole.splitlines():
            try:
                line = _decode(text)
            except msgspec.DecodeError:
                line = {}
            if type(line.get("step")) is int:
                self.steps.extend([line])
            else:
                self.damaged += 1
        return bool(whole)


class LiveRun:
    """A run folder that may be written to: `refresh` reads what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = self.evaluated = self.rolled = 0
        """How often anything was new, evaluations were (or were gone), and the newest rollouts were."""
        self.config: dict[str, Any] = {}
        self.mistake = ""
        self.fitting = threading.Thread()
        self._begin()

    def _begin(self) -> None:
        self._metrics = AppendedLines(run_folder.metrics_path(self.folder))
        self._imitation = AppendedLines(run_folder.sft_path(self.folder))
        self.evaluations: dict[int, dict[str, Any]] = {}
        self.rollouts: tuple[int, Path] | None = None
        self.alarms: list[str] = []
        self.evaluated += 1
        self._stamps: dict[Path, Any] = {}
        self._fit: tuple[CurvePanel, ComputeFit] | None = None
        self._compared: tuple[int, dict[str, Any]] = (-1, {})
        self._fitted = -1

    def refresh(self) -> None:
        """Read what is new. A file that cannot be read is said in `mistake`, and read again next time."""
        try:
            self.mistake = ""
            self.version += self._read()
        except (UserError, OSError) as error:
            self.mistake = str(error)

    @property
    def metrics(self) -> StepLines:
        """Return the lines of metrics.jsonl."""
        return self._metrics.steps

    @property
    def imitation(self) -> StepLines:
        """Return the lines of sft.jsonl."""
        return self._imitation.steps

    @property
    def metric(self) -> str:
        """Return the metric by which the run is judged."""
        return (self.config.get("evaluation") or {}).get("metric") or "reward"

    @property
    def results(self) -> list[dict[str, Any]]:
        """Return the contents of evals/step-N.json, ascending."""
        return list(self.evaluations.values())

    @property
    def steps(self) -> int:
        """Return how many steps are done."""
        return self.metrics.steps[-1] if self.metrics.steps else 0

    @property
    def batch(self) -> int:
        """Return how many completions are sampled for a batch of prompts."""
        rollout = self.config["rollout"]
        return int(rollout["prompts"] * rollout["group_size"])

    @property
    def stages(self) -> tuple[Stretch, ...]:
        """Return the stages of training so far."""
        return stretches(self.config, self.metrics.lines)

    def held_out(self) -> list[tuple[int, float]]:
        """Return step and value of the metric of each evaluation that has one, ascending."""
        known = ((s, result["metrics"].get(self.metric)) for s, result in self.evaluations.items())
        return [(step, value) for step, value in known if value is not None]

    def progress(self) -> RunFacts:
        """Return what the sentence of the first screen is made of."""
        if self._compared[0] != self.evaluated:
            demonstrated = mean_of(self.imitation.lines, scored_demonstrations(self.metric))
            facts = compare_ends(self.metric, read_ends(self.folder), demonstrated)
            self._compared = (self.evaluated, facts)
        return RunFacts.of(
            self.config,
            self.metrics,
            ended=self._has_ended(self._owner()),
            evaluations=self.results,
            alarms=self.alarms,
            **self._compared[1],
        )

    def fit(self) -> tuple[CurvePanel, ComputeFit] | None:
        """Return the newest fit of compute; if evaluations are new, a thread makes another.

        It takes longer than an update may.
        """
        if self._fitted != self.evaluated and not self.fitting.is_alive():
            self._fitted = self.evaluated

            def make() -> None:
                self._fit = fit_panel(self.metric, self.metrics, self.results)

            self.fitting = threading.Thread(target=make, daemon=True)
            self.fitting.start()
        return self._fit

    def state(self) -> dict[str, Any]:
        """Return the line of numbers: steps, seconds of a step, samples a second, time left, memory.

        The time left is that of steps like the last ones, and of what came beside a step so far.
        """
        newest, last = self.metrics.newest, self.metrics.lines[-WINDOW:]
        step_s = fmean(map(step_seconds, last)) if last else None
        planned, owner = self.config["run"]["steps"], self._owner()
        left_s = None
        if owner is not None and step_s is not None:
            beside_s = self.metrics.beside_s() / max(self.steps, 1)
            left_s = max(planned - self.steps, 0) * (step_s + beside_s)
        return {
            "running": owner is not None,
            "ended": self._has_ended(owner),
            "steps": self.steps,
            "planned": planned,
            "imitated": self.imitation.steps[-1] if self.imitation.steps else 0,
            "step_s": step_s,
            "samples_s": self.batch / step_s if step_s else None,
            "left_s": left_s,
            "memory_mb": _memory_of(owner) or newest("machine/memory_mb"),
            "gpu_memory_mb": newest("machine/gpu_memory_mb"),
            "gpu_memory_total_mb": newest("machine/gpu_memory_total_mb"),
            "gpu_use": newest("machine/gpu_use"),
            "reward": newest("reward/mean"),
            "damaged": self._metrics.damaged + self._imitation.damaged,
        }

    def _read(self) -> bool:
        path = self.folder / "config.json"
        if self.config and not path.is_file():
            raise UserError("the run folder is gone; this page shows what was read of it last")
        if self._has_changed(path) and (config := read_json(path)) != self.config:
            self._begin()  # another run took the folder
            self.config = config
        changed = self._metrics.read()
        changed |= self._imitation.read()
        paths = run_folder.steps_in(self.folder / "evals", ".json")
        new = [s for s, p in paths.items() if self._has_changed(p) or s not in self.evaluations]
        if new or self.evaluations.keys() != paths.keys():
            self.evaluations = {
                step: read_json(path) if step in new else self.evaluations[step]
                for step, path in paths.items()
            }
            self.evaluated, changed = self.evaluated + 1, True
        newest = max(run_folder.steps_in(self.folder / "rollouts", ".jsonl").items(), default=None)
        if (newest and self._has_changed(newest[1])) or newest != self.rollouts:
            self.rollouts, self.rolled, changed = newest, self.rolled + 1, True
        alarms = run_folder.loopholes_path(self.folder)
        if self._has_changed(alarms) or (self.alarms and not alarms.is_file()):
            self.alarms, changed = alarm_sentences(self.folder), True
        return changed

    def _has_changed(self, path: Path) -> bool:
        """Return whether a file is another than at the last call."""
        try:
            stamp = stamp_of(path.stat())
        except FileNotFoundError:
            return False
        return self._stamps.get(path) != stamp and not self._stamps.update({path: stamp})

    def _has_ended(self, owner: Owner | None) -> bool:
        """Return whether all steps are done and nobody goes on."""
        return owner is None and self.steps >= self.config["run"]["steps"]

    def _owner(self) -> Owner | None:
        """Return the process that owns the folder now, as far as can be seen from here."""
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
