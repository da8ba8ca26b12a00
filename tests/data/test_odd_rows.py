"""No row ends a run: whatever stands in a column, the row is good or it is named, in every layout."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import odd_rows
from helpers.loaders import Files
from vlmrl.data.files.opening import open_rows
from vlmrl.data.source import Source
from vlmrl.errors import DiskError, UserError
from vlmrl.schema import Sample

CHUNK, CHUNKS = 1000, 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("odd")
    odd_rows.write_media(made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("card", odd_rows.CARDS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_odd_rows_are_named_and_end_nothing(folder: Path, card: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(odd_rows.changes(card), min_size=1, max_size=25))
    odd_rows.account(odd_rows.source_of(folder, card, rows), folder, (0, 2))


@pytest.mark.nightly
@pytest.mark.parametrize("card", odd_rows.CARDS)
def test_every_odd_value_in_every_column(folder: Path, card: str) -> None:
    rows = [{column: value} for column in odd_rows.CARDS[card] for value in odd_rows.ODD]
    good, bad = odd_rows.account(odd_rows.source_of(folder, card, rows), folder, (0, 2))
    assert good > 2 < bad


@pytest.mark.nightly
def test_many_odd_rows_are_all_accounted_for(folder: Path) -> None:
    begin, counts = time.monotonic(), [0, 0]
    for number in range(CHUNKS):
        card = [*odd_rows.CARDS][number % len(odd_rows.CARDS)]
        rng = random.Random(number)
        rows = [odd_rows.drawn(card, rng) for _ in range(CHUNK)]
        found = odd_rows.account(odd_rows.source_of(folder, card, rows), folder, (0, 2))
        counts = [count + more for count, more in zip(counts, found, strict=True)]
    print(
        f"{sum(counts)} rows, {counts[0]} good, {counts[1]} bad, {time.monotonic() - begin:.0f} s"
    )


def test_what_no_terminal_can_show_is_printed_escaped(folder: Path) -> None:
    source = odd_rows.source_of(folder, "records", [{"id": "\ud800", "images": ["a\0\udfff.png"]}])
    command = [sys.executable, "-m", "vlmrl", "data", "check", "records", "-o"]
    path = str(folder / "records.jsonl")
    done = subprocess.run([*command, f"path={path}"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"records train: {len(source.rows)} rows, 2 good, 1 bad" in done.stdout
    assert r"bad  \ud800: " in done.stdout


def test_a_text_of_many_megabytes_is_named_by_its_ends(folder: Path) -> None:
    row = {"images": ["data:image/png;base64," + "A" * 40_000_001]}
    other = {"images": ["x" * 2_000_000]}
    source = odd_rows.source_of(folder, "records", [row, other])
    checked = odd_rows.checked_rows(source, folder)
    reasons = {row: reason for row, reason in checked.items() if reason}
    assert odd_rows.loaded_rows(source, 0) == ({0, 3}, reasons)
    assert reasons.keys() == {1, 2}
    assert max(map(len, reasons.values())) < 1100


def test_a_small_model_learns_its_tokens_without_the_rows_that_cannot_be_read(
    folder: Path,
) -> None:
    source = odd_rows.source_of(folder, "records", [{"question": "\ud800"}, {"question": "Who?"}])
    file = folder / "records.jsonl"
    file.write_text(file.read_text() + "{broken\n")
    corpus = source.card.corpus()
    assert "Who?" in " ".join(corpus)
    assert "\ud800" not in "".join(corpus)


class Failing(Files):
    """A card to which the system says no."""

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        if row["path"] != "text":
            raise OSError(int(row["path"]), "no")
        return super().to_sample(row, source)


def test_a_fault_of_a_name_is_the_rows_and_one_of_the_disk_is_not() -> None:
    def source(code: int) -> Source:
        card = Failing(paths=("text", str(code), "text"))
        return Source("failing", card, "train", card.rows("train"))

    for code in (errno.ENAMETOOLONG, errno.ENOENT, errno.ELOOP, errno.EINVAL):
        with pytest.raises(UserError, match="failing train row 1: the card: "):
            source(code).sample(1)
    for code in (errno.EIO, errno.EMFILE, errno.ENOSPC):
        with pytest.raises(OSError, match="no"):
            source(code).sample(1)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tar"])
def test_a_file_of_rows_that_is_gone_makes_no_row_bad(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"rows.{ending}"
    if ending == "tar":
        with tarfile.open(file, "w") as tar:
            tar.addfile(tarfile.TarInfo("a.txt"))
    else:
        file.write_text('{"id": 1}\n{"id": 2}\n')
    rows = open_rows(file, "train")
    file.unlink()
    with pytest.raises(DiskError, match=f"rows.{ending}: cannot be read any more"):
        rows[0]


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 10**400, 1e308, "nan"], ids="abcde")
def test_a_weight_that_would_spoil_its_batch_is_refused(folder: Path, weight: object) -> None:
    source = odd_rows.source_of(folder, "table", [{"weight": weight}])
    with pytest.raises(UserError, match=r"table.jsonl:2: weight: expected"):
        source.sample(1)
