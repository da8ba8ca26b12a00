"""The table and the files of `docs/start/which_gpu.md`: whole configs for six machines, with their plans.

Six plans take minutes, so the page shows the stored table; write it again with

    python docs/generate/starts_page.py > performance/results/starts.md

A time of a step is left open until a GPU has measured it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from pathlib import Path

from tables import code, header, row

from vlmrl.config import load, tree
from vlmrl.errors import UserError
from vlmrl.features.plan.layouts import layout_of
from vlmrl.features.plan.planner import Planner, PromptContent, find_verdicts
from vlmrl.features.plan.published import Assumptions, gpu

STORED = Path(__file__).parents[2] / "performance" / "results" / "starts.md"
MACHINES: Mapping[str, tuple[str, int]] = {
    "qwen3b_1x24gb": ("rtx4090", 1),
    "qwen7b_1x48gb": ("l40s", 1),
    "qwen3b_1x80gb": ("a100", 1),
    "qwen3b_8x24gb": ("rtx4090", 8),
    "qwen7b_8x80gb": ("h100", 8),
    "qwen7b_2x8x80gb": ("h100", 16),
}
"""Name of a config in `configs/starts` -> the kind of GPU that it is planned on, and their number."""
PIXELS = 401_408
"""Of the image of a prompt: as large as the configs let it be."""
OPEN = "once a GPU has measured it"


def draw() -> str:
    """Return the stored table, without its title."""
    lines = STORED.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def files() -> str:
    """Return the text of the base and of each config, under its name."""
    shipped = tree.shipped()
    blocks = []
    for name in ("photos", *MACHINES):
        text = shipped[f"starts/{name}"].read_text(encoding="utf-8")
        blocks.append(f'```yaml title="configs/starts/{name}.yaml"\n{text}```')
    return "\n\n".join(blocks)


def table() -> Iterator[str]:
    """Yield the lines of the table; a config that does not fit is an error.

    Raises:
        UserError: `plan` says that a config cannot run as it is.
    """
    yield from header("machine", "config", "model", "memory of a card, GiB, planned", "s a step")
    # The models of a plan are not freed: a process for each plan.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        yield from pool.imap(plan, MACHINES)


def plan(name: str) -> str:
    """Return the line of a config.

    Raises:
        UserError: `plan` says that it cannot run as it is.
    """
    kind, number = MACHINES[name]
    config, card = load(f"starts/{name}"), gpu(kind)
    planner = Planner(config, card, Assumptions.of(), PromptContent(1, PIXELS))
    judged = planner.rate(layout_of(planner.config, number))
    for issue in find_verdicts(planner, judged):
        if issue.level == "FAIL":
            raise UserError(f"starts/{name}: {issue.part}: {issue.text}")
    machine = f"{number} x {card.memory_gb:g} GB ({card.name})"
    trains = "adapters" if config.model.lora else "all weights"
    model = f"{Path(str(config.model.path)).name}, {trains}"
    memory = f"{judged.memory.peak / 2**30:.1f} of {judged.memory.capacity / 2**30:.1f}"
    return row(machine, code(f"starts/{name}"), model, memory, OPEN)


if __name__ == "__main__":
    print("# Memory of the configs for six machines\n")
    print("Written by `docs/generate/starts_page.py`; no GPU was asked.\n")
    print(*table(), sep="\n")
