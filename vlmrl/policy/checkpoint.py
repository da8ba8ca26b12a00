"""Checkpoints as they are found: a folder that `from_pretrained` loads as it is, plus `trainer/` state.

A folder named `step-N` or `sft-N` was whole when it was written (`saving.checkpoint_writer`); checksums of
all its files tell whether it still is. Random numbers need no state: every draw is a function of the run's
seed and the step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from vlmrl.errors import UserError
from vlmrl.policy import optimizers, quantization
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.system.files import NAME as CHECKSUMS
from vlmrl.system.files import find_damage, read_json

FORMAT = 3
"""Written to state.json; 1 had no checksums, 2 had the adapter in `trainer/`."""
OTHER_FILES = 1.02
"""Config, tokenizer and state of the trainer, as a factor of a checkpoint's size."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    `phase` is "sft" or "rl"; `step` counts finished steps of that phase; `loader` is the loader's
    cursor; `extra` holds what the phase itself wants back (e.g. the cold start's stopping point);
    `format` is that of the files.
    """

    phase: str = "sft"
    step: int = 0
    loader: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    format: int = FORMAT

    @property
    def name(self) -> str:
        """Return the checkpoint's folder name."""
        return f"{'step' if self.phase == 'rl' else 'sft'}-{self.step}"


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def latest(folder: Path, warn: Callable[[str], None] = _warn) -> Path | None:
    """Return the furthest whole checkpoint of a run folder, None if it has no checkpoint at all.

    One that is damaged is passed over with a warning.

    Raises:
        UserError: there are checkpoints, and all of them are damaged.
    """
    damage, paths = "", run_folder.checkpoints(folder)
    for path in sorted(paths, key=lambda p: run_folder.checkpoint_order(p.name), reverse=True):
        damage = damage_of(path) or ""
        if not damage:
            return path
        warn(f"checkpoint {path.name} is damaged and passed over: {damage}")
    if damage:
        raise UserError(
            f"{folder}: all checkpoints are damaged (last: {damage}); move {folder / 'checkpoints'} "
            "away to start anew"
        )
    return None


def resolve(resume: str, folder: Path) -> Path | None:
    """Return the checkpoint that the config's `resume` means; None to start anew.

    Raises:
        UserError: `resume` names no checkpoint or a damaged one; the message names the file.
    """
    if resume == "never":
        return None
    if resume == "auto":
        return latest(folder)
    path = Path(resume)
    require_whole(path, "resume", "resume=auto")
    return path


def require_whole(path: Path, where: str, newest: str) -> None:
    """Refuse a folder that is no checkpoint or a damaged one; `newest` is what takes the newest whole one.

    Raises:
        UserError: the message begins with `where` and names the file.
    """
    if not (path / "trainer").is_dir():
        raise UserError(f"{where}: expected a checkpoint, got {path} without a folder trainer/")
    if damage := damage_of(path):
        raise UserError(
            f"{where}: {damage}; take an earlier checkpoint, or {newest} for the newest whole one"
        )


def damage_of(path: Path) -> str | None:
    """Say what is wrong with the files of a checkpoint, if anything is."""
    home = path / "trainer"
    if damage := find_damage(path, home):
        return damage
    try:
        progress = read_progress(path)
    except UserError as error:
        return str(error)
    if progress.format > 1 and not (home / CHECKSUMS).is_file():
        return f"{home / CHECKSUMS} is missing"
    return None


def read_progress(checkpoint: Path) -> Progress:
    """Return how far the run was that wrote this checkpoint.

    Raises:
        UserError: the file is missing, damaged, or of another version of vlmrl.
    """
    path = checkpoint / "trainer/state.json"
    state = read_json(path)
    if state.get("format") not in range(1, FORMAT + 1):
        raise UserError(f"{path}: expected format {FORMAT}, got {state.get('format')!r}")
    if unknown := state.keys() - {f.name for f in fields(Progress)}:
        raise UserError(f"{path}: unknown keys {', '.join(sorted(unknown))}")
    return Progress(**state)


def read_queue(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the `queue` that the checkpoint was saved with.

    Raises:
        UserError: the file is damaged.
    """
    path = checkpoint / "trainer/queue.json"
    if not path.is_file():
        return []
    try:
        queue = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(queue, list):
        raise UserError(f"{path}: expected a list, got {type(queue).__name__}")
    return queue


def read_arrays(checkpoint: Path, name: str) -> dict[str, np.ndarray]:
    """Return what was `learned` under this name when the checkpoint was saved; empty if that is nothing."""
    path = checkpoint / f"trainer/{name}.safetensors"
    return load_file(path) if path.is_file() else {}


def restore(checkpoint: Path, policy: Policy, progress: Progress) -> None:
    """Put optimizer state, adapter and counters back (the weights were loaded with the model)."""
    restore_adapter(checkpoint, policy)
    try:
        optimizers.restore(checkpoint / "trainer", policy)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{checkpoint}: the optimizer state does not fit this model: {error}"
        ) from error
    policy.version = progress.version


def restore_adapter(checkpoint: Path, policy: Policy) -> None:
    """Put the checkpoint's adapter, if it has one, on the base model."""
    from vlmrl.policy import adapter_folder  # only where a run goes on, or with LoRA

    if adapter := adapter_folder.load(checkpoint):
        policy.restore(adapter)


def size(policy: Policy, state_bytes: float) -> int:
    """Return about how many bytes a checkpoint has, given those of its optimizer's state.

    The rest are the weights with the adapter merged in, and the adapter.
    """
    weights = sum(quantization.size_of(parameter) for parameter in policy.base.parameters())
    return round(OTHER_FILES * (state_bytes + weights))


def rl_steps(folder: Path) -> list[int]:
    """Return the steps of RL of a run folder's checkpoints, and of one that is being written."""
    writing = (folder / "checkpoints").glob(".step-*.part")
    names = [path.name for path in run_folder.checkpoints(folder)]
    names += [path.name.split(".")[1] for path in writing]
    return [step for is_rl, step in map(run_folder.checkpoint_order, names) if is_rl]
