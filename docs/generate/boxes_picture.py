"""A picture of box measures: pairs of boxes with their scores, and the score of a box that slides."""

from __future__ import annotations

import io

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from vlmrl.answers import geometry
from vlmrl.rewards.box_iou import BoxIou
from vlmrl.schema import Box, Frame, Truth
from vlmrl.scoring.verifier import Verifier, judge

TRUTH = Box(0.3, 0.3, 0.7, 0.7)
SHAPES = [
    ("the same", Box(0.3, 0.3, 0.7, 0.7)),
    ("shifted by a fifth", Box(0.38, 0.3, 0.78, 0.7)),
    ("shifted by half", Box(0.5, 0.3, 0.9, 0.7)),
    ("inside, half the area", Box(0.3, 0.3, 0.5, 0.7)),
    ("around, twice the area", Box(0.217, 0.217, 0.783, 0.783)),
    ("a cross", Box(0.1, 0.4, 0.9, 0.6)),
    ("next to it", Box(0.72, 0.3, 0.98, 0.7)),
    ("the whole image", Box(0.0, 0.0, 1.0, 1.0)),
]


def draw_boxes() -> str:
    """Draw the picture and return it as SVG."""
    measures = {
        "IoU": BoxIou(),
        "gIoU": BoxIou(measure="giou"),
        "CIoU": BoxIou(measure="ciou"),
        "IoU, threshold 0.5": BoxIou(threshold=0.5),
    }
    figure = plt.figure(figsize=(10, 9))
    grid = figure.add_gridspec(3, 4, height_ratios=(1, 1, 1.2), hspace=0.3, wspace=0.05)
    for i, (title, box) in enumerate(SHAPES):
        axes = figure.add_subplot(grid[i // 4, i % 4])
        scores = ", ".join(f"{m} {_score(v, box):.2f}" for m, v in list(measures.items())[:3])
        _draw_pair(axes, box, f"{title}\n{scores}")
    axes = figure.add_subplot(grid[2, :])
    shifts = np.linspace(-0.3, 0.3, 301)
    for label, verifier in measures.items():
        boxes = [Box(0.3 + s, 0.3, 0.7 + s, 0.7) for s in shifts]
        axes.plot(shifts / 0.4, [_score(verifier, box) for box in boxes], label=label)
    axes.set_xlabel("shift of a box of the right size, in its own widths")
    axes.set_ylabel("score")
    axes.legend(fontsize=8)
    plt.rcParams["svg.hashsalt"] = "vlmrl"
    written = io.StringIO()
    figure.savefig(written, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return written.getvalue()


def _score(verifier: Verifier, box: Box) -> float:
    frame = Frame(1000, 1000)
    numbers = [round(float(n), 3) for n in geometry.from_unit(box, frame)]
    score = judge(verifier, str(numbers), Truth(boxes=(TRUTH,)), frame=frame).score
    assert score is not None
    return score


def _draw_pair(axes: Axes, box: Box, title: str) -> None:
    for drawn, colour, style in ((TRUTH, "tab:green", "-"), (box, "tab:orange", "--")):
        size = (drawn.x2 - drawn.x1, drawn.y2 - drawn.y1)
        patch = Rectangle((drawn.x1, drawn.y1), *size, fill=True, alpha=0.25, color=colour)
        axes.add_patch(patch)
        edge = Rectangle((drawn.x1, drawn.y1), *size, fill=False, ec=colour, ls=style, lw=1.5)
        axes.add_patch(edge)
    axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
    axes.set_title(title, fontsize=8)
