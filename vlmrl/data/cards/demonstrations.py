"""Demonstrations made from the truth, for the cold start, and the text a small tokenizer needs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlmrl.data.cards.card import Card
from vlmrl.errors import UserError
from vlmrl.schema import Box, Demo, Frame, Truth
from vlmrl.truths import prompting

__all__ = ["cell_name", "corpus", "demonstration", "loosened"]

_ROWS = ("top", "", "bottom")
_COLUMNS = ("left", "", "right")
CORPUS_ROWS = 2000


def demonstration(
    truth: Truth, steps: Sequence[float], rng: random.Random, grid: int = 0
) -> Demo | None:
    """Write a right answer, every box loosened by `steps`; None for a truth we cannot write out.

    With a `grid` the boxes grow to the lines of a grid of that many cells across and down.

    The thought is the cell of the image in which the one box lies, else empty.
    """
    if truth.boxes is None:
        return Demo(answer=truth) if prompting.can_write(truth) else None
    loose = tuple(loosened(box, steps, rng) for box in truth.boxes)
    if grid:
        loose = tuple(_snapped(box, grid) for box in loose)
    thought = cell_name(truth.boxes[0]) if len(loose) == 1 else ""
    return Demo(thought, answer=replace(truth, boxes=loose))


def cell_name(box: Box) -> str:
    """Name the cell of a 3 x 3 grid that holds the box's centre: "top left", "top", ... "center" ..."""
    column = min(2, int(3 * (box.x1 + box.x2) / 2))
    row = min(2, int(3 * (box.y1 + box.y2) / 2))
    return f"{_ROWS[row]} {_COLUMNS[column]}".strip() or "center"


def loosened(box: Box, steps: Sequence[float], rng: random.Random) -> Box:
    """Push each side of the box outwards by a random one of `steps` (unit square), clipped.

    A model that only imitates such boxes stays inexact; a reward on the exact box leads past it.
    """
    x1, y1, x2, y2 = box.xyxy
    return Box(
        max(0.0, x1 - rng.choice(steps)),
        max(0.0, y1 - rng.choice(steps)),
        min(1.0, x2 + rng.choice(steps)),
        min(1.0, y2 + rng.choice(steps)),
        box.label,
    )


def _snapped(box: Box, grid: int) -> Box:
    """Grow the box to the next lines of the grid; a rounding error over a line does not count."""
    x1, y1 = (math.floor(v * grid + 1e-9) / grid for v in (box.x1, box.y1))
    x2, y2 = (math.ceil(v * grid - 1e-9) / grid for v in (box.x2, box.y2))
    return Box(x1, y1, x2, y2, box.label)


def corpus(card: Card, rows: Sequence[Mapping[str, Any]], frame: Frame | None = None) -> list[str]:
    """Questions and written demonstrations of the first rows, and the whole numbers up to 1000.

    `frame`: the image's, where all have the same; else coordinates are left to the list of
    numbers, in which small ones come first because small models see small images.
    """
    texts = []
    for row in itertools.islice(rows, CORPUS_ROWS):
        try:
            sample = card.to_sample(row, "corpus")
        except UserError:  # the loader reports and counts it
            continue
        texts.append(sample.conversation)
        if sample.demo is not None:
            tiny = Frame(9, 9)  # coordinates of one digit
            texts += [prompting.write_call(turn, frame or tiny) for turn in sample.demo.turns]
            if sample.demo.text is not None or sample.demo.answer is not None:
                texts.append(prompting.demonstrate(sample.demo, sample.template, frame or tiny))
    return texts if frame else texts + [f"{number}, " for number in range(1001)]
