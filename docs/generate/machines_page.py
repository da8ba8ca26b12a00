"""The table of `docs/scale/machines.md`: which recipe's model fits on the machines of the presets.

Its plans take some ten minutes, so the page shows the stored table; write it again with

    python docs/generate/machines_page.py > performance/results/machines.md
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from recipe_facts import recipes
from tables import code, header, row

from vlmrl.config import Config, load
from vlmrl.features.plan.layouts import as_overrides, layout_of
from vlmrl.features.plan.planner import PlanIssue, Planner, PromptContent, find_verdicts
from vlmrl.features.plan.published import Assumptions, gpu

STORED = Path(__file__).parents[2] / "performance" / "results" / "machines.md"
PRESETS: Mapping[str, tuple[str, int]] = {
    "1x24gb": ("rtx4090", 1),
    "1x80gb": ("h100", 1),
    "8x24gb": ("rtx4090", 8),
    "8x80gb": ("h100", 8),
    "2x8x80gb": ("h100", 16),
}
"""Name of a preset -> the kind of GPU that it is planned on, and their number."""
MENDS: Sequence[Sequence[str]] = (
    ["optimizer.name=adamw_8bit"],
    ["model.lora={rank: 32}", "engine.options.gpu_memory_utilization=0.5"],
    ["model.lora={rank: 32}", "engine=hf"],
)
"""Keys that are tried where a change of the layout does not suffice, in this order."""


def names() -> Iterator[str]:
    """Yield the presets as a command line takes them."""
    return (f"machines/{name}" for name in PRESETS)


def heaviest() -> Mapping[str, tuple[str, int]]:
    """Return for each model the recipe with the longest completions, and how many have it."""
    named: dict[str, list[tuple[int, int, str]]] = {}
    for name, recipe in recipes().items():
        rollout = recipe.config.at(0).rollout
        path = str(recipe.config.model.path)
        named.setdefault(path, []).append((rollout.max_tokens, rollout.prompts, name))
    return {path: (max(found)[2], len(found)) for path, found in sorted(named.items())}


def draw() -> str:
    """Return the stored table, without its title."""
    lines = STORED.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def table() -> str:
    """Return the table: a row for each model, a column for each preset."""
    lines = [*header("model", "recipes", "planned for", *PRESETS)]
    # The models of a plan are not freed: a process for each plan.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for path, (recipe, number) in heaviest().items():
            cells = [pool.apply(verdict, (recipe, preset)) for preset in PRESETS]
            lines.append(row(code(path), str(number), code(recipe), *cells))
    return "\n".join(lines)


def verdict(recipe: str, preset: str) -> str:
    """Return whether a recipe fits with a preset, or what does not and the keys that mend it."""
    laid_over = f"machines/{preset}"
    share, fails = _plan(load(recipe, [laid_over]), preset)
    if not fails:
        return f"fits, {share:.0%}"
    if len(fails) == 1 and fails[0].change and fails[0].part == "memory":
        return f"{share:.0%}; {code(as_overrides(fails[0].change))}"
    for keys in MENDS:
        if "adamw_8bit" in keys[0] and PRESETS[preset][1] > 1:
            continue  # fsdp2 does not shard it
        now, left = _plan(load(recipe, [laid_over, *keys]), preset)
        if not left:
            return f"{share:.0%}; {now:.0%} with {' '.join(map(code, keys))}"
    return f"{share:.0%}; not with these keys: {fails[0].text}"


def _plan(config: Config, preset: str) -> tuple[float, Sequence[PlanIssue]]:
    """Return the share of a rank's memory that a config needs, and what fails."""
    kind, number = PRESETS[preset]
    planner = Planner(config, gpu(kind), Assumptions.of(), PromptContent())
    judged = planner.rate(layout_of(planner.config, number))
    issues = find_verdicts(planner, judged)
    return judged.memory.share, [issue for issue in issues if issue.level == "FAIL"]


if __name__ == "__main__":
    print("# Which model fits on the machines of the presets\n")
    print("Written by `docs/generate/machines_page.py`; no GPU was asked.\n")
    print(table())
