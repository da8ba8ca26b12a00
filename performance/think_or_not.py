"""Think or not against always thinking, on several seeds, with a control.

    python performance/think_or_not.py --seeds 0 1 2 --runs runs --out performance/results/think_or_not.md

Both are the config `think_or_not`; the partner demonstrates every thought (no dropout) and its
template demands one. Runs that are already finished in the runs folder are read, not run again.
The bar, on every seed: greedy completions at least 40 % shorter than the partner's, and held-out
greedy IoU not lower by more than 0.02. With rewards shuffled over the batch IoU must not rise by
more than 0.03 in 25 steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learning import over_seeds, tell
from tables import head

from vlmrl import config
from vlmrl.assemble import lifecycle

ALWAYS = (
    "data.train.shapes.template=think_answer",
    "sft.sources.shapes.template=think_answer",
    "sft.thought_dropout=0",
)
CONTROL = ("control.shuffle_rewards=true", "run.steps=25", "evaluation.every=25")
SHORTER, LOWER = 0.4, 0.02

Summary = dict[str, Any]


def run(folder: Path, *overrides: str) -> Summary:
    """The summary of one run; runs it if it is not there."""
    settings = config.load(
        "think_or_not", [f"run.dir={folder}", "run.threads=1", "resume=auto", *overrides]
    )
    return lifecycle.train(settings)


def row(seed: int, name: str, summary: Summary) -> str:
    """One run as a line of the table."""
    before, after = (summary[f"{when}_evaluation"]["metrics"] for when in ("first", "last"))
    low, high = summary["last_evaluation"]["intervals"]["box_iou"]
    gain_low, gain_high = summary["last_evaluation"]["intervals"]["forced/gain/box_iou"]
    cells = [
        str(seed),
        name,
        f"{before['box_iou']:.3f}",
        f"{after['box_iou']:.3f} [{low:.3f}, {high:.3f}]",
        f"{before['sampled/box_iou']:.3f}, {after['sampled/box_iou']:.3f}",
        f"{before['length']:.1f}, {after['length']:.1f}",
        f"{before['sampled/length']:.1f}, {after['sampled/length']:.1f}",
        f"{before['sampled/mode/direct/share']:.2f}, {after['sampled/mode/direct/share']:.2f}",
        f"{after['forced/think/box_iou']:.3f} - {after['forced/direct/box_iou']:.3f} = "
        f"{after['forced/gain/box_iou']:+.3f} [{gain_low:+.3f}, {gain_high:+.3f}]",
    ]
    return f"| {' | '.join(cells)} |"


def table(pairs: dict[int, tuple[Summary, Summary]], control: Summary) -> str:
    """The figures as Markdown, and whether the bar is passed."""
    columns = [
        *("seed", "", "IoU before", "after", "sampled IoU", "tokens", "sampled tokens"),
        *("sampled direct share", "forced to think - not to"),
    ]
    lines = head(f"| {' | '.join(columns)} |")
    said = []
    for seed, (free, always) in pairs.items():
        lines += [row(seed, "think or not", free), row(seed, "always think", always)]
        ours, theirs = (s["last_evaluation"]["metrics"] for s in (free, always))
        shorter = 1 - ours["length"] / theirs["length"]
        sampled = 1 - ours["sampled/length"] / theirs["sampled/length"]
        change = ours["box_iou"] - theirs["box_iou"]
        passed = shorter >= SHORTER and change >= -LOWER
        said.append(
            f"Seed {seed}: {shorter:.0%} shorter (sampled: {sampled:.0%}), IoU {change:+.3f}: "
            f"{'passes' if passed else 'FAILS'}."
        )
    before, after = (control[f"{w}_evaluation"]["metrics"]["box_iou"] for w in ("first", "last"))
    said.append(
        f"Control, rewards shuffled, {control['steps']} steps: {before:.3f} -> {after:.3f}."
    )
    return "\n".join([*lines, "", *said])


def main() -> None:
    """Run, print, and write what was asked for."""
    options = over_seeds(__doc__).parse_args()
    pairs = {
        seed: (
            run(options.runs / f"think_or_not-{seed}", f"run.seed={seed}"),
            run(options.runs / f"always_think-{seed}", f"run.seed={seed}", *ALWAYS),
        )
        for seed in options.seeds
    }
    text = table(pairs, run(options.runs / "think_or_not-shuffled", *CONTROL))
    tell(text, options.out)


if __name__ == "__main__":
    main()
