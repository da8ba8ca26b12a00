"""Ratings of a source: their columns choose and order rows; a wrong or incomplete file is one line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from helpers.loaders import prompt
from vlmrl import plugins
from vlmrl.config import SourceConfig
from vlmrl.data.loader import Loader
from vlmrl.data.ratings import Rating
from vlmrl.data.source import Source, open_source, rated_as
from vlmrl.errors import UserError


def mine(tmp_path: Path, count: int = 12, **more: Any) -> SourceConfig:
    """Rows 0 to 11, of ids r0 to r11, as `train.jsonl`."""
    rows = [{"id": f"r{i}", "question": "?", "answer": "x"} for i in range(count)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"question": "question", "answer": "answer", "id": "id"}
    options = {"path": str(tmp_path / "train.jsonl"), "columns": columns}
    ratings = str(tmp_path / "ratings.jsonl")
    return SourceConfig(card="table", name="mine", options=options, ratings=ratings, **more)


def rating(row: int, **more: Any) -> dict[str, Any]:
    """Row i has the pass rate i / 10, at most 1."""
    numbers = {"pass_rate": min(1.0, row / 10), "reward": row / 20, "n": 8}
    return asdict(Rating("mine", "train", row, f"r{row}", **{**numbers, **more}))


def write(tmp_path: Path, *ratings: dict[str, Any], **entry: Any) -> None:
    source = {**rated_as(mine(tmp_path)), "rows": 12, **entry}
    lines = [{"manifest": {"sources": [source]}}, *ratings]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "ratings.jsonl").write_text(text)


def ids(source: Source) -> list[str]:
    return [source.sample(row).id for row in range(len(source.rows))]


def test_its_columns_choose_rows_of_any_cut_of_the_split(tmp_path: Path) -> None:
    write(tmp_path, *map(rating, range(12)))
    source = open_source(mine(tmp_path, where="0.3 < pass_rate < 1 and n == 8", split="train[2:8]"))
    assert ids(source) == ["r4", "r5", "r6", "r7"]
    row = source.rows[0]
    assert (row["pass_rate"], row["reward"], row["n"]) == (0.4, 0.2, 8)


def test_a_curriculum_orders_rows_by_it(tmp_path: Path) -> None:
    write(tmp_path, *map(rating, reversed(range(12))))
    sampler = plugins.build("sampler", "curriculum", {"difficulty": "pass_rate"})
    source = open_source(mine(tmp_path, limit=11))
    batch = Loader([source], prompt, 11, sampler=sampler).next()
    assert [p.sample.id for p in batch.prompts] == [f"r{i}" for i in range(11)]


def test_a_row_that_could_not_be_rated_is_counted_when_it_is_drawn(tmp_path: Path) -> None:
    torn = rating(3, pass_rate=None, reward=None, n=0, fault="cannot be decoded")
    write(tmp_path, *map(rating, range(3)), torn, *map(rating, range(4, 12)))
    source = open_source(mine(tmp_path, where="pass_rate <= 0.2"))
    assert len(source.rows) == 4
    loader = Loader([source], prompt, 3, quarantine_limit=1.0)
    assert {p.sample.id for p in [*loader.next().prompts, *loader.next().prompts]} == {
        "r0",
        "r1",
        "r2",
    }
    (reason,) = loader.quarantine.reasons(source).values()
    assert "train.jsonl:4: " in reason and reason.endswith("no rating of it: cannot be decoded")


@pytest.mark.parametrize(
    ("lines", "entry", "said"),
    [
        ([0, 1], {}, "ratings.jsonl: expected a rating of row 2, got none"),
        ([*range(12), 5], {}, "ratings.jsonl:14: row 5 of 'train' is rated twice"),
        ([*range(12), 99], {}, "ratings.jsonl:14: row 99 of 'train' does not exist"),
        (range(12), {"rows": 7}, "rates split 'train' of 7 rows, got 12"),
        (range(12), {"split": "val"}, "expected ratings of mine:train, got those of mine:val"),
        (range(12), {"name": "other", "card": "x"}, "of mine:train, got those of other:train"),
    ],
)
def test_a_wrong_or_incomplete_file_is_one_line(
    tmp_path: Path, lines: list[int], entry: dict[str, Any], said: str
) -> None:
    write(tmp_path, *map(rating, lines), **entry)
    with pytest.raises(UserError) as refused:
        open_source(mine(tmp_path))
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "zz"}, "ratings.jsonl:2: rates row 0 as 'zz', whose id is 'r0'"),
        ({"pass_rate": 1.5}, "ratings.jsonl:2: expected a rating (source, split, row, id"),
        ({"pass_rate": None}, "ratings.jsonl:2: expected a rating"),
        ({"n": 0}, "ratings.jsonl:2: expected a rating"),
        ({"row": True}, "ratings.jsonl:2: expected a rating"),
        ({"more": 1}, "ratings.jsonl:2: expected a rating"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    write(tmp_path, {**rating(0), **change}, *map(rating, range(1, 12)))
    with pytest.raises(UserError) as refused:
        open_source(mine(tmp_path))
    assert said in str(refused.value)


def test_a_file_without_its_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ratings.jsonl").write_text(json.dumps(rating(0)) + "\n")
    with pytest.raises(UserError, match=r"ratings.jsonl:1: expected the manifest"):
        open_source(mine(tmp_path))
    with pytest.raises(UserError, match=r"none.jsonl: cannot be read"):
        open_source(mine(tmp_path).model_copy(update={"ratings": str(tmp_path / "none.jsonl")}))


def test_data_of_another_name_or_place_are_found_by_their_ids(tmp_path: Path) -> None:
    write(tmp_path, *map(rating, range(12)), options={"path": "elsewhere"})
    assert len(open_source(mine(tmp_path, where="pass_rate == 1")).rows) == 2
    write(tmp_path, *map(rating, range(12)))
    assert len(open_source(mine(tmp_path).model_copy(update={"name": "hard"})).rows) == 12


def test_a_column_of_the_data_is_never_overwritten(tmp_path: Path) -> None:
    config = mine(tmp_path, where="pass_rate > 0")
    write(tmp_path, *map(rating, range(12)))
    lines = (tmp_path / "train.jsonl").read_text().replace('"answer"', '"n": 3, "answer"')
    (tmp_path / "train.jsonl").write_text(lines)
    with pytest.raises(UserError, match=r"train.jsonl:1: column 'n' would be overwritten"):
        open_source(config).sample(0)


def test_a_resume_with_other_ratings_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *map(rating, range(12)))
    begun = Loader([open_source(mine(tmp_path))], prompt, 4)
    write(tmp_path, *map(rating, range(11)), rating(11, pass_rate=0.5))
    with pytest.raises(UserError, match=r"the data have changed: sources was .*rated"):
        Loader([open_source(mine(tmp_path))], prompt, 4).restore(begun.state)
