"""Data of benchmarks and recipes are fetched from a stand-in of the hub, and from a folder of downloads."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from PIL import Image
from typer.testing import CliRunner

from helpers.hub import SHA, Hub, hub_server
from helpers.published import ROWS, write_published
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.benchmarking.fetching import MANIFEST, fetch_benchmark, fetch_config
from vlmrl.cli.app import app
from vlmrl.config import load
from vlmrl.data.source import open_source
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.media.decode import decode

AI2D = "lmms-lab-encoder/ai2d"


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def published(tmp_path: Path) -> dict[str, bytes]:
    """AI2D as published, with another split, and media in archives: whole, and in parts."""
    home = write_published(tmp_path / "hub", "ai2d", "test", ROWS["ai2d"])
    (table,) = home.glob("data/*.parquet")
    parts = tarred({"./more/b.txt": b"b" * 3000})
    return {
        "README.md": b"---\nlicense: mit\n---\n",
        "data/test-00000-of-00001.parquet": table.read_bytes(),
        "data/train-00000-of-00001.parquet": b"not wanted",
        "media.zip": zipped({"media/a.txt": b"a"}),
        "more.tar.part-aa": parts[:2000],
        "more.tar.part-ab": parts[2000:],
    }


@pytest.fixture
def hub(published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub_server({AI2D: published}) as server:
        yield server


def test_a_benchmark_is_fetched_once_unpacked_and_evaluable(hub: Hub, tmp_path: Path) -> None:
    said = []
    home = fetch_benchmark("ai2d", tmp_path / "data", origin=hub.url, say=said.append)
    assert (home / "media/a.txt").read_bytes() == b"a"
    assert (home / "more/b.txt").read_bytes() == b"b" * 3000
    assert not (home / "media.zip").exists() and not (home / "more.tar.part-aa").exists()
    assert "data/train-00000-of-00001.parquet" not in hub.asked
    manifest = json.loads((home / MANIFEST).read_text())
    assert manifest["revision"] == SHA and manifest["repository"] == AI2D
    assert any("licence" in line for line in said) and any(SHA in line for line in said)
    assert len(BenchmarkCard(open_benchmark("ai2d", str(home)), "ours").rows("test")) == 4
    hub.asked.clear()
    fetch_benchmark("ai2d", tmp_path / "data", origin=hub.url, say=said.append)
    assert hub.asked == []  # all of it is here, archives included


def test_an_interrupted_fetch_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.fail_once = {"media.zip"}
    with pytest.raises(UserError, match="cannot be fetched"):
        fetch_benchmark("ai2d", tmp_path, origin=hub.url, say=str)
    hub.asked.clear()
    home = fetch_benchmark("ai2d", tmp_path, origin=hub.url, say=str)
    assert (home / "media/a.txt").exists() and "media.zip" in hub.asked


def test_a_folder_of_downloads_works_the_same(published, tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    for name, content in published.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    command = ["data", "fetch", "ai2d", "--to", str(tmp_path / "data"), "--from", str(folder)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "data/ai2d/more/b.txt").exists() and (folder / "media.zip").exists()


def test_the_folder_beside_the_rows_is_fetched_too(tmp_path: Path) -> None:
    downloads = write_published(tmp_path / "hub", "gqa", "testdev", ROWS["gqa"])
    (downloads / "testdev_all_images").mkdir()
    (downloads / "testdev_all_images/testdev-00000-of-00001.parquet").write_bytes(b"not wanted")
    home = fetch_benchmark("gqa", tmp_path / "data", origin=str(downloads), say=lambda _: None)
    folders = {file.parent.name for file in home.glob("*/*.parquet")}
    assert folders == {"testdev_balanced_instructions", "testdev_balanced_images"}


@pytest.mark.parametrize("path", ["../out.txt", "/out.txt", "a/../../out.txt"])
def test_a_path_that_leads_outside_is_refused(hub: Hub, tmp_path: Path, path: str) -> None:
    hub.contents[AI2D] = {"media.zip": zipped({path: b"x"})}
    with pytest.raises(UserError, match="inside"):
        fetch_benchmark("ai2d", tmp_path / "data", origin=hub.url, say=str)
    hub.contents[AI2D] = {path: b"x"}
    with pytest.raises(UserError, match="inside"):
        fetch_benchmark("ai2d", tmp_path / "data", origin=hub.url, say=str)
    assert not (tmp_path / "out.txt").exists()


def test_a_broken_archive_names_itself(hub: Hub, tmp_path: Path) -> None:
    hub.contents[AI2D]["media.zip"] = hub.contents[AI2D]["media.zip"][:40]
    with pytest.raises(UserError, match=r"media\.zip: cannot be unpacked"):
        fetch_benchmark("ai2d", tmp_path, origin=hub.url, say=str)


def test_what_cannot_be_fetched_says_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cocodataset"):
        fetch_benchmark("coco", tmp_path, say=str)
    done = CliRunner().invoke(app, ["data", "fetch", "mmstat", "--to", str(tmp_path)])
    assert "mmstar" in str(done.exception)
    with pytest.raises(UserError, match="expected the address of a mirror, or a folder"):
        fetch_benchmark("ai2d", tmp_path, origin=str(tmp_path / "nowhere"), say=str)


REC = '{"id": 1, "image": "train2014/a.png", "conversations": [{"from": "human", "value": "<image>the dog"}, '
REC += '{"from": "gpt", "value": [1, 1, 30, 30]}]}\n'


@pytest.fixture
def image() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (56, 56)).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_recipe_is_fetched_as_published_and_its_rows_are_read(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("refcoco_train.jsonl", "refcocop_train.jsonl", "refcocog_train.jsonl")
    val = '[{"image": "train2014/a.png", "problem": "the dog", "solution": [1, 1, 30, 30]}]'
    rows = dict.fromkeys(names, REC.encode()) | {"refcoco_val.json": val.encode()}
    hub.contents["omlab/VLM-R1"] = {
        "train2014.zip": zipped({"train2014/a.png": image}),
        "rec_jsons_processed.zip": zipped({f"rec_jsons_processed/{n}": r for n, r in rows.items()}),
        "lisa-test.zip": b"not wanted",
    }
    settings = load("recipes/vlm_r1")
    with pytest.raises(
        UserError, match="get the data, omlab/VLM-R1 of the hub, by `vlmrl data fetch"
    ):
        open_source(settings.data.train[0])
    done = CliRunner().invoke(app, ["data", "fetch", "recipes/vlm_r1", "--from", hub.url])
    assert done.exit_code == 0, done.exception
    assert "licence cc-by-4.0" in done.output and "lisa-test.zip" not in hub.asked
    for source in settings.named_sources:
        sample = open_source(source).sample(0)
        assert sample.truth.boxes and decode(sample, Access(source.options["root"]))


def test_archives_of_a_recipe_are_unpacked_beside_themselves(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = zipped({"STAR_data/b.mp4": b"b"})
    hub.contents["Video-R1/Video-R1-data"] = {"Video-R1-260k.json": b"[]", "STAR/b.zip": archive}
    fetch_config("recipes/video_r1", load("recipes/video_r1"), origin=hub.url, say=str)
    assert Path("data/video_r1/STAR/STAR_data/b.mp4").read_bytes() == b"b"
    hub.contents["omlab/VLM-R1"] = {"README.md": b"moved"}
    with pytest.raises(UserError, match="it holds no file that recipes/vlm_r1 wants"):
        fetch_config("recipes/vlm_r1", load("recipes/vlm_r1"), origin=hub.url, say=str)


def test_a_config_that_names_no_published_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="quickstart: no source of it says where its data are published"
    ):
        fetch_config("quickstart", load("quickstart"), say=str)


def test_a_pattern_names_files_whatever_their_splits(tmp_path: Path) -> None:
    published = write_published(tmp_path, "voicebench_mmsu", "test", ROWS["voicebench_mmsu"])
    law = published / "mmsu/law-00000-of-00001.parquet"
    for other in ("mmsu/physics-00000-of-00001.parquet", "bbh/test-00000-of-00001.parquet"):
        (published / other).parent.mkdir(exist_ok=True)
        (published / other).write_bytes(law.read_bytes())
    home = fetch_benchmark("voicebench_mmsu", tmp_path / "data", origin=str(published), say=str)
    assert sorted(file.name[:3] for file in home.rglob("*.parquet")) == ["law", "phy"]
    rows = BenchmarkCard(open_benchmark("voicebench_mmsu", str(home)), "ours").rows("test")
    assert [row["domain"] for row in rows] == ["law"] * 5 + ["physics"] * 5
