"""Search over page images: what is found, what is kept on disk, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.driving import run_turn
from vlmrl.errors import UserError
from vlmrl.interaction.tool import Refused, Shown, View
from vlmrl.interaction.tools import AskedCall, Toolbox
from vlmrl.parts.tools import search
from vlmrl.parts.tools.search import Search

TEXTS = [
    "The annual report of the harbour: ships and cargo.",
    "Revenue by quarter. Revenue rose in the third quarter.",
    "Ships: a table of ships by length.",
    "図書館の年報 第三四半期",
    "",
]


@pytest.fixture(autouse=True)
def forget() -> None:
    search._open.cache_clear()


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(len(TEXTS)):
        Image.new("RGB", (28, 28), (50 * number, 0, 0)).save(folder / f"p{number}.png")
    rows = ({"image": f"p{i}.png", "text": text} for i, text in enumerate(TEXTS))
    file = folder / "pages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def found(tool: Search, query: str, rank: int = 1) -> int:
    """The page that is shown, from 0."""
    text, shown = tool(View(), query, rank)
    assert isinstance(shown, Shown) and isinstance(shown.medium, Image.Image)
    page = np.asarray(shown.medium)[0, 0, 0] // 50
    assert shown.name == f"p{page}"
    assert text == f"Page {page + 1} of {len(TEXTS)}:"
    return int(page)


def test_the_page_that_fits_best_is_shown(pages: Path) -> None:
    tool = Search(str(pages))
    assert found(tool, "Which quarter had the most REVENUE?") == 1
    assert [found(tool, "ships", rank) for rank in (1, 2)] == [2, 0]
    assert found(tool, "第三四半期") == 3


def test_scores_are_those_of_bm25_in_lucenes_form(pages: Path) -> None:
    scorer, _ = search._open(str(pages), "")
    docs = [search._words(text) for text in TEXTS]
    mean, k1, b = sum(map(len, docs)) / len(docs), 1.5, 0.75
    expected = []
    for doc in docs:
        have = sum("ships" in other for other in docs)
        idf = math.log(1 + (len(docs) - have + 0.5) / (have + 0.5))
        count = doc.count("ships")
        expected.append(idf * count / (count + k1 * (1 - b + b * len(doc) / mean)))
    assert scorer.get_scores(["ships"]) == pytest.approx(expected, rel=1e-5)


def test_the_index_is_kept_and_follows_its_pages(pages: Path, tmp_path: Path) -> None:
    tool = Search(str(pages), str(tmp_path / "index"))
    tool.schemas()
    (first,) = (tmp_path / "index").iterdir()
    made = first.stat().st_mtime_ns
    search._open.cache_clear()
    tool.prepare()
    assert first.stat().st_mtime_ns == made
    pages.write_text(pages.read_text(encoding="utf-8").replace("cargo", "zebra"), encoding="utf-8")
    search._open.cache_clear()
    assert found(tool, "zebra") == 0
    assert len([*(tmp_path / "index").iterdir()]) == 2


def test_a_collection_with_its_index_may_be_moved(pages: Path, tmp_path: Path) -> None:
    Search(str(pages)).schemas()
    moved = pages.parent.rename(tmp_path / "moved") / pages.name
    assert found(Search(str(moved)), "revenue") == 1


def test_what_cannot_be_found_is_told_to_the_policy(pages: Path) -> None:
    tool = Search(str(pages))
    for query in ("", "?!", "unicorn"):
        with pytest.raises(Refused, match="no page has a word of the query"):
            tool(View(), query)
    for rank in (0, 3, -1):
        with pytest.raises(Refused, match="rank: expected 1 to 2"):
            tool(View(), "ships", rank)


def test_calls_run_in_a_worker_and_number_the_image(pages: Path) -> None:
    with Toolbox([Search(str(pages))]) as toolbox:
        (schema,) = toolbox.schemas()
        assert [*schema["function"]["parameters"]["properties"]] == ["query", "rank"]
        outcome = run_turn(toolbox, [AskedCall("search", {"query": "revenue"})])
    assert outcome.calls[0].outcome == "ok", outcome.fault
    assert outcome.parts[:2] == ("Page 2 of 5:", "Image 1:")
    (shown,) = outcome.shown
    assert np.asarray(shown.medium)[0, 0, 0] == 50


WRONG = {
    "{": "line 1: is not JSON",
    '{"image": "p0.png"}': 'line 1: expected {"image": "p1.png", "text": "..."}',
    '{"image": "../x.png", "text": "a"}': "is outside",
    '{"image": "/etc/hostname", "text": "a"}': "is outside",
    '{"image": "p9.png", "text": "a"}': "line 1: the image 'p9.png' is missing",
    '{"image": "p0.png", "text": " "}': "expected pages with text, got none",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_pages_are_one_line(pages: Path, line: str) -> None:
    pages.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        Search(str(pages)).schemas()
    assert WRONG[line] in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="No such file"):
        Search(str(pages) + "x").schemas()


def test_an_index_that_cannot_be_written_is_one_line(pages: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"search: index: .*file: Not a directory"):
        Search(str(pages), str(tmp_path / "file")).schemas()
