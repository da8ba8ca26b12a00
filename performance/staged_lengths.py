"""Do staged lengths (PTST of Vision-R1, arXiv 2503.06749) reach the same IoU with fewer sampled tokens?

    python performance/staged_lengths.py --seeds 0 1 2 --runs runs/staged --out staged_lengths.md

The config `think_or_not`, from one cold start for each seed: 48 tokens throughout, against 24 tokens with
groups of 16 for the first 30 % of training and 48 tokens with groups of 8 after that.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

import json
from pathlib import Path

from learning import Curve, curve, over_seeds, start, tell
from tables import head

CONFIG = "think_or_not"
PROMPTS, GROUP_SIZE = 16, 8
COMMON = ("run.threads=1", "run.steps=80", "evaluation.every=20", "evaluation.force_thinking=false")
WAYS = {
    "constant": (),
    "staged": ("stages=[{until: 0.3, rollout: {max_tokens: 24, group_size: 16}}, {name: long}]",),
}


def sampled_tokens(folder: Path) -> float:
    """Return the tokens that a run sampled, in thousands."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    rollouts = [PROMPTS * row.get("schedule/rollout.group_size", GROUP_SIZE) for row in rows]
    lengths = [row["rollout/length"] for row in rows]
    return sum(n * length for n, length in zip(rollouts, lengths, strict=True)) / 1000


def line(seed: int, name: str, found: Curve, folder: Path) -> str:
    """Return one run as a line of the table."""
    steps = sorted(found)
    low, high = found[steps[-1]]["intervals"]["box_iou"]
    values = [f"{found[step]['metrics']['box_iou']:.3f}" for step in steps]
    values[-1] += f" [{low:.3f}, {high:.3f}]"
    length = found[steps[-1]]["metrics"]["length"]
    cells = [str(seed), name, *values, f"{length:.1f}", f"{sampled_tokens(folder):.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run, print, and write what was asked for."""
    options = over_seeds(__doc__, "runs/staged").parse_args()
    steps = " | ".join(f"step {step}" for step in range(0, 81, 20))
    rows = head(f"| seed | way | {steps} | tokens of an answer | sampled tokens, thousands |")
    for seed in options.seeds:
        begin = start(CONFIG, options.runs / f"start-{seed}", seed)
        for name, way in WAYS.items():
            folder = options.runs / f"{name.replace(' ', '-')}-{seed}"
            rows.append(line(seed, name, curve(CONFIG, folder, seed, begin, *COMMON, *way), folder))
    text = "\n".join(rows)
    tell(text, options.out)


if __name__ == "__main__":
    main()
