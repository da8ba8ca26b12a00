"""Runs whose rollouts are made ahead of the trainer, and what they trained on."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vlmrl.assemble import build, lifecycle
from vlmrl.config import load
from vlmrl.policy.checkpoint import Progress

HELPERS = Path(__file__).parent


TINY = [
    "run.threads=1",
    "run.steps=6",
    "run.save_every=1",
    "run.keep_checkpoints=9",
    "run.rollouts_every=1",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft=null",
    "rollout.prompts=3",
    "rollout.group_size=3",
    "rollout.max_tokens=6",
    "evaluation=null",
    "checks.media_ablation_every=0",
    "checks.parity_every=0",
    "optimizer.lr=1e-2",
    f"rewards=[{HELPERS}/scores.py:varied]",
]


SPARSE = f"rewards=[{HELPERS}/scores.py:sparse]"


COPY = f"engine.name={HELPERS}/copy_engine.py:CopyEngine"


def ahead_config(folder: Path, *more: str):
    return load("quickstart", [f"run.dir={folder}", *TINY, COPY, *more])


@contextmanager
def begin_training(settings):
    """A trainer at the beginning of a run."""
    with ExitStack() as stack:
        trainer = build.build_trainer(settings, None, Progress(), stack)
        lifecycle.begin_rl(trainer, None, Progress())
        yield trainer


def ids_of(rollouts) -> list[str]:
    return [prompt.sample.id for prompt in rollouts.batch.prompts]


def trained_ids(folder: Path) -> list[list[str]]:
    """The samples of every step that a run has finished."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"), key=lambda p: int(p.stem[5:]))
    return [[json.loads(line)["id"] for line in f.read_text().splitlines()] for f in files]


def no_thread_is_left() -> bool:
    return not any(thread.name == "rollouts" for thread in threading.enumerate())
