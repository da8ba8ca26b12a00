"""Atomic checkpoints: a folder that `from_pretrained` loads as it is, plus `trainer/` state.

A checkpoint is written beside its final name and renamed when every byte is on disk, so that a folder
named `step-N` or `sft-N` is always whole. Random numbers need no state: every draw is a function of
the run's seed and the step.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch

from vlmrl.errors import UserError
from vlmrl.policy import optimizer_state
from vlmrl.policy.policy import Policy
from vlmrl.system import distributed

FORMAT = 1


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    `phase` is "sft" or "rl"; `step` counts finished steps of that phase; `loader` is the loader's
    cursor; `extra` holds what the phase itself wants back (e.g. the cold start's stopping point).
    """

    phase: str = "sft"
    step: int = 0
    loader: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0

    @property
    def name(self) -> str:
        """The checkpoint's folder name."""
        return f"{'step' if self.phase == 'rl' else 'sft'}-{self.step}"


def save(
    folder: Path,
    policy: Policy,
    progress: Progress,
    keep: int,
    best: int | None,
    queue: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write one checkpoint and remove old ones beyond `keep` (the best step's is kept).

    `queue` are JSON values of the batches that are issued and not yet trained on (`RolloutQueue.state`).

    Raises:
        UserError: the disk is full or the folder cannot be written; earlier checkpoints are untouched.
    """
    final = folder / "checkpoints" / progress.name
    _write(final, policy, progress, queue)
    if distributed.is_main():
        _prune(folder, keep, best)
    distributed.barrier()
    return final


def _write(
    final: Path, policy: Policy, progress: Progress, queue: Sequence[Mapping[str, Any]]
) -> None:
    working = final.with_name(f".{final.name}.part")
    main = distributed.is_main()
    try:
        if main:
            shutil.rmtree(working, ignore_errors=True)
            (working / "trainer").mkdir(parents=True)
        distributed.barrier()
        policy.save(str(working))
        optimizer_state.save(working / "trainer", policy)
        adapter = policy.training_state()
        distributed.barrier()
        if not main:
            return
        if adapter:
            safetensors.torch.save_file(
                {k: v.contiguous() for k, v in adapter.items()},
                working / "trainer" / "adapter.safetensors",
            )
        state = {"format": FORMAT, **progress.__dict__}
        (working / "trainer" / "state.json").write_text(json.dumps(state, indent=1))
        if queue:
            (working / "trainer" / "queue.json").write_text(json.dumps(queue))
        _to_disk(working)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(working, final)
    except OSError as error:
        shutil.rmtree(working, ignore_errors=True)
        raise UserError(f"cannot write checkpoint {final}: {error.strerror or error}") from error


def latest(folder: Path) -> Path | None:
    """The furthest whole checkpoint of a run folder, if any."""
    found = [path for path in _all(folder) if (path / "trainer/state.json").is_file()]
    return max(found, key=_order, default=None)


def resolve(resume: str, folder: Path) -> Path | None:
    """The checkpoint that the config's `resume` means; None to start anew.

    Raises:
        UserError: `resume` names no whole checkpoint.
    """
    if resume == "never":
        return None
    if resume == "auto":
        return latest(folder)
    path = Path(resume)
    if not (path / "trainer/state.json").is_file():
        raise UserError(f"resume: {path} is no checkpoint (it has no trainer/state.json)")
    return path


def read_progress(checkpoint: Path) -> Progress:
    """Where the run that wrote this checkpoint stood."""
    state = json.loads((checkpoint / "trainer/state.json").read_text())
    if state.pop("format") != FORMAT:
        raise UserError(f"{checkpoint}: written by another version of vlmrl")
    return Progress(**state)


def read_queue(checkpoint: Path) -> list[dict[str, Any]]:
    """The `queue` that the checkpoint was saved with."""
    path = checkpoint / "trainer/queue.json"
    return json.loads(path.read_text()) if path.is_file() else []


def restore(checkpoint: Path, policy: Policy, progress: Progress) -> None:
    """Put optimizer state, adapter and counters back (the weights were loaded with the model)."""
    adapter = checkpoint / "trainer/adapter.safetensors"
    if adapter.is_file():
        policy.restore(safetensors.torch.load_file(adapter))
    try:
        optimizer_state.restore(checkpoint / "trainer", policy)
    except ValueError as error:
        raise UserError(
            f"{checkpoint}: the optimizer state does not fit this model: {error}"
        ) from error
    policy.version = progress.version


def _all(folder: Path) -> list[Path]:
    """The checkpoints of a run folder; hidden are those that are being written or deleted."""
    return list((folder / "checkpoints").glob("[!.]*-*"))


def _order(path: Path) -> tuple[bool, int]:
    phase, _, step = path.name.partition("-")
    return phase == "step", int(step) if step.isdigit() else -1


def _prune(folder: Path, keep: int, best: int | None) -> None:
    """Delete all but the last `keep` and the best; what a killed process left half deleted, too."""
    for path in sorted(_all(folder), key=_order)[:-keep]:
        if best is None or path.name != f"step-{best}":
            path.rename(path.with_name(f".{path.name}.old"))
    for path in (folder / "checkpoints").glob(".*.old"):
        shutil.rmtree(path)


def _to_disk(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
