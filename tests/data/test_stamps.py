"""Scenes of cut-outs: boxes are where the things are, splits share none, demonstrations leave boxes out."""

import io

import numpy as np
import pytest
from PIL import Image

from vlmrl import plugins
from vlmrl.errors import UserError

COLOURS = [(r, g, b) for r in (0, 120, 255) for g in (0, 255) for b in (0, 120, 255)]


@pytest.fixture
def folder(tmp_path):
    """Filled squares in colours that no ground has, with a wide clear edge, some in folders below."""
    for number, colour in enumerate(COLOURS):
        pixels = np.zeros((60, 90, 4), np.uint8)
        pixels[20:40, 20:70] = (*colour, 255)
        file = tmp_path / ("deep" if number % 2 else ".") / f"square_{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(file)
    Image.new("RGB", (50, 50)).save(tmp_path / "photo.png")
    return str(tmp_path)


def samples(folder, split, **options):
    card = plugins.build("card", "stamps", {"path": folder, **options})
    return [card.to_sample(row, "scenes") for row in card.rows(split)]


def seen(sample):
    return np.asarray(Image.open(io.BytesIO(sample.parts[0].data))).astype(int)


def colour_in(sample, box):
    """The colour in the middle of a box."""
    pixels = seen(sample)
    x, y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
    return tuple(pixels[int(y * len(pixels)), int(x * len(pixels))])


def test_boxes_hold_the_things_and_nothing_else(folder):
    for sample in samples(folder, "train", count=30):
        pixels = seen(sample)
        centres = [box.x1 + box.x2 for box in sample.truth.boxes]
        assert 1 <= len(centres) <= 3 and centres == sorted(centres)
        for box in sample.truth.boxes:
            x1, y1, x2, y2 = (round(112 * value) for value in box.xyxy)
            assert colour_in(sample, box) in COLOURS
            assert np.ptp(pixels[y1:y2, x1:x2].reshape(-1, 3), axis=0).max() == 0
            assert (x2 - x1 + 1) / 112 >= 0.28 and (x2 - x1 - 1) / 112 <= 0.46
            around = pixels[max(0, y1 - 1) : y2 + 1, max(0, x1 - 1) : x2 + 1].reshape(-1, 3)
            assert np.ptp(around, axis=0).max() > 0


def test_splits_share_no_cut_out(folder):
    colours = {
        split: {
            colour_in(s, box) for s in samples(folder, split, count=60) for box in s.truth.boxes
        }
        for split in ("train", "test")
    }
    assert colours["train"] and colours["test"] and not colours["train"] & colours["test"]


def test_demonstrations_leave_out_and_loosen_what_the_truth_keeps(folder):
    loose = samples(folder, "train", count=200, missing=0.4, loose=0.1, grid=12)
    exact = samples(folder, "train", count=200)
    assert [s.truth for s in loose] == [s.truth for s in exact]
    assert all(s.demo.answer.boxes == s.truth.boxes for s in exact)
    kept = sum(len(s.demo.answer.boxes) for s in loose if len(s.truth.boxes) == 3)
    asked = sum(3 for s in loose if len(s.truth.boxes) == 3)
    assert 0.5 < kept / asked < 0.75
    for sample in loose:
        assert sample.demo.answer.boxes
        for box in sample.demo.answer.boxes:
            holds = [
                box.x1 <= b.x1 and box.y1 <= b.y1 and b.x2 <= box.x2 and b.y2 <= box.y2
                for b in sample.truth.boxes
            ]
            assert any(holds) and round(12 * box.x1, 6) % 1 in (0, 1)


def test_scenes_are_those_of_their_seed(folder):
    first, again = (samples(folder, "test", count=5) for _ in range(2))
    assert first == again and first != samples(folder, "test", count=5, seed=1)


def test_what_cannot_be_read_is_said(folder, tmp_path):
    with pytest.raises(UserError, match="no split 'dev'; there are: train, val, test"):
        samples(folder, "dev")
    (tmp_path / "none").mkdir()
    with pytest.raises(
        UserError, match="expected PNG files with an alpha channel for train, got n"
    ):
        samples(str(tmp_path / "none"), "train", count=1)
    with pytest.raises(
        UserError, match=r"no folder 'x' .*`apt-get install tuxpaint-stamps-default`"
    ):
        samples("x", "train")
    with pytest.raises(UserError, match=r"missing and loose in \[0, 1\)"):
        samples(folder, "train", missing=1.0)
