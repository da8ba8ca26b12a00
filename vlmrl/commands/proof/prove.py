"""`vlmrl prove`: run the last steps of a run again, and say whether all of it is equal to the bit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.commands.proof.compare import Difference, compare_runs, read_ranks
from vlmrl.commands.proof.rerun import run_again
from vlmrl.commands.trained_run import read_config
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.runs import run_folder
from vlmrl.system.atomic_files import read_json

__all__ = ["Proof", "prove"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of running steps `start + 1` to `end` again on `ranks` ranks."""

    run: Path
    start: int
    end: int
    ranks: int
    differences: Sequence[Difference]
    causes: Sequence[str]
    """What may have made a difference: what is other than it was, and what is never the same twice."""

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return not any(difference.unequal for difference in self.differences)

    def lines(self) -> Iterator[str]:
        """Yield the outcome for a person, the verdict first."""
        steps = f"steps {self.start + 1} to {self.end} of {self.run}, run again"
        on = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        yield f"{'EQUAL' if self.equal else 'NOT EQUAL'}: {steps}{on} from checkpoint step-{self.start}"
        yield from (f"  {difference}" for difference in self.differences)
        if not self.equal:
            yield "what may have made the difference:" if self.causes else "no cause is known"
            yield from (f"  - {cause}" for cause in self.causes)


def prove(run: Path, steps: int | None = None) -> Proof:
    """Run the steps after an earlier checkpoint again in a scratch folder; `run` is only read.

    They begin from the last checkpoint before the newest one, or the last that is at least `steps`
    before it.

    Raises:
        UserError: no run, no such checkpoint, or the steps cannot be run again.
    """
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: not a run folder (it has no config.json)")
    config = read_config(run)
    start, end = _choose(run, steps, config)
    ranks = read_ranks(run)
    with tempfile.TemporaryDirectory(prefix="vlmrl-prove-") as folder:
        run_again(run, Path(folder), start, end, ranks)
        differences = compare_runs(run, Path(folder), start, end)
    causes = [*_changed(read_json(run / "config.json")), *_inexact(config, ranks)]
    return Proof(run, start, end, ranks, differences, causes)


def _choose(run: Path, steps: int | None, config: Config) -> tuple[int, int]:
    """Return the steps of the checkpoints to begin from and to end at."""
    found = sorted(
        step for is_rl, step in map(checkpoint.order_of, checkpoint.find_all(run)) if is_rl
    )
    if not found:
        raise UserError(f"{run}: expected checkpoints of GRPO steps, got none")
    end = found[-1]
    earlier = [step for step in found if step <= end - (steps or 1)]
    if not earlier:
        far = f" at least {steps} steps" if steps else ""
        raise UserError(
            f"{run}: expected a checkpoint{far} before step-{end}, got "
            f"{', '.join(f'step-{step}' for step in found)}: this run kept the last "
            f"{config.run.keep_checkpoints} (run.keep_checkpoints; run.save_every is "
            f"{config.run.save_every}), so its steps cannot be run again"
        )
    for step in (earlier[-1], end):
        path = run / "checkpoints" / f"step-{step}"
        if damage := checkpoint.damage_of(path):
            raise UserError(f"{path} is damaged: {damage}")
    return earlier[-1], end


# ------------------------------------------------------------------------------------- causes


def _changed(written: Mapping[str, Any]) -> Iterator[str]:
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


def _inexact(config: Config, ranks: int) -> Iterator[str]:
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
    for source in config.data.train:
        for tool in source.tools:
            if not plugins.load("tool", tool.name).pure:
                yield f"tool {tool.name!r} of source {source.label!r} is not a function of its arguments"
        if source.environment is not None:
            yield f"environment {source.environment.name!r} of source {source.label!r} may keep a state"
    for name in config.models:
        yield f"model {name!r} is asked again for what it has not answered before"
