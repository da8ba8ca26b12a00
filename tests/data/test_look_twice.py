"""Drawn labels with fine lines: what demonstrations cut out."""

from __future__ import annotations

import pytest

from vlmrl import plugins
from vlmrl.schema import Box


def demonstrated(**options: object) -> list[tuple[Box, Box]]:
    """The label and the demonstrated crop of some scenes, in eighths of the image."""
    card = plugins.build("card", "look_twice", {"count": 60, "look": 1.0, **options})
    samples = [card.to_sample(row, "look") for row in card.rows("demos")]
    pairs = []
    for sample in samples:
        (turn,), (label,) = sample.demo.turns, sample.truth.boxes
        pairs.append((eighths(label), eighths(turn.arguments["bbox_2d"])))
    return pairs


def eighths(box: Box) -> Box:
    return Box(*(round(8 * v, 6) for v in box.xyxy))


@pytest.mark.parametrize("loose", [0, 1, 3])
def test_demonstrated_crops_lie_beside_the_label_but_have_its_size(loose: int) -> None:
    moves = set()
    for label, crop in demonstrated(loose=loose):
        assert (crop.x2 - crop.x1, crop.y2 - crop.y1) == (3, 3)
        assert 0 <= crop.x1 <= 5 and 0 <= crop.y1 <= 5
        moves |= {crop.x1 - label.x1, crop.y1 - label.y1}
    assert moves == set(range(-loose, loose + 1))


def test_share_of_demonstrations_that_look_first() -> None:
    card = plugins.build("card", "look_twice", {"count": 400, "look": 0.25})
    demos = [card.to_sample(row, "look").demo for row in card.rows("demos")]
    looking = sum(bool(demo.turns) for demo in demos) / len(demos)
    assert looking == pytest.approx(0.25, abs=0.05)
