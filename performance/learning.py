"""What the learning experiments share: their options, and runs that begin at one cold start for each seed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl import config
from vlmrl.assemble import lifecycle
from vlmrl.runs import run_folder
from vlmrl.system.files import read_json

CONFIGS = Path(__file__).parent / "configs"
Curve = dict[int, dict[str, Any]]
"""Evaluations by step: `metrics`, and `intervals` of 95 %."""


def start(settings: str, folder: Path, seed: int, overrides: Sequence[str] = ()) -> Path:
    """Return the checkpoint of a cold start alone; makes it if it is not there."""
    alone = ["run.threads=1", "run.steps=0", "evaluation=null", "run.report=false"]
    return train(settings, folder, [f"run.seed={seed}", *alone, *overrides])


def from_one_start(
    settings: str,
    folder: Path,
    seed: int,
    arms: Mapping[str, Sequence[str]],
    overrides: Sequence[str] = (),
    evaluated: Sequence[str] = (),
) -> tuple[Path, dict[str, Path]]:
    """Return the cold start of a seed, and by arm a run that begins there; trains those that are not there.

    `overrides` hold for all of them, `evaluated` for the arms, those of an arm last.
    """
    cold = start(settings, folder / f"start-{seed}", seed, overrides)
    begun = [f"model.path={cold}", "model.build=null", f"run.seed={seed}", "run.threads=1"]
    runs = {}
    for arm, own in arms.items():
        name = arm.replace(", ", "-").replace(" ", "_").replace("'", "")
        runs[arm] = folder / f"{name}-{seed}"
        train(settings, runs[arm], [*overrides, *begun, "run.report=false", *evaluated, *own])
    return cold, runs


def curve(settings: str, folder: Path, seed: int, begin: Path, *overrides: str) -> Curve:
    """Return the evaluations of a run that begins at a checkpoint; trains it if it is not there."""
    begun = [f"model.path={begin}", "model.build=null", "sft=null", f"run.seed={seed}"]
    train(settings, folder, [*begun, "run.report=false", *overrides])
    return evaluations(folder)


def evaluations(folder: Path) -> Curve:
    """Return the evaluations of a run."""
    files = run_folder.steps_in(folder / "evals", ".json")
    return {step: read_json(path) for step, path in sorted(files.items())}


def newest_evaluation(folder: Path) -> int:
    """Return the step of a run's last evaluation."""
    return max(run_folder.steps_in(folder / "evals", ".json"))


def rows_of(folder: Path, step: int, drawn: str) -> list[dict[str, Any]]:
    """Return the rows of an evaluation whose completions were drawn so: `greedy` or `sampled`."""
    lines = (folder / f"evals/step-{step}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["drawn"] == drawn]


def interval(values: np.ndarray, digits: int = 3) -> str:
    """Return the mean of what each row earns, with its 95 % interval: bootstrap over rows."""
    chosen = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), [0.025, 0.975])
    return f"{values.mean():.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def over_seeds(description: str | None, runs: str = "runs") -> argparse.ArgumentParser:
    """Return the options of an experiment on several seeds; `runs` is where its runs are."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path(runs))
    parser.add_argument("--out", type=Path)
    return parser


def tell(text: str, out: Path | None) -> None:
    """Print a text, and write it where that was asked for."""
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")


def train(settings: str, folder: Path, overrides: list[str]) -> Path:
    """Run a config of `configs/` beside this file or a shipped one; return its newest checkpoint."""
    own = CONFIGS / f"{settings}.yaml"
    name = str(own) if own.exists() else settings
    summary = lifecycle.train(config.load(name, [f"run.dir={folder}", "resume=auto", *overrides]))
    if not summary["finished"]:
        raise SystemExit(f"{folder}: interrupted; the same command goes on with it")
    return max((folder / "checkpoints").iterdir(), key=lambda found: found.stat().st_mtime)
