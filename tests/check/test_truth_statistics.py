"""`vlmrl data check` on truths: sizes, borders, duplicates, numbers in another unit than declared."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from vlmrl.config import SourceConfig
from vlmrl.data.source import Source, open_source
from vlmrl.data.units import UnitTally, read_span
from vlmrl.features.check.data_check import check_and_print
from vlmrl.schema import Span

SIZES = {"small": (640, 480), "large": (1600, 1300)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name, size in SIZES.items():
        Image.new("RGB", size).save(folder / f"{name}.jpg")
    soundfile.write(folder / "tone.wav", np.zeros(80000, np.float32), 8000)  # 10 s
    return folder


def table(folder: Path, rows: list[dict[str, Any]], key: str, **options: Any) -> Source:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    medium = "audio" if key == "spans" else "image"
    columns = {medium: "file", "question": "text", key: key}
    options = {"path": str(path), "columns": columns, **options}
    return open_source(SourceConfig(card="table", options=options))


def said(source: Source) -> list[str]:
    lines: list[str] = []
    check_and_print([source], say=lines.append)
    return lines


def boxes(rng: random.Random, size: tuple[float, float], count: int = 24) -> list[list[float]]:
    """Boxes all over a medium of this size, those at its far corner among them."""
    found = []
    for n in range(count):
        (x, y), reach = (rng.random(), rng.random()), rng.uniform(0.05, 0.2)
        x, y = (0.95, 0.95) if n % 5 == 0 else (x, y)
        corners = (
            x * (1 - reach),
            y * (1 - reach),
            x * (1 - reach) + reach,
            y * (1 - reach) + reach,
        )
        found.append([round(c * size[i % 2], 4) for i, c in enumerate(corners)])
    return found


UNITS = {"pixel": None, "norm1000": (1000, 1000), "norm1": (1, 1)}
SAID = {"pixel": "pixel", "norm1000": "0..1000", "norm1": "0..1"}


@pytest.mark.parametrize("image", SIZES)
@pytest.mark.parametrize("true", UNITS)
@pytest.mark.parametrize("declared", UNITS)
def test_boxes_in_another_space_than_declared_are_told_by_name(
    folder: Path, image: str, true: str, declared: str
) -> None:
    found = boxes(random.Random(image), UNITS[true] or SIZES[image])
    rows = [{"file": f"{image}.jpg", "text": f"{n}?", "boxes": [b]} for n, b in enumerate(found)]
    warnings = [x for x in said(table(folder, rows, "boxes", box_space=declared)) if "look" in x]
    if true == declared:
        assert not warnings
    else:
        (line,) = warnings
        assert f"these boxes look like {SAID[true]}, you said {SAID[declared]}: " in line


@pytest.mark.parametrize(("true", "declared"), [("xywh", "xyxy"), ("xyxy", "xywh")])
def test_boxes_in_another_format_than_declared_are_told(
    folder: Path, true: str, declared: str
) -> None:
    found = boxes(random.Random(0), SIZES["small"])
    if true == "xywh":
        found = [[a, b, c - a, d - b] for a, b, c, d in found]
    rows = [{"file": "small.jpg", "text": f"{n}?", "boxes": [b]} for n, b in enumerate(found)]
    lines = said(table(folder, rows, "boxes", box_space="pixel", box_format=declared))
    order = {"xywh": "x, y, width, height", "xyxy": "x1, y1, x2, y2"}[true]
    assert any(f"these boxes look like {order}, you said pixel" in line for line in lines)


def test_points_are_judged_too(folder: Path) -> None:
    spots = [[25 * n, 1000 - 25 * n] for n in range(1, 40)]
    rows = [{"file": "small.jpg", "text": f"{n}?", "points": [p]} for n, p in enumerate(spots)]
    lines = said(table(folder, rows, "points", box_space="pixel"))
    assert any("these points look like 0..1000, you said pixel" in line for line in lines)


def test_boxes_that_lie_in_the_middle_are_no_reason_to_doubt(folder: Path) -> None:
    """Four boxes say nothing; neither do many that end where no other space ends."""
    spots = [[40 + n, 50, 90 + n, 100] for n in range(40)]
    for count in (4, 40):
        rows = [{"file": "small.jpg", "text": f"{n}", "boxes": [b]} for n, b in enumerate(spots)]
        lines = said(table(folder, rows[:count], "boxes", box_space="pixel"))
        assert not any(line.startswith("warning") for line in lines)


def test_sizes_borders_and_duplicates_of_boxes_are_counted(folder: Path) -> None:
    one = {"file": "small.jpg", "text": "Where?"}
    rows = [
        one | {"boxes": [[0, 10, 64, 58]]},  # touches the border, 1 % of the image
        one | {"boxes": [[9, 9, 9.5, 40]]},  # half a pixel wide
        one | {"boxes": [[5, 5, 69, 53], [5, 5, 69, 53]]},
        one | {"boxes": []},
        one | {"boxes": [[0, 10, 64, 58]]},  # the first row again
        one | {"boxes": [[9, 9, 700, 40]]},  # outside
    ]
    lines = said(table(folder, rows, "boxes", box_space="pixel"))
    (about,) = [line for line in lines if line.startswith("boxes: ")]
    assert "5 in 5 rows, 0 to 2 a row; 1 rows have none" in about
    assert "(median 1) % of its image" in about
    for part in ("2 (40 %) on the border", "1 (20 %) under 1 px", "1 (20 %) stated twice"):
        assert part in about
    assert "1 of 6 do not fit as pixel" in about
    assert any("1 rows repeat an earlier row" in line for line in lines)
    assert any("1 boxes are smaller than a pixel" in line for line in lines)


def test_spans_are_held_against_the_duration(folder: Path) -> None:
    one = {"file": "tone.wav", "text": "When?"}
    rows = [one | {"spans": s} for s in ([[0, 10]], [[2, 2]], [[3, 12]], [[1, 4], [1, 4]])]
    lines = said(table(folder, rows, "spans"))
    (about,) = [line for line in lines if line.startswith("spans: ")]
    for part in (
        "5 in 4 rows",
        "0 to 10 (median 3) s long",
        "1 (20 %) without length",
        "1 (20 %) over all of their medium",
        "1 (20 %) beyond the end of their medium",
        "1 (20 %) stated twice",
    ):
        assert part in about
    assert any("1 spans end after their medium" in line for line in lines)


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("milliseconds", 1000.0), ("per cent", 10.0), ("0..1", 0.1), ("frame numbers", 25.0)],
)
def test_spans_in_another_unit_are_told(unit: str, factor: float) -> None:
    tally, rng = UnitTally("seconds"), random.Random(unit)
    for _ in range(30):
        start = rng.uniform(0, 9)
        end = rng.uniform(start, 10)
        tally.add(read_span(Span(start * factor, end * factor), 10.0, 25.0))
    tally.add(read_span(Span(0, 10 * factor), 10.0, 25.0))
    assert (tally.judge() or "").startswith(f"look like {unit}, you said seconds")
