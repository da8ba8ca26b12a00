"""What a step costs on one to eight ranks of a tiny model, beside what `vlmrl plan` expects; prints Markdown.

    unshare --net --map-root-user sh -c "ip link set lo up && python performance/ranks.py --out FILE"

The quickstart's model and batch, one thread a rank, gloo. CPU seconds and bytes of a step are of all ranks
together: what six steps take beyond two, divided by four, so that starting does not count. Bytes are those
that pass the loopback device, so a network namespace of its own leaves others' out; `plan` expects a ring
that sums gradients, and for `fsdp2` gathers weights twice in each micro-batch. The optimizer's state is that
of the largest file a rank writes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from learning import tell
from tables import head

from helpers.runs import torchrun
from vlmrl.config import load
from vlmrl.features.plan.layouts import layout_of
from vlmrl.features.plan.planner import Planner, PromptContent
from vlmrl.features.plan.published import Assumptions, gpu

FEW, MANY = 2, 6
SETTINGS = [
    "run.threads=1",
    "run.report=false",
    "sft=null",
    "evaluation=null",
    f"rewards=[{Path(__file__).parents[1]}/tests/helpers/scores.py:varied]",
    "tracking.tensorboard=false",
    "checks={parity_every: 0, media_ablation_every: 0}",
]
SHOWN = PromptContent(images=1, pixels=84 * 84, text_tokens=30)
STATE = (".pt", ".safetensors")
"""Endings of files of the optimizer's state."""
Cost = tuple[float, float]
"""CPU seconds, and MB over the loopback device."""


def received() -> float:
    """Return the MB that the loopback device of this network namespace has received."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return next(int(x.split()[1]) for x in lines if x.strip().startswith("lo:")) / 1e6


def cost(folder: Path, ranks: int, steps: int, changes: Sequence[str]) -> Cost:
    """Train; return what all ranks together took, starting included."""
    before, heard = resource.getrusage(resource.RUSAGE_CHILDREN), received()
    own = [*SETTINGS, *changes, f"run.dir={folder}", f"run.steps={steps}"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", *own, processes=ranks, timeout=900)
    if done.returncode:
        raise SystemExit(f"{ranks} ranks: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds, received() - heard


def planned(ranks: int, changes: Sequence[str]) -> tuple[float, float]:
    """Return what `plan` expects: MB that all ranks send in a step, and MB of a rank's optimizer."""
    planner = Planner(
        load("quickstart", [*SETTINGS, *changes]), gpu("h100"), Assumptions.of(), SHOWN
    )
    layout = layout_of(planner.config, ranks)
    rated = planner.rate(layout)
    optimizer = rated.memory.parts["optimizer"] / 1e6
    model, step = planner.model, planner.step
    if layout.shards == 1:
        sent = 2 * 4 * model.trained * (ranks - 1)
    else:
        sent = (2 * model.gathered_bytes + 4 * model.trained) * (ranks - 1) * step.minibatches
    return sent * step.epochs / 1e6, optimizer


def line(strategy: str, ranks: int, folder: Path, alone: float | None) -> tuple[str, float]:
    """Measure; return a line of the table, and the CPU seconds of a step; `alone`: those of one rank."""
    changes = [f"distributed.strategy={strategy}"]
    few, many = (
        cost(folder / f"{strategy}-{ranks}-{steps}", ranks, steps, changes) for steps in (FEW, MANY)
    )
    seconds, megabytes = ((b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True))
    run = folder / f"{strategy}-{ranks}-{MANY}"
    files = (run / f"checkpoints/step-{MANY}/trainer").rglob("*")
    state = max(file.stat().st_size for file in files if file.suffix in STATE) / 1e6
    memory = last_memory(run)
    sent, expected = planned(ranks, changes)
    return (
        f"| {strategy} | {ranks} | {seconds:.2f} ({seconds / (alone or seconds):.2f}) | {memory:.0f} "
        f"| {megabytes:.1f} | {sent:.1f} | {state:.2f} | {expected:.2f} |"
    ), seconds


def last_memory(run: Path) -> float:
    """Return the memory of rank 0 after the last step, in MiB."""
    newest = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    return float(json.loads(newest)["machine/memory_mb"])


def main() -> None:
    """Measure and print the table."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    table = head(
        "| strategy | ranks | CPU s a step, all ranks (of one) | memory of rank 0, MiB | MB sent a step "
        "| by plan | optimizer of a rank, MB | by plan |"
    )
    with tempfile.TemporaryDirectory() as folder:
        for strategy in ("ddp", "fsdp2"):
            alone = None
            for ranks in asked.ranks:
                told, seconds = line(strategy, ranks, Path(folder), alone)
                alone = alone or seconds
                table.append(told)
                tell("\n".join(table), asked.out)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
