"""The card of shuffled pieces: put together by its own truth they are the image, or the video, again."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.videos import write_video
from vlmrl.config import SourceConfig, VideoConfig
from vlmrl.data.multiple_choice import shows
from vlmrl.data.source import Source, open_source
from vlmrl.errors import UserError
from vlmrl.media.access import Reading
from vlmrl.media.decode import decode
from vlmrl.schema.media import Video

READ = Reading(video=VideoConfig(fps=10.0, max_frames=16))


def opened(home: Path, rows: Sequence[dict[str, Any]], **options: Any) -> Source:
    (home / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = SourceConfig(card="shuffled", options={"path": str(home), **options})
    return open_source(config, reading=READ)


def noise(home: Path, width: int, height: int) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(home / "a.png")
    return pixels


def shown(source: Source, row: int = 0) -> tuple[list[int], list[Any]]:
    sample = source.sample(row)
    order = [int(name) for name in sample.truth.value("order")]
    return order, decode(sample, source.access, source.reading)


@pytest.mark.parametrize(("down", "across"), [(3, 3), (2, 2), (1, 2), (2, 3)])
def test_tiles_at_the_places_that_the_truth_names_make_the_image(
    tmp_path: Path, down: int, across: int
) -> None:
    pixels = noise(tmp_path, 32, 25)
    rows = [{"image": "a.png", "id": f"row {n}"} for n in range(8)]
    source = opened(tmp_path, rows, tiles=[down, across])
    orders = set()
    for row in range(len(rows)):
        order, tiles = shown(source, row)
        orders.add(tuple(order))
        found = [np.asarray(tiles[number - 1]) for number in order]
        lines = [np.concatenate(found[i * across : (i + 1) * across], axis=1) for i in range(down)]
        whole = np.concatenate(lines)
        assert (whole == pixels[: 25 // down * down, : 32 // across * across]).all()
    assert len(orders) > 1
    assert [p for p in source.sample(0).parts if isinstance(p, str)][:2] == ["Tile 1:", "Tile 2:"]
    again = opened(tmp_path, rows, tiles=[down, across], seed=1)
    assert {tuple(shown(again, row)[0]) for row in range(8)} != orders or down * across < 4


def test_a_whole_image_has_its_tiles_where_they_are_numbered(tmp_path: Path) -> None:
    pixels = noise(tmp_path, 30, 20)
    order, (image,) = shown(opened(tmp_path, [{"image": "a.png"}], tiles=[2, 3], shown="whole"))
    lying = np.asarray(image)

    def tile(of: np.ndarray, place: int) -> np.ndarray:
        y, x = divmod(place, 3)
        return of[10 * y : 10 * y + 10, 10 * x : 10 * x + 10]

    for place, number in enumerate(order):
        assert (tile(lying, number - 1) == tile(pixels, place)).all()


def test_clips_in_the_order_that_the_truth_names_are_the_video(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mkv", [100 * n for n in range(40)])  # four seconds
    rows = [{"clip": {"file": "a.mkv", "seconds": 4.0}}]
    source = opened(tmp_path, rows, column="clip.file", seconds="clip.seconds", pieces=4)
    order, clips = shown(source)
    sample = source.sample(0)
    times = [(sample.media[n - 1].start, sample.media[n - 1].end) for n in order]
    wanted = [(0.1, 0.9), (1.1, 1.9), (2.1, 2.9), (3.1, 3.9)]
    assert np.allclose(times, wanted) and sorted(order) == [1, 2, 3, 4]
    assert all(isinstance(clip, Video) and 0.7 < clip.duration < 0.9 for clip in clips)


@pytest.mark.parametrize(("down", "across", "count"), [(3, 3, 8), (2, 2, 8), (1, 2, 2), (2, 1, 2)])
def test_a_pair_is_asked_about_as_it_lies_in_the_image(
    tmp_path: Path, down: int, across: int, count: int
) -> None:
    noise(tmp_path, 30, 30)
    rows = [{"image": "a.png", "id": f"row {n}"} for n in range(20)]
    orders = opened(tmp_path, rows, tiles=[down, across])
    source = opened(tmp_path, rows, tiles=[down, across], asked="pair")
    for row in range(len(rows)):
        order, _ = shown(orders, row)
        sample = source.sample(row)
        options = sample.truth.options or ()
        assert len(options) == count
        assert shows(sample.text, options, str(sample.truth.choice))
        right = options["ABCDEFGH".index(str(sample.truth.choice))]
        first, second = (int(digit) for digit in re.findall(r"\d", right))
        (y, x), (v, u) = (divmod(order.index(n), across) for n in (first, second))
        said = {"left": u > x, "right": u < x, "above": v > y, "below": v < y}
        said |= {"upper": v > y, "lower": v < y}
        assert all(said[word] for word in said if word in right)
        assert ("directly" in right) == (x == u or y == v)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"image": None}], {}, "column 'image': expected a path"),
        ([{"image": "a.png"}], {"tiles": [30, 1]}, "expected an image of 1 x 30 pixels or more"),
        ([{"image": "a.mkv", "duration": 0}], {"pieces": 4}, "column 'duration': expected seconds"),
        ([{"image": "a.mkv"}], {"pieces": 4}, "column 'duration': expected seconds, got None"),
        ([{"image": "a.png"}], {"pieces": 1}, "pieces: expected 0, or 2 and more"),
        ([{"image": "a.png"}], {"tiles": [1, 1]}, "tiles: expected 2 to 64"),
    ],
)
def test_what_cannot_be_cut_is_named(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    noise(tmp_path, 32, 25)
    with pytest.raises(UserError, match=message):
        opened(tmp_path, rows, **options).sample(0)
