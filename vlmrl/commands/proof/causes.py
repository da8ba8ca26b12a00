"""What may make two runs of the same steps differ: candidates, none of which is tested alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.config import Config
from vlmrl.policy import checkpoint
from vlmrl.runs import run_folder

__all__ = ["list_changes", "list_inexact", "list_unfinished"]


def list_changes(written: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is other than when the run began or was last resumed."""
    was, now = written["versions"], run_folder.versions()
    for package in sorted(was.keys() | now.keys()):
        if was.get(package) != now.get(package):
            yield f"{package} was {was.get(package, 'absent')}, is {now.get(package, 'absent')}"
    before, here = written["git"] or {}, run_folder.revision() or {}
    if before.get("revision") != here.get("revision"):
        yield f"vlmrl was at git {before.get('revision')}, is at {here.get('revision')}"
    if before.get("changed") or here.get("changed"):
        yield "vlmrl's source had, or has, changes that are not committed"


def list_unfinished(begin: Path, config: Config) -> Iterator[str]:
    """Yield that rollouts issued ahead were not finished in the checkpoint `begin`, if so it is."""
    issued = checkpoint.read_queue(begin)
    done = sum(len(batch["groups"]) for batch in issued)
    wanted = sum(config.at_step(batch["key"][0]).rollout.prompts for batch in issued)
    if done < wanted:
        yield (
            f"checkpoint {begin.name} holds {done} of the {wanted} groups that were issued ahead: the others "
            "were sampled again, by its weights or newer ones"
        )


def list_inexact(config: Config, ranks: int) -> Iterator[str]:
    """Yield what such a run does that need not be the same twice."""
    import torch

    if torch.cuda.is_available():
        yield "a GPU: several of its kernels add in an order that is not fixed"
    if not config.run.threads:
        yield (
            f"run.threads is not set: sums depend on the number of threads, now {torch.get_num_threads()} "
            f"(OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})"
        )
    elif config.run.threads > 1:
        yield f"run.threads={config.run.threads}: only one thread adds in the same order every time"
    if config.engine.name.startswith("vllm"):
        yield f"engine {config.engine.name}: its kernels depend on which requests share a batch"
    if config.rollout.max_staleness:
        yield (
            f"rollout.max_staleness={config.rollout.max_staleness}: with engines that serve several requests "
            "at a time, which weights sample a token depends on time"
        )
    if ranks > 1:
        yield f"{ranks} ranks: on other machines, or another backend, sums have another order"
    held_out = config.evaluation.sources if config.evaluation else []
    for source in (*config.data.train, *held_out):
        for tool in source.tools:
            if not plugins.load("tool", tool.name).pure:
                yield f"tool {tool.name!r} of source {source.label!r} is not a function of its arguments"
        if source.environment is not None:
            yield f"environment {source.environment.name!r} of source {source.label!r} may keep a state"
    for name in config.models:
        yield f"model {name!r} is asked again for what it has not answered before"
