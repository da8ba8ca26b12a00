"""Several runs on one pair of axes: the training reward, and each held-out metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlmrl.report.curves.spent import Across
from vlmrl.report.live.live_run import LiveRun
from vlmrl.report.live.parts import parts_module
from vlmrl.report.page import show
from vlmrl.report.series import MAIN_COLOUR, CurvePanel, CurveSection, Series

__all__ = ["MAX_COMPARED", "SAID", "compared"]

MAX_COMPARED = 8
"""Runs on one pair of axes: there are as many colours."""
SAID: dict[Across, str] = {
    "step": "their steps",
    "samples": "completions sampled",
    "seconds": "wall seconds of their steps",
}
"""What runs are compared by."""


def compared(runs: Mapping[str, LiveRun], across: Across = "step") -> str:
    """Return the curves of at most `MAX_COMPARED` runs by their steps, samples or seconds."""
    chosen = dict(list(runs.items())[:MAX_COMPARED])
    held_out: dict[str, list[Series]] = {}
    trained = []
    for name, run in chosen.items():
        if known := run.held_out():
            held_out.setdefault(run.metric, []).append(_series(name, run, known, across))
        reward = run.curves.one("reward/mean")
        if reward is not None:
            points = list(zip(reward.steps, reward.values, strict=True))
            trained.append(_series(name, run, points, across))
    panels = [
        CurvePanel(f"Held-out {metric}", tuple(found), across=across)
        for metric, found in held_out.items()
    ]
    panels += [CurvePanel("Training reward", tuple(trained), across=across)] if trained else []
    about = f"Runs on one pair of axes, by {SAID[across]}; a name keeps its colour."
    section = CurveSection("Compared", about, tuple(panels))
    return str(parts_module().section(show(section, dict(MAIN_COLOUR))))


def _series(
    name: str, run: LiveRun, points: Sequence[tuple[int, float | None]], across: Across
) -> Series:
    """Return points by step as a curve along an axis; of those at one place only the last."""
    placed = {run.spent.place(step, across): value for step, value in points}
    return Series(name, tuple(placed), tuple(placed.values()))
