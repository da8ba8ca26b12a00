"""Goldens of training: small runs of the quickstart through the command line, each in a fork of this process.

Left out of what is hashed: times, memory, versions, paths, and which rank wrote a number that all have.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import surfaces
import torch
from made import Golden

HELPERS = Path(__file__).parents[1] / "helpers"
SMALL = [
    "run.threads=1",
    "run.steps=5",
    "run.save_every=3",
    "run.keep_checkpoints=2",
    "run.rollouts_every=1",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft.max_steps=6",
    "sft.batch_size=8",
    "sft.warmup_steps=2",
    "sft.stop_at=null",
    "sft.decay_steps=1",
    "rollout.prompts=3",
    "rollout.group_size=4",
    "rollout.max_tokens=8",
    "optimizer.warmup_steps=2",
    "evaluation.every=5",
    "evaluation.limit=4",
    # By the quickstart's own rewards so short a run earns nothing and learns nothing.
    f"rewards=[{HELPERS}/scores.py:varied, {{verifier: format, weight: 0.1}}]",
    "evaluation.metric=varied",
]
UNTAUGHT = ["sft=null", "evaluation=null"]
"""The cold start and the evaluations are the same in all settings: `full` has them."""
CROP = "{card: shapes, options: {task: grounding}, tools: [crop], instruct: false}"
WORLD = "{card: world, environment: grid_world, tools: [crop], instruct: false}"
SETTINGS = {
    "full": [],
    "lora": [*UNTAUGHT, "model.lora={rank: 4}"],
    "shared forward off": [*UNTAUGHT, "optimizer.shared_forward=off"],
    "shared forward on": [*UNTAUGHT, "optimizer.shared_forward=on"],
    "shared forward low memory": [*UNTAUGHT, "optimizer.shared_forward=low_memory"],
    "dapo": [
        *UNTAUGHT,
        "algorithm={name: dapo, options: {dynamic_sampling_batches: 3}}",
        f"rewards=[{HELPERS}/scores.py:sparse]",
    ],
    "staleness 1": [
        *UNTAUGHT,
        "rollout.max_staleness=1",
        f"engine.name={HELPERS}/copy_engine.py:DrainedEngine",
    ],
    "tools": [
        *UNTAUGHT,
        f"data.train=[{CROP}, {WORLD}]",
        "rollout.turns={max_turns: 3}",
        "checks={parity_every: 0}",  # what the stand-in writes, no model would
        f"engine.name={HELPERS}/asking_engine.py:AskingHf",
    ],
}
RANKS = {
    "ddp": [*UNTAUGHT, "distributed.strategy=ddp"],
    "fsdp2": [*UNTAUGHT, "distributed.strategy=fsdp2"],
}
CLOCKS = ("time/", "ranks/", "machine/")
UNSTABLE = ("rollout/generation_idle", "rollout/trainer_waiting")
UNSTABLE += ("seconds", "wall_seconds", "cpu_seconds", "peak_memory_mb", "transformers_version")
FOLLOWED = ("loss/total", "reward/mean", "update/grad_norm")
RESUME_AT = 3
END_S = 300


def make_runs(folder: Path) -> Golden:
    """Train every setting on one process; `resume` goes on with `full` from its third step."""
    golden = Golden("runs", exact=True, tolerance=1e-2)
    for name, more in SETTINGS.items():
        _add(golden, name, folder, lambda run, more=more: _train([[*SMALL, *more, run]]))
    start = f"resume={folder / 'full'}/checkpoints/step-{RESUME_AT}"
    _add(golden, "resume", folder, lambda run: _train([[*SMALL, start, run]]))
    return golden


def make_ranks(folder: Path) -> Golden:
    """Train every strategy of several ranks on two processes."""
    golden = Golden("ranks", exact=True, tolerance=1e-2)
    for name, more in RANKS.items():
        _add(golden, name, folder, lambda run, more=more: _train([[*SMALL, *more, run]] * 2))
    return golden


def _add(golden: Golden, name: str, folder: Path, train: Callable[[str], None]) -> None:
    run = folder / name.replace(" ", "_")
    train(f"run.dir={run}")
    golden.add(f"{name} files", _names(run), folder)
    curves = {file: _rows(run / file) for file in ("metrics.jsonl", "sft.jsonl", "loopholes.jsonl")}
    golden.add(f"{name} metrics", curves, folder)
    golden.add(f"{name} rollouts", {p.name: _rows(p) for p in run.glob("rollouts/*.jsonl")}, folder)
    golden.add(f"{name} tokens", {p.name: _rows(p) for p in run.glob("tokens/*.jsonl")}, folder)
    found = {p.name: _stable(json.loads(p.read_text())) for p in run.glob("evals/*.json")}
    found |= {p.name: _rows(p) for p in run.glob("evals/*.jsonl")}
    found |= {"summary": _stable(json.loads((run / "summary.json").read_text()))}
    golden.add(f"{name} results", found, folder)
    saved = {str(p.relative_to(run)): p for p in sorted(run.glob("checkpoints/*"))}
    golden.add(f"{name} checkpoints", {k: dict(_states(p)) for k, p in saved.items()}, folder)
    first = curves["metrics.jsonl"][0]  # later ones depend on what rounding made of it
    golden.numbers[name] = {key: first[key] for key in FOLLOWED}


def _train(ranks: Sequence[Sequence[str]]) -> None:
    """Run `vlmrl train quickstart` with the given keys, one fork a rank."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        context.Process(target=_run_rank, args=(keys, number, len(ranks), port))
        for number, keys in enumerate(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(END_S)
        if process.exitcode != 0:
            log = _log(ranks[0]).read_text() if _log(ranks[0]).exists() else ""
            raise RuntimeError(f"train {' '.join(ranks[0])}: exit code {process.exitcode}\n{log}")


def _log(keys: Sequence[str]) -> Path:
    return Path(f"{keys[-1].removeprefix('run.dir=')}.log")


def _run_rank(keys: Sequence[str], number: int, count: int, port: str) -> None:
    if count > 1:
        places = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count}
        places |= {"LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in places.items()})
    with _log(keys).open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv = ["vlmrl", "train", "--quiet", "--debug", "quickstart", *keys]
    surfaces.main()


# --------------------------------------------------------------------------------- run folders


def _names(run: Path) -> list[str]:
    return sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file())


def _rows(path: Path) -> list[Any]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [_stable(json.loads(line)) for line in lines]


def _stable(value: Any) -> Any:
    """Return the value without what no two runs have in common."""
    if isinstance(value, list):
        return [_stable(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _stable(inner)
        for key, inner in value.items()
        if not (key.startswith(CLOCKS) or key.endswith("/seconds") or key in UNSTABLE)
    }


def _states(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    """Yield the content of a checkpoint by name: tensors as their hashes."""
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file()):
        name = str(path.relative_to(checkpoint))
        if path.suffix == ".safetensors":
            for key, value in safetensors.torch.load_file(path).items():
                # A number that all ranks have is written by any one of them.
                yield (f"{key}" if value.ndim == 0 else f"{name} {key}"), _hash_tensors(value)
        elif path.suffix == ".pt":
            yield name, _hash_tensors(torch.load(path, weights_only=True))
        elif path.name == "checksums.json":
            continue  # of files with times in them
        elif path.suffix == ".json":
            yield name, _stable(json.loads(path.read_text()))
        else:
            yield name, hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _hash_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {list(value.shape)} {hashlib.sha256(raw).hexdigest()[:16]}"
    if isinstance(value, Mapping):
        return {str(key): _hash_tensors(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hash_tensors(inner) for inner in value]
    return value
