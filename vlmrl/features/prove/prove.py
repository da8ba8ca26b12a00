"""`vlmrl prove`: run the last steps of a run again, and say whether all of it is equal to the bit.

The run itself is only read. `python -m vlmrl.features.prove.prove FOLDER STEP` is what each process runs.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.assemble.trained_run import read_config
from vlmrl.config import Config, ResumeConfig
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.runs import run_folder
from vlmrl.system.files import read_json, read_lines
from vlmrl.system.pickles import load_tensors

# --------------------------------------------------------------------------------------------------
# Compare two run folders at one step, to the bit: tensors, rollouts, metrics, evaluations and calls.


CLOCKS = (
    *("time/", "ranks/", "machine/"),
    *("rollout/trainer_waiting", "rollout/generation_idle"),
)
"""How the names of metrics begin that measure time and memory: no two runs have them in common."""
TIMED_ENDS = ("/seconds", "/requests", "/known")
"""How those of tools and models end that do, or that a reply which is already known changes."""


@dataclass(frozen=True, slots=True)
class ProofDifference:
    """What was compared of one kind: `count` things, `unequal` of them, and the first or largest in words."""

    what: str
    count: int
    unequal: int
    example: str = ""

    def __str__(self) -> str:
        """Return a line for a person."""
        if not self.count:
            return f"{self.what}: none to compare"
        if not self.unequal:
            return f"{self.what}: {self.count} equal to the bit"
        return f"{self.what}: {self.unequal} of {self.count} differ: {self.example}"


def compare_runs(run: Path, again: Path, start: int, end: int) -> list[ProofDifference]:
    """Compare two run folders after step `end`, and what they wrote in the steps after `start`.

    Raises:
        UserError: a file is damaged.
    """
    first, other = (folder / "checkpoints" / f"step-{end}" for folder in (run, again))
    return [
        _compare_tensors("weights, tensors", first, other, trainer=False),
        _compare_tensors("optimizer and state, tensors", first, other, trainer=True),
        _compare_rows("rollouts, prompts", "rollouts", run, again, start, end),
        _compare_metrics(run, again, start, end),
        _compare_rows("evaluations, samples", "evals", run, again, start, end),
    ]


# ------------------------------------------------------------------------------------ tensors


def _compare_tensors(what: str, left: Path, other: Path, trainer: bool) -> ProofDifference:
    first, second = dict(_tensors(left, trainer)), dict(_tensors(other, trainer))
    names = first.keys() | second.keys()
    unequal, largest, example = 0, -1.0, ""
    for name in sorted(names):
        if name not in first or name not in second:
            unequal, largest, example = unequal + 1, math.inf, f"{name} is in one only"
            continue
        distance = _distance(first[name](), second[name]())
        if distance is not None:
            unequal += 1
            if distance > largest:
                largest, example = distance, f"by at most {distance:.3g} ({name})"
    return ProofDifference(what, len(names), unequal, example)


def _tensors(checkpoint: Path, trainer: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the names of a checkpoint's tensors, each with what reads it.

    In which file a weight is says nothing. A rank's slices of the optimizer are told apart by their file, but
    which rank wrote a number that all have differs from run to run.
    """
    import torch
    from safetensors import safe_open

    for path in sorted(checkpoint.rglob("*.safetensors")):
        inside = path.relative_to(checkpoint)
        if (inside.parts[0] == "trainer") != trainer:
            continue
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                of_one = trainer and file.get_slice(name).get_shape()
                label = f"{inside}: {name}" if of_one else f"{inside.parent}: {name}"
                yield label.removeprefix(".: "), functools.partial(_read, path, name)
    if trainer:
        for path in sorted(checkpoint.rglob("*.pt")):
            held = load_tensors(path)
            for name, value in _leaves("", held):
                label = f"{path.relative_to(checkpoint)}: {name}"
                yield label, functools.partial(torch.as_tensor, value)


def _read(path: Path, name: str) -> Any:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


def _leaves(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers of what a file of torch holds, by their place."""
    import torch

    if isinstance(value, torch.Tensor | bool | int | float):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(f"{name}.{key}" if name else str(key), part)


def _distance(a: Any, b: Any) -> float | None:
    """Return the largest difference of two tensors; None where their bits are the same."""
    import torch

    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    ):
        return None
    return float((a.double() - b.double()).abs().max())


# ---------------------------------------------------------------------------- rows and metrics


def _compare_rows(
    what: str, part: str, run: Path, again: Path, start: int, end: int
) -> ProofDifference:
    """Compare every row of the steps that both folders have; seconds that calls took do not count."""
    count, unequal, example = 0, 0, ""
    for step, a, b in pair_rows(part, run, again, start, end):
        count += 1
        # As text, in which what is not a number is equal to itself.
        if json.dumps(untimed(a), sort_keys=True) != json.dumps(untimed(b), sort_keys=True):
            unequal += 1
            example = example or f"first in step {step}, row {(a or b or {}).get('id')}"
    return ProofDifference(what, count, unequal, example)


def pair_rows(
    part: str, run: Path, again: Path, start: int, end: int
) -> Iterator[tuple[int, Any, Any]]:
    """Yield the step and both rows of the same place, of the steps after `start` that both folders have.

    None stands for a row that one lacks.
    """
    files, others = (run_folder.steps_in(f / part, ".jsonl") for f in (run, again))
    for step in sorted(files.keys() & others.keys()):
        if start < step <= end:
            rows = itertools.zip_longest(read_lines(files[step]), read_lines(others[step]))
            yield from ((step, a, b) for a, b in rows)


def untimed(value: object) -> Any:
    """Return JSON without the seconds that calls took."""
    if isinstance(value, list):
        return [untimed(part) for part in value]
    if not isinstance(value, dict):
        return value
    is_call = {"name", "arguments", "seconds"} <= value.keys()
    return {k: untimed(v) for k, v in value.items() if not (is_call and k == "seconds")}


def _compare_metrics(run: Path, again: Path, start: int, end: int) -> ProofDifference:
    first, second = (
        {line["step"]: line for line in run_folder.read_metrics(folder)} for folder in (run, again)
    )
    steps = [step for step in sorted(first.keys() | second.keys()) if start < step <= end]
    unequal, example = 0, ""
    for step in steps:
        a, b = first.get(step, {}), second.get(step, {})
        odd = [
            key
            for key in sorted(a.keys() | b.keys())
            if a.get(key) != b.get(key) and not (key.startswith(CLOCKS) or key.endswith(TIMED_ENDS))
        ]
        if odd:
            unequal += 1
            example = example or f"first in step {step}, {_largest(a, b, odd)}"
    return ProofDifference("metrics, steps", len(steps), unequal, example)


def _largest(a: Mapping[str, object], b: Mapping[str, object], odd: list[str]) -> str:
    """Name the number that differs most as a share of its size, and how many do."""

    def share(key: str) -> float:
        x, y = a.get(key), b.get(key)
        if not isinstance(x, int | float) or not isinstance(y, int | float):
            return math.inf
        return abs(x - y) / max(abs(x), abs(y), 1e-30)

    key = max(odd, key=share)
    return f"{key} {a.get(key)} against {b.get(key)} ({len(odd)} numbers differ)"


def read_ranks(run: Path) -> int:
    """Return on how many ranks a run was last; 1 where it names none."""
    path = run_folder.ranks_path(run)
    if not path.exists():
        return 1
    hosts = read_json(path)
    return len(hosts[max(hosts, key=int)])


def find_unsteady_calls(run: Path, again: Path, start: int, end: int) -> list[str]:
    """Return a sentence for each function whose same call returned something else, with its first place.

    Only completions that agree up to the call count: a policy that is shown something else writes something
    else.
    """
    reasons: dict[str, str] = {}
    pairs = (pair_rows(part, run, again, start, end) for part in ("rollouts", "evals"))
    for step, a, b in itertools.chain.from_iterable(pairs):
        for first, other in zip(*(_completions(row) for row in (a, b)), strict=False):
            for name in _first_unsteady(first, other):
                reasons.setdefault(name, f"first in step {step}, row {(a or b)['id']}")
    return [
        f"calls of {name!r} returned something else for the same arguments: {reason}"
        for name, reason in reasons.items()
    ]


def _completions(row: Mapping[str, Any] | None) -> list[Any]:
    return [completion.get("segments", []) for completion in row["completions"]] if row else []


def _first_unsteady(first: list[Any], other: list[Any]) -> Iterator[str]:
    """Yield the functions whose results are where two completions part; nothing if the policy's text is."""
    asked: list[Any] = []
    for a, b in zip(first, other, strict=False):
        if a["by"] != b["by"] or (a["by"] == "policy" and a["text"] != b["text"]):
            return
        if a["by"] == "tool" and any(a[key] != b[key] for key in ("text", "media", "reward")):
            yield from dict.fromkeys(call["name"] for call in asked)
            return
        calls = zip(a["calls"], b["calls"], strict=False)
        if parted := [x["name"] for x, y in calls if untimed(x) != untimed(y)]:
            yield from dict.fromkeys(parted)
            return
        asked = a["calls"]


# --------------------------------------------------------------------------------------------------


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
        raise UserError(f"{run}: expected the folder of a run, got no config.json")
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
    config = read_config(run)  # as it was, but that all it writes is in `scratch`
    changes = {
        "dir": str(scratch),
        "mirror": None,
        "report": False,
        "keep_checkpoints": 1_000_000,
        "save_in_background": False,
    }
    here = {"run": config.run.model_copy(update=changes), "tracking": {"tensorboard": False}}
    run_folder.write_config(
        scratch, config.model_copy(update={**here, "resume": ResumeConfig(start="auto")})
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
    done = sum(len(batch["groups"]) + len(batch.get("taken", ())) for batch in issued)
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
