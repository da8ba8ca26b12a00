"""Lists and masks that stand in a published row in another form."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from helpers.published import ROWS, write_published
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.benchmarking.rows import MAX_CHARS, mask_of, numbers_of, texts_of
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError


def test_lists_as_python_writes_them() -> None:
    assert texts_of({"a": "['x', \"it's\", 3]"}, "a") == ["x", "it's", "3"]
    assert texts_of({"a": "[]"}, "a") == []
    assert numbers_of({"a": "[1, 2.5]"}, "a") == numbers_of({"a": np.array([1, 2.5])}, "a")


@pytest.mark.parametrize(
    "value",
    [
        *("", "x", "__import__('os').system('ls')", "[x for x in (1,)]", "('a',)", "{'a': 1}"),
        *("['a'", "[" * 5000, "-" * 9000 + "1", "['a', ['b']]", "[True]", "[None]", None, 3),
        "['" + "a" * MAX_CHARS + "']",
    ],
)
def test_anything_else_is_an_error_of_the_row(value: Any) -> None:
    with pytest.raises(UserError, match=r"^test.parquet:7: column 'options': expected a list"):
        texts_of({WHERE: "test.parquet:7", "options": value}, "options")


def test_a_mask_is_its_bright_pixels() -> None:
    bright = np.zeros((5, 7), np.uint8)
    bright[1:3, 2:6], bright[4, 0] = 128, 127
    for shown in (bright, np.stack([bright] * 3, 2)):
        file = io.BytesIO()
        Image.fromarray(shown).save(file, "PNG")
        found = coco.decode(mask_of({"mask": {"bytes": file.getvalue()}}, "mask"))
        assert (found == (bright == 128)).all()
    with pytest.raises(UserError, match=r"^row: column 'mask': expected an image of a mask"):
        mask_of({"mask": {"bytes": b"no"}}, "mask")


def test_a_row_has_the_columns_of_the_row_beside_it_that_it_names(tmp_path: Path) -> None:
    data = write_published(tmp_path, "gqa", "testdev", ROWS["gqa"])
    rows = BenchmarkCard(open_benchmark("gqa", str(data)), "ours").rows("testdev")
    assert [row["image"]["path"] for row in rows] == ["1.png", "1.png", "0.png", "0.png"]
    assert [row["id"] for row in rows] == ["200", "201", "202", "203"]


def test_a_row_without_its_image_is_one_line(tmp_path: Path) -> None:
    rows = [{**ROWS["gqa"][0], "imageId": "n3"}]
    data = write_published(tmp_path, "gqa", "testdev", rows)
    wanted = "column 'imageId': expected a row of testdev_balanced_images, got 'n3'"
    with pytest.raises(UserError, match=wanted):
        BenchmarkCard(open_benchmark("gqa", str(data)), "ours").rows("testdev")
