"""Does a policy that guesses from the question come to look, and what do its own witnesses add?

    python performance/shortcut.py --seeds 0 1 2 --runs runs/shortcut --out performance/results/shortcut.md

The config `configs/shortcut.yaml` beside this file, all ways from one cold start for each seed: plain
GRPO, with `caption_sufficiency`, with `blind_penalty`, with both. Held-out accuracy on the rows whose
answer the question gives away and on the others, and the canary: what blank images cost.

Run it where the repository is. Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from learning import Curve, curve, over_seeds, start, tell
from tables import head

from vlmrl.runs import run_folder

CONFIG = "shortcut"
Found = tuple[Curve, dict[int, list[str]], dict[int, str]]
"""Of a run: its evaluations, the canary and the descriptions, each by step."""
CAPTION = "{name: caption_sufficiency, options: {weight: 0.1}}"
BLIND = "{name: blind_penalty, options: {count: 8}}"
WAYS = {
    "plain": (),
    "caption sufficiency": (f"strategies=[{CAPTION}]",),
    "blind penalty": (f"strategies=[{BLIND}]",),
    "both": (f"strategies=[{CAPTION}, {BLIND}]",),
}
CANARY = ("media_ablation/blank_reward_drop", "media_ablation/blank_logprob_drop")
COLUMNS = (
    *("guessable", "unguessable", "unguessable, sampled", "blank costs reward", "nats a token"),
    "descriptions with the colour",
)


def shares(evaluation: dict[str, Any]) -> list[str]:
    """Return the shares of right answers with their intervals of 95 %."""
    cells = []
    for name in ("guessable/exact", "unguessable/exact", "sampled/unguessable/exact"):
        low, high = evaluation["intervals"][name]
        cells.append(f"{evaluation['metrics'][name]:.3f} [{low:.3f}, {high:.3f}]")
    return cells


def canary(folder: Path) -> dict[int, list[str]]:
    """Return what blank images cost at the steps at which it was measured, by steps done before."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    found = {line["step"] - 1: [line.get(name) for name in CANARY] for line in lines}
    return {
        step: ["-" if value is None else f"{value:.3f}" for value in values]
        for step, values in found.items()
        if any(value is not None for value in values)
    }


def described(folder: Path) -> dict[int, str]:
    """Return by step the share of completions whose description names the right colour."""
    found = {}
    for step, path in run_folder.steps_in(folder / "rollouts", ".jsonl").items():
        named = []
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            for completion in row["completions"]:
                said = re.search(r"<info>(.*?)</info>", completion["text"], re.DOTALL)
                named.append(said is not None and row["truth"]["text"][0] in said[1])
        found[step] = f"{sum(named) / len(named):.2f}"
    return found


def table(found: dict[int, dict[str, Found]]) -> str:
    """Return accuracies, canary and descriptions before, and after each way, as a Markdown table."""
    rows = head(f"| seed | way | {' | '.join(COLUMNS)} |")
    for seed, ways in found.items():
        before = next(iter(ways.values()))
        lines = [("before", *before, min), *((name, *found, max) for name, found in ways.items())]
        for name, evaluations, costs, said, end in lines:
            cells = [*shares(evaluations[end(evaluations)]), *costs[end(costs)], said[end(said)]]
            rows.append(f"| {seed} | {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__, "runs/shortcut")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    found: dict[int, dict[str, Found]] = {}
    for seed in options.seeds:
        begin = start(CONFIG, options.runs / f"start-{seed}", seed)
        found[seed] = {}
        for name in options.ways:
            folder = options.runs / f"{name.replace(' ', '-')}-{seed}"
            evaluations = curve(CONFIG, folder, seed, begin, *WAYS[name])
            found[seed][name] = (evaluations, canary(folder), described(folder))
    tell(table(found), options.out)


if __name__ == "__main__":
    main()
