"""`vlmrl prove`: run the last steps of a run again, and say whether all of it is equal to the bit.

The run itself is only read. `python -m vlmrl.features.prove.prove FOLDER STEP` is what each process runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.assemble.trained_run import read_config
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.features.prove.compared_runs import (
    ProofDifference,
    compare_runs,
    find_unsteady_calls,
    read_ranks,
)
from vlmrl.policy import checkpoint
from vlmrl.runs import run_folder
from vlmrl.system.files import read_json


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of running steps `start + 1` to `end` again on `ranks` ranks."""

    run: Path
    start: int
    end: int
    ranks: int
    differences: Sequence[ProofDifference]
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
        unsteady = find_unsteady_calls(run, Path(folder), start, end)
    causes = [
        *unsteady,
        *list_unfinished(run / "checkpoints" / f"step-{start}", config),
        *list_changes(read_json(run / "config.json")),
        *list_inexact(config, ranks),
    ]
    return Proof(run, start, end, ranks, differences, causes)


def _choose(run: Path, steps: int | None, config: Config) -> tuple[int, int]:
    """Return the steps of the checkpoints to begin from and to end at."""
    orders = (run_folder.checkpoint_order(path.name) for path in run_folder.checkpoints(run))
    steps_kept = sorted(step for is_rl, step in orders if is_rl)
    if not steps_kept:
        raise UserError(f"{run}: expected checkpoints of GRPO steps, got none")
    end = steps_kept[-1]
    earlier = [step for step in steps_kept if step <= end - (steps or 1)]
    if not earlier:
        far = f" at least {steps} steps" if steps else ""
        raise UserError(
            f"{run}: expected a checkpoint{far} before step-{end}, got "
            f"{', '.join(f'step-{step}' for step in steps_kept)}: this run kept the last "
            f"{config.run.keep_checkpoints} (run.keep_checkpoints; run.save_every is "
            f"{config.run.save_every}), so its steps cannot be run again"
        )
    for step in (earlier[-1], end):
        path = run / "checkpoints" / f"step-{step}"
        if damage := checkpoint.damage_of(path):
            raise UserError(f"{path} is damaged: {damage}")
    return earlier[-1], end


KEPT = ("metrics.jsonl", "sft.jsonl", "quarantine.jsonl", "ranks.json", "loopholes.jsonl")
FOLDERS = ("reference", "replies")
LAST_LINES = 12


def run_again(run: Path, scratch: Path, start: int, end: int, ranks: int) -> None:
    """Train from checkpoint `step-<start>` to step `end` in `scratch`; the run itself is only read.

    Raises:
        UserError: the run's config or a file is damaged, or the processes failed; the message ends with
            the last lines that they printed.
    """
    _prepare(run, scratch, start)
    log = scratch / "output.log"
    command = [sys.executable, "-m"]
    if ranks > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    command += [__name__, str(scratch), str(end)]
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    if code:
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise UserError(
            f"the steps could not be run again (exit code {code}):\n" + "\n".join(lines)
        )


def _prepare(run: Path, scratch: Path, start: int) -> None:
    """Copy what the steps begin from: a checkpoint, the curves, and what named models replied."""
    name = f"step-{start}"
    (scratch / "checkpoints").mkdir()
    # It may have gigabytes, and nothing writes to a checkpoint that is there.
    (scratch / "checkpoints" / name).symlink_to((run / "checkpoints" / name).absolute())
    for file in (run / kept for kept in KEPT):
        if file.exists():
            shutil.copy2(file, scratch / file.name)
    for folder in (run / kept for kept in FOLDERS):
        if folder.is_dir():
            shutil.copytree(folder, scratch / folder.name)
    run_folder.write_config(scratch, _here(read_config(run), scratch))


def _here(config: Config, scratch: Path) -> Config:
    """Return the config of the steps: as it was, but that all it writes is in `scratch`."""
    changes = {
        "dir": str(scratch),
        "mirror": None,
        "report": False,
        "keep_checkpoints": 1_000_000,
        "save_in_background": False,
    }
    run = config.run.model_copy(update=changes)
    return config.model_copy(
        update={"run": run, "resume": "auto", "tracking": {"tensorboard": False}}
    )


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


if __name__ == "__main__":  # one process of `run_again`
    from vlmrl.assemble import lifecycle

    lifecycle.train(read_config(Path(sys.argv[1])), until=int(sys.argv[2]))
