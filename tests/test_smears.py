"""Drawn smears: the box is that of the white cell, and every row has one image of its own."""

from __future__ import annotations

import numpy as np
import pytest

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.media.image import load_image
from vlmrl.schema import Sample

WIDTH, HEIGHT = 112, 84


def samples(split: str, **options: int) -> list[Sample]:
    card = plugins.build("card", "smears", options)
    return [card.to_sample(row, "toy") for row in card.rows(split)]


def test_the_true_box_holds_the_violet_pixels() -> None:
    """Only the white cell has pixels much bluer than red (and single specks, the platelets)."""
    for sample in samples("val"):
        assert sample.truth.boxes is not None
        (box,) = sample.truth.boxes
        pixels = np.asarray(load_image(sample.media[0])).astype(int)
        assert pixels.shape == (HEIGHT, WIDTH, 3)
        ys, xs = np.nonzero(pixels[:, :, 2] - pixels[:, :, 0] > 40)
        x, y = (xs + 0.5) / WIDTH, (ys + 0.5) / HEIGHT
        slack = 1 / HEIGHT
        inside = (x > box.x1 - slack) & (x < box.x2 + slack)
        inside &= (y > box.y1 - slack) & (y < box.y2 + slack)
        # At most three platelets of about five pixels lie elsewhere.
        assert inside.sum() > 30 and (~inside).sum() <= 30


def test_demonstrations_lie_on_the_grid_and_hold_the_cell() -> None:
    for sample in samples("val", grid=28):
        assert (
            sample.truth.boxes and sample.demo and sample.demo.answer and sample.demo.answer.boxes
        )
        true, shown = sample.truth.boxes[0], sample.demo.answer.boxes[0]
        assert np.array(shown.xyxy) * 28 == pytest.approx(np.round(np.array(shown.xyxy) * 28))
        for before, after in (
            (shown.x1, true.x1),
            (shown.y1, true.y1),
            (true.x2, shown.x2),
            (true.y2, shown.y2),
        ):
            assert -1e-9 <= after - before < 1 / 28


def test_smears_repeat_and_differ() -> None:
    first, again, other = samples("val"), samples("val"), samples("val", seed=1)
    assert first == again
    images = [sample.media[0].data for sample in (*first, *other, *samples("test"))]
    assert len(set(images)) == len(images)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match="card 'smears' has no split 'demos'; there are: train"):
        samples("demos")
