"""The run that a model on the command line belongs to, and its checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from vlmrl import config
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.runs import run_folder
from vlmrl.system.files import read_json


def find_run(model: str) -> tuple[Path | None, Path | None]:
    """Return the run folder and the checkpoint that `model` means; None, None if it belongs to no run.

    A run folder means its best checkpoint where that is kept and whole, else its newest whole one.

    Raises:
        UserError: the run has no checkpoint, or all of them are damaged; `model` is a damaged one.
    """
    path = Path(model)
    file = path / "config.json"
    if file.is_file() and ((path / "checkpoints").is_dir() or "versions" in read_json(file)):
        return path, _best_checkpoint(path)
    if not (path / "trainer").is_dir():
        return None, None
    if damage := checkpoint.damage_of(path):
        raise UserError(
            f"{path} is damaged: {damage}; take another checkpoint, or the run's folder"
        )
    run = path.absolute().parents[1]
    return (run, path) if (run / "config.json").is_file() else (None, None)


def read_config(run: Path) -> Config:
    """Return the config of a run.

    Raises:
        UserError: config.json is damaged or of another version.
    """
    file = run / "config.json"
    tree = read_json(file)
    return config.parse({k: v for k, v in tree.items() if k not in ("versions", "git")}, str(file))


def read_older_config(run: Path) -> Config:
    """Return the config of a run that an earlier version may have written, for what asks its model.

    Keys that this version does not know are named on standard error, and left out.

    Raises:
        UserError: config.json is damaged, or lacks something; the lines name it.
    """
    file = run / "config.json"
    tree = read_json(file)
    versions = tree.get("versions")
    writer = versions.get("vlmrl") if isinstance(versions, dict) else None
    own = {k: v for k, v in tree.items() if k not in ("versions", "git")}
    try:
        settings, unknown = config.parse_older(own, str(file))
    except UserError as error:
        raise UserError(
            f"{error}\n{file}: written by vlmrl {writer}; mend these keys there, or copy the checkpoint "
            "out of the run folder: outside of a run its model alone is read"
        ) from error
    if unknown:
        print(
            f"warning: {file}, written by vlmrl {writer}, has keys that this version does not know; they "
            f"are left out: {'; '.join(unknown)}",
            file=sys.stderr,
        )
    return settings


def run_of(model: str) -> tuple[Config | None, str]:
    """Return the config of the run that the model belongs to, if any, and the folder to load."""
    run, checkpoint = find_run(model)
    return read_older_config(run) if run else None, str(checkpoint or model)


def _best_checkpoint(run: Path) -> Path:
    summary = run_folder.read_summary(run)
    best = summary["best_evaluation"] if summary else None
    if best and (kept := run / "checkpoints" / f"step-{best['step']}").is_dir():
        damage = checkpoint.damage_of(kept)
        if damage is None:
            return kept
        print(f"warning: the best checkpoint is damaged and passed over: {damage}", file=sys.stderr)
    last = checkpoint.latest(run)
    if last is None:
        raise UserError(f"{run}: this run has no checkpoint yet")
    return last
