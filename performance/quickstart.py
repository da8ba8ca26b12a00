"""The quickstart on several seeds, with its control: does it pass its bar, and what is its curve?

    python performance/quickstart.py --seeds 0 1 2 --runs runs --out performance/results/quickstart.md

Runs that are already finished in the runs folder are read, not run again. The bar: held-out greedy
IoU rises by at least 0.10 and reaches 0.60 within 150 steps on every seed (mean 0.65), format stays
at 0.95; with rewards shuffled over the batch it does not rise by more than 0.03 in 25 steps.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from learning import Curve, evaluations, over_seeds, tell
from tables import head

from vlmrl import config
from vlmrl.assemble import lifecycle

matplotlib.use("agg")
from matplotlib import pyplot


def curve(folder: Path, *overrides: str) -> Curve:
    """Evaluations of one quickstart run by step; runs it if it is not there."""
    settings = config.load("quickstart", [f"run.dir={folder}", "resume=auto", *overrides])
    lifecycle.train(settings)
    return evaluations(folder)


def table(curves: dict[int, Curve], control: Curve) -> str:
    """The figures as a Markdown table."""
    steps = sorted(next(iter(curves.values())))
    rows = head(
        f"| seed | {' | '.join(f'step {s}' for s in steps)} | sampled, first and last | format |"
    )
    for seed, found in curves.items():
        greedy = [found[s]["metrics"]["box_iou"] for s in steps]
        low, high = found[steps[-1]]["intervals"]["box_iou"]
        sampled = [found[s]["metrics"]["sampled/box_iou"] for s in (steps[0], steps[-1])]
        cells = [f"{g:.3f}" for g in greedy[:-1]] + [f"{greedy[-1]:.3f} [{low:.3f}, {high:.3f}]"]
        cells += [f"{sampled[0]:.3f}, {sampled[1]:.3f}"]
        rows.append(
            f"| {seed} | {' | '.join(cells)} | {found[steps[-1]]['metrics']['format']:.3f} |"
        )
    last = [c[steps[-1]]["metrics"]["box_iou"] for c in curves.values()]
    gains = [
        c[steps[-1]]["metrics"]["box_iou"] - c[steps[0]]["metrics"]["box_iou"]
        for c in curves.values()
    ]
    before, after = (control[s]["metrics"]["box_iou"] for s in (min(control), max(control)))
    return "\n".join(
        [
            *rows,
            "",
            f"Mean at step {steps[-1]}: {sum(last) / len(last):.3f}; gains "
            f"{', '.join(f'{g:+.3f}' for g in gains)}.",
            f"Control, rewards shuffled over the batch, {max(control)} steps: {before:.3f} -> {after:.3f}.",
        ]
    )


def draw(curves: dict[int, Curve], control: Curve, file: Path) -> None:
    """Held-out IoU over steps, one line a seed, with intervals and the control."""
    figure, axes = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    for seed, found in curves.items():
        steps = sorted(found)
        means = [found[s]["metrics"]["box_iou"] for s in steps]
        low, high = zip(*(found[s]["intervals"]["box_iou"] for s in steps), strict=True)
        (line,) = axes.plot(steps, means, marker="o", label=f"GRPO, seed {seed}")
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.12, lw=0)
    steps = sorted(control)
    means = [control[s]["metrics"]["box_iou"] for s in steps]
    axes.plot(steps, means, "--", marker="x", color="gray", label="control: shuffled rewards")
    axes.axhline(0.55, color="black", lw=0.8, ls=":")
    axes.text(150, 0.545, "mean IoU of the demonstrations", ha="right", va="top", fontsize=8)
    axes.set(xlabel="GRPO step", ylabel="held-out greedy IoU")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = over_seeds(__doc__)
    parser.add_argument("--image", type=Path)
    options = parser.parse_args()
    curves = {
        seed: curve(options.runs / f"quickstart-{seed}", f"run.seed={seed}")
        for seed in options.seeds
    }
    control = curve(
        options.runs / "quickstart-shuffled",
        "control.shuffle_rewards=true",
        "run.steps=25",
        "evaluation.every=25",
    )
    text = table(curves, control)
    tell(text, options.out)
    if options.image:
        draw(curves, control, options.image)


if __name__ == "__main__":
    main()
