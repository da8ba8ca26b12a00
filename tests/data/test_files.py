"""Rows of every file format: the same values, where each row stands, and bad files in one line."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from vlmrl.config import SourceConfig
from vlmrl.data.files import columnar
from vlmrl.data.files.hub_download import locate
from vlmrl.data.files.opening import FORMATS, open_rows, splits
from vlmrl.data.files.rows import WHERE, cell, paths
from vlmrl.data.source import open_source
from vlmrl.errors import UserError

ROWS = [
    {"name": "a", "text": "plain"},
    {"name": "b", "text": 'a "quoted" word, a comma\tand a tab'},
    {"name": "c", "text": 'two\nlines, "and"\r\nthree'},
    {"name": "d", "text": '5" wide'},
]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """Write rows in the format that a path's ending names."""
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8-sig")
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(
                file, [*rows[0]], delimiter="\t" if path.suffix == ".tsv" else ","
            )
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    elif path.suffix == ".arrow":
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    else:
        write_tar(path, rows)
    return path


def write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    with tarfile.open(path, "w") as tar:
        for row in rows:
            for ending, data in (("txt", row["text"].encode()), ("json", json.dumps(row).encode())):
                member = tarfile.TarInfo(f"part/{row['name']}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("ending", FORMATS)
def test_rows_are_the_same_in_every_format_and_any_order(tmp_path: Path, ending: str) -> None:
    rows = open_rows(write(tmp_path / f"train{ending}"), "train")
    assert len(rows) == 4
    for index in (3, 0, 2, 1, 1, -1):
        row = rows[index]
        expected = ROWS[index]
        if ending == ".tar":
            assert (row["txt"], row["json"]) == (expected["text"], expected)
            assert row["__key__"] == f"part/{expected['name']}"
        else:
            assert {k: v for k, v in row.items() if k != WHERE} == expected
        assert f"train{ending}" in row[WHERE]
    assert splits(tmp_path) == ("train",)
    with pytest.raises(IndexError):
        rows[4]


@pytest.mark.parametrize("ending", FORMATS)
def test_parts_of_a_split_are_one_after_the_other(tmp_path: Path, ending: str) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / f"test-00000-of-00002{ending}", ROWS[:1])
    write(tmp_path / "data" / f"test-00001-of-00002{ending}", ROWS[1:])
    rows = open_rows(tmp_path, "test")
    assert len(rows) == 4
    assert "00001-of" in rows[3][WHERE] and "00000-of" in rows[0][WHERE]
    assert splits(tmp_path) == ("test",)


@pytest.mark.parametrize("ending", [e for e in FORMATS if e != ".jsonl"])
def test_a_file_that_is_not_what_its_ending_says_is_one_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"train{ending}"
    path.write_bytes(b"\xff\xfe no such thing")
    with pytest.raises(UserError, match=rf"train{ending}.*(cannot be read|not UTF-8)") as raised:
        open_rows(path, "train")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2,3\n", r"train\.csv:2: expected 2 cells, got 3"),
        ('a,b\n1,2\n"3,4\n5,6\n', r"train\.csv:3: expected 2 cells, got 1"),
        ("a,a\n1,2\n", r"expected columns with names of their own, got \['a', 'a'\]"),
        ("", "expected a header line, got an empty file"),
    ],
)
def test_a_bad_line_of_a_table_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        [*open_rows(tmp_path / "train.csv", "train")]


def test_an_item_of_a_json_list_that_is_no_object_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('[{"a": 1}, 2]')
    rows = open_rows(tmp_path, "train")
    assert rows[0]["a"] == 1
    with pytest.raises(UserError, match=r"train\.json item 1: expected a JSON object, got int"):
        rows[1]


def test_parquet_is_decoded_in_pieces_of_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "MAX_BATCH_ROWS", 7)
    rows = [{"n": n, "nested": {"list": [n, n + 1]}} for n in range(100)]
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=40)
    found = open_rows(path, "train")
    for index in (99, 0, 39, 40, 41, 3, 79, 80, *range(100)):
        assert found[index]["n"] == index
    assert cell(found[5], "nested.list.1") == 6


def test_a_dotted_path_reads_nested_columns(tmp_path: Path) -> None:
    row = {
        "objects": {"bbox": [[1, 2, 3, 4]], "names": ["dog"]},
        "items": [{"box": [1, 2, 3, 4]}, {"box": [5, 6, 7, 8]}],
        "messages": [{"content": "Where is the dog?"}, {"content": "there"}],
        "a.b": "its own name has a dot",
    }
    assert cell(row, "objects.bbox") == [[1, 2, 3, 4]]
    assert cell(row, "items.box") == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert cell(row, "messages.0.content") == "Where is the dog?"
    assert cell(row, "a.b") == "its own name has a dot"
    assert cell(row, "messages.7.content") is None and cell(row, "objects.none.deeper") is None
    assert {"objects.bbox", "items.box", "messages.0.content"} <= {*paths(row)}
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    columns = {
        "question": "messages.0.content",
        "boxes": "objects.bbox",
        "box_labels": "objects.names",
    }
    options = {"path": str(tmp_path), "columns": columns, "box_space": "norm1000"}
    sample = open_source(SourceConfig(card="table", options=options)).sample(0)
    assert sample.text == "Where is the dog?"
    assert sample.truth.boxes is not None and sample.truth.boxes[0].label == "dog"
    options["columns"] = {**columns, "boxes": "objects.box"}
    with pytest.raises(
        UserError, match=r"no column 'objects\.box'; did you mean 'objects\.bbox'\?"
    ):
        open_source(SourceConfig(card="table", options=options))


def test_a_name_of_the_hub_is_checked_before_it_is_asked_for() -> None:
    assert locate("data/train.json") == Path("data/train.json")
    with pytest.raises(UserError, match="expected hf://datasets/owner/name"):
        locate("hf://datasets/name")


def test_a_json_list_may_begin_with_a_mark_and_hold_what_only_python_writes(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_bytes(b'\xef\xbb\xbf[{"a": "\xc3\xa9"}, {"a": 1e400}]')
    assert [row["a"] for row in open_rows(path, "train")] == ["é", float("inf")]
    path.write_text('[{"a": 1}, {"a": NaN}]')
    assert open_rows(path, "train")[0]["a"] == 1
    path.write_text('{"a": [1, 2]}')
    with pytest.raises(UserError, match=r"train\.json: expected a JSON list of objects"):
        open_rows(path, "train")
