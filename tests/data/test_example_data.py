"""Example data: in the repository, or fetched and checked, or one line that says how to get it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from helpers.example_data import EXAMPLE_DATA
from vlmrl.data import example_data
from vlmrl.data.source import open_target
from vlmrl.errors import UserError

NAME = "charts"
"""The smallest of the data sets."""


@pytest.fixture
def without_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache of an installation that is no checkout."""
    monkeypatch.setattr("vlmrl.__file__", str(tmp_path / "site" / "vlmrl" / "__init__.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vlmrl" / "examples"


def archive(path: Path, folder: Path, more: dict[str, bytes] | None = None) -> Path:
    """A .tar.gz as of a release of the repository, with one data set and some other members."""
    with tarfile.open(path, "w:gz") as made:
        made.add(folder, arcname=f"vlmrl-0.1.0/examples/data/{NAME}")
        for name, content in (more or {}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", sorted(example_data.EXAMPLES))
def test_the_repository_holds_the_data_that_a_wheel_fetches(name: str) -> None:
    folder = EXAMPLE_DATA / name
    assert example_data.find(name) == folder
    stated = example_data.EXAMPLES[name]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert (stated.bytes, stated.sha256) == (size, example_data.digest(folder))
    assert (folder / "README.md").is_file() and (folder / "LICENSE").is_file()
    assert stated.licence.split()[0] in (folder / "README.md").read_text(encoding="utf-8")


def test_all_of_it_is_small_and_listed() -> None:
    folders = {folder.name for folder in EXAMPLE_DATA.iterdir() if folder.is_dir()}
    assert folders == set(example_data.EXAMPLES)
    assert sum(file.stat().st_size for file in EXAMPLE_DATA.rglob("*") if file.is_file()) < 15e6


def test_a_target_may_be_example_data() -> None:
    for text, name, split, count in [
        ("example:charts", "charts", "train", 17),
        ("example:charts:test", "charts", "test", 9),
        ("example:charts:train[:5]", "charts", "train[:5]", 5),
        ("example:charts/test.jsonl", "test", "test", 9),
    ]:
        source = open_target(text)
        assert (source.name, source.split, len(source.rows)) == (name, split, count)
    with pytest.raises(UserError, match="no example data is named 'chart'; did you mean 'charts'"):
        open_target("example:chart")


def test_in_a_checkout_there_is_nothing_to_fetch() -> None:
    assert example_data.fetch(NAME) == f"{NAME}: already here, {EXAMPLE_DATA / NAME}"
    with pytest.raises(UserError, match="no example data is named 'none'"):
        example_data.fetch("none")


def test_data_that_is_not_here_is_one_line_that_says_how_to_get_it(without_checkout: Path) -> None:
    with pytest.raises(UserError) as refused:
        open_target(f"example:{NAME}")
    message = str(refused.value)
    assert "\n" not in message and f"`vlmrl data fetch {NAME}`" in message
    assert "0.1 MB, CC BY-SA 4.0" in message and str(without_checkout / NAME) in message
    with pytest.raises(UserError, match="names no repository; give --archive"):
        example_data.fetch(NAME)


def test_fetched_data_are_those_of_the_repository(
    without_checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = {f"vlmrl-0.1.0/examples/data/{NAME}/../../x": b"x", "../y": b"y", "z": b"z"}
    made = archive(tmp_path / "release.tar.gz", EXAMPLE_DATA / NAME, outside)
    assert example_data.fetch(NAME, str(made)) == f"{NAME}: in {without_checkout / NAME}"
    assert "0.1 MB, licence CC BY-SA 4.0" in capsys.readouterr().out
    assert example_data.digest(without_checkout / NAME) == example_data.EXAMPLES[NAME].sha256
    assert [path.name for path in without_checkout.iterdir()] == [NAME]
    source = open_target(f"example:{NAME}")
    assert source.sample(0).media[0].path == str(without_checkout / NAME / "images/204-567.png")
    assert example_data.fetch(NAME, "absent").startswith(f"{NAME}: already here")


def test_nothing_stays_of_an_archive_with_other_files(
    without_checkout: Path, tmp_path: Path
) -> None:
    changed = {f"vlmrl-0.1.0/examples/data/{NAME}/train.jsonl": b"{}\n"}
    made = archive(tmp_path / "changed.tar.gz", EXAMPLE_DATA / NAME, changed)
    text = tmp_path / "text.tar.gz"
    text.write_text("<html>")
    empty = archive(tmp_path / "empty.tar.gz", EXAMPLE_DATA / "gui")
    for path, reason in [
        (made, "holds other files than this version"),
        (empty, "holds other files than this version"),
        (text, "not a gzip file"),
        (tmp_path / "absent.tar.gz", "No such file"),
        ("ftp://localhost/x.tar.gz", "only http and https URLs are fetched"),
    ]:
        with pytest.raises(UserError, match=reason) as refused:
            example_data.fetch(NAME, str(path))
        assert "\n" not in str(refused.value)
        assert list(without_checkout.iterdir()) == []
    with pytest.raises(UserError, match="has no examples/data/gui"):
        example_data.fetch("gui", str(made))


def test_an_archive_is_not_unpacked_without_end(
    without_checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = archive(tmp_path / "large.tar.gz", EXAMPLE_DATA / NAME, {"zeros": bytes(3 << 20)})
    monkeypatch.setattr(example_data, "MAX_ARCHIVE_BYTES", 2 << 20)
    with pytest.raises(UserError, match="unpacks to more than 2 MiB"):
        example_data.fetch(NAME, str(made))
