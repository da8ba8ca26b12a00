"""The contact sheet of `vlmrl data check --images`: offline, bad rows first, every truth drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from helpers.report_page import Page
from vlmrl.config import SourceConfig
from vlmrl.data.source import open_source
from vlmrl.features.check import contact_sheet
from vlmrl.features.check.contact_sheet import ContactSheet
from vlmrl.features.check.data_check import check_and_print

HOSTILE = "</p><script>alert(1)</script><img src=//x.test/a.png onerror=alert(2)>"


def sheet(folder: Path, rows: list[dict[str, Any]]) -> tuple[Page, str]:
    for name, colour in (("red", "red"), ("blue", "blue")):
        Image.new("RGB", (200, 100), colour).save(folder / f"{name}.png")
    path, page = folder / "rows.jsonl", folder / "page.html"
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = {"image": "file", "question": "text", "boxes": "boxes", "id": "id"}
    options = {"path": str(path), "columns": columns, "box_space": "pixel"}
    made, lines = ContactSheet(), []
    check_and_print(
        [open_source(SourceConfig(card="table", options=options))], see=made.add, say=lines.append
    )
    made.write(page, lines)
    return Page(page), page.read_text()


def test_bad_rows_come_first_then_odd_ones_each_with_its_truth_drawn(tmp_path: Path) -> None:
    rows = [
        {"id": "fine", "file": "red.png", "text": "Where?", "boxes": [[20, 10, 60, 50]]},
        {"id": "tiny", "file": "red.png", "text": "Where?", "boxes": [[20, 10, 20.5, 50]]},
        {"id": "out", "file": "blue.png", "text": "Where?", "boxes": [[150, 20, 300, 90]]},
        {"id": "gone", "file": "none.png", "text": "Where?", "boxes": [[1, 1, 9, 9]]},
    ]
    page, text = sheet(tmp_path, rows)
    sorts = [attributes["class"] for tag, attributes in page.tags if tag == "article"]
    assert sorts == ["card bad", "card bad", "card odd", "card good"]
    places = [text.index(f"· {name}<") for name in ("out", "gone", "tiny", "fine")]
    assert places == sorted(places)
    drawn = [a for tag, a in page.tags if tag == "rect"]
    numbers = [[a[k] for k in ("x", "y", "width", "height")] for a in drawn]
    assert numbers == [
        ["150.0", "20.0", "50.0", "70.0"],  # as far as it lies in the image
        ["20.0", "10.0", "0.5", "40.0"],
        ["20.0", "10.0", "40.0", "40.0"],
    ]
    assert "lies outside 0..200 x 0..100" in page.text and "1 boxes under 1 px" in page.text
    assert "4 rows, 2 good, 2 bad" in page.text


def test_the_page_loads_nothing_and_runs_nothing_that_data_say(tmp_path: Path) -> None:
    row = {"id": HOSTILE, "file": "red.png", "text": HOSTILE, "boxes": [[20, 10, 60, 50]]}
    page, text = sheet(tmp_path, [row])
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "img")]
    for _, attributes in page.tags:
        for key in ("src", "href"):
            assert (attributes.get(key) or "data:").startswith(("data:", "#"))
    assert "default-src 'none'" in text and HOSTILE in page.text


def test_a_large_source_is_shown_in_part(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(contact_sheet, "MOST", {"bad": 2, "odd": 2, "good": 4})
    good = {"file": "red.png", "text": "Where?"}
    rows = [good | {"id": f"g{n}", "boxes": [[n, 1, n + 9, 9]]} for n in range(40)]
    rows += [good | {"id": f"b{n}", "boxes": [[9, 1, 300, 9]]} for n in range(5)]
    page, _ = sheet(tmp_path, rows)
    sorts = [attributes["class"] for tag, attributes in page.tags if tag == "article"]
    assert sorts == ["card bad"] * 2 + ["card good"] * 4
    for name in ("g0", "g11", "g22", "g33"):  # evenly, the first among them
        assert f"· {name}" in page.text
