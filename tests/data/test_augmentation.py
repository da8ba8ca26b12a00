"""Photos shown in several ways: boxes go where their contents go; each is drawn from its name alone."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vlmrl.config import SourceConfig
from vlmrl.data.source import Source, open_source
from vlmrl.errors import UserError
from vlmrl.media import augmentation
from vlmrl.schema import Box

SIDE = 96


def photo(width: int, height: int, box: Box) -> Image.Image:
    """A dark photo with a light rectangle."""
    image = Image.new("RGB", (width, height), (40, 30, 50))
    corners = [round(v) for v in (box.x1 * width, box.y1 * height, box.x2 * width, box.y2 * height)]
    image.paste((210, 220, 200), (corners[0], corners[1], corners[2], corners[3]))
    return image


def extent(image: Image.Image) -> tuple[float, ...]:
    """Where the light pixels are, in the unit square."""
    green = np.asarray(image)[..., 1].astype(float)
    light = green > (green.min() + green.max()) / 2
    ys, xs = np.nonzero(light)
    height, width = light.shape
    return (xs.min() / width, ys.min() / height, (xs.max() + 1) / width, (ys.max() + 1) / height)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([(320, 240), (240, 320), (300, 300)]),
    st.tuples(*[st.floats(0.0, 0.7)] * 2, *[st.floats(0.2, 0.5)] * 2),
)
def test_a_box_lies_where_its_contents_lie(
    seed: int, size: tuple[int, int], drawn: tuple[float, float, float, float]
) -> None:
    x, y, wide, high = drawn
    box = Box(x, y, min(1.0, x + wide), min(1.0, y + high), "cell")
    shown, (found,) = augmentation.augment(photo(*size, box), [box], SIDE, random.Random(seed))
    assert shown.size == (SIDE, SIDE) and found.label == "cell"
    assert found.xyxy == pytest.approx(extent(shown), abs=2.0 / SIDE)


def test_a_crop_keeps_most_of_every_box_and_each_way_is_another() -> None:
    boxes = [Box(0.35, 0.3, 0.45, 0.5), Box(0.5, 0.5, 0.65, 0.7)]
    image = photo(320, 240, boxes[0])
    seen = set()
    for seed in range(100):
        _, found = augmentation.augment(image, boxes, SIDE, random.Random(seed))
        seen.add(found)
        for box in found:
            assert 0 <= box.x1 < box.x2 <= 1 and 0 <= box.y1 < box.y2 <= 1
    assert len(seen) == 100


def test_the_ramp_grows_to_the_right_in_red_and_downwards_in_blue() -> None:
    plain = Image.new("RGB", (5, 3), (100, 90, 80))
    values = np.asarray(augmentation.with_ramp(plain, 0.5)).astype(int)
    assert values[0, :, 0].tolist() == [50, 81, 113, 145, 177]
    assert values[:, 0, 2].tolist() == [40, 103, 167]
    assert (values[..., 1] == 90).all()


def records(folder: Path, **options: Any) -> Source:
    """Two photos, in 3 ways each if not told otherwise."""
    box = Box(0.25, 0.25, 0.5, 0.75)
    lines = []
    for name in ("a", "b"):
        photo(64, 48, box).save(folder / f"{name}.png")
        row = {"id": name, "question": "Where?", "answer": "[16, 12, 32, 36]", "width": 64}
        row |= {"boxes": [[16, 12, 32, 36]], "images": [f"{name}.png"], "height": 48}
        lines.append(json.dumps(row))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    options = {"path": str(folder), "variants": 3, "side": SIDE} | options
    return open_source(SourceConfig(card="records", options=options))


def content(source: Source, i: int) -> tuple[str, bytes, Any]:
    sample = source.sample(i)
    return sample.id, sample.media[0].data or b"", sample.truth.boxes


def test_rows_are_shown_in_several_ways_that_depend_on_their_names_and_the_seed(
    tmp_path: Path,
) -> None:
    source = records(tmp_path)
    found = [content(source, i) for i in range(len(source.rows))]
    assert [name for name, _, _ in found] == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]
    assert len({data for _, data, _ in found}) == 6
    again = records(tmp_path)
    assert [content(again, i) for i in reversed(range(6))] == found[::-1]
    other = records(tmp_path, seed=1)
    assert not {content(other, i)[1] for i in range(6)} & {data for _, data, _ in found}


def test_whole_photos_keep_their_boxes(tmp_path: Path) -> None:
    source = records(tmp_path, variants=0)
    name, data, (box,) = content(source, 0)
    assert (name, box.xyxy) == ("a", (0.25, 0.25, 0.5, 0.75))
    image = Image.open(io.BytesIO(data))
    assert image.size == (SIDE, SIDE) and extent(image) == pytest.approx(box.xyxy, abs=2 / SIDE)


def test_what_cannot_be_shown_so_says_why(tmp_path: Path) -> None:
    for wrong in ({"side": 0}, {"variants": -1}, {"ramp": 0.5, "variants": 0, "side": 0}):
        with pytest.raises(UserError, match="a side with variants or a ramp"):
            records(tmp_path, **wrong)
    with pytest.raises(UserError, match=r"ramp: expected a share of the colours"):
        records(tmp_path, ramp=1.5)
    source = records(tmp_path)
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"a\.png"):
        source.sample(0)
