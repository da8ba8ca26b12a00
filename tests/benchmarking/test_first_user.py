"""From nothing to a table: twenty benchmarks are fetched as published, evaluated, compared and exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from helpers.hub import hub_server
from helpers.published import ROWS, write_published
from helpers.small import loaded
from vlmrl import plugins
from vlmrl.benchmarking.base import repository_of
from vlmrl.cli.app import app

pytestmark = pytest.mark.slow

NAMES = (
    *("ai2d", "chartqa", "countbench", "dynamath", "embspatial", "logicvista", "mathvision"),
    *("mathvista", "mme", "mme_realworld_lite", "mmmu", "pope", "realworldqa", "screenspot_pro"),
    *("seedbench", "textvqa", "visualpuzzles", "vizwiz_vqa", "vqav2", "wemath"),
)


def published(folder: Path) -> dict[str, dict[str, bytes]]:
    """The data sets of the benchmarks as the hub has them: files by data set and path."""
    contents: dict[str, dict[str, bytes]] = {}
    for name in NAMES:
        benchmark = plugins.load("benchmark", name)
        home = write_published(folder, name, benchmark.split, ROWS[name])
        files = {p.relative_to(home).as_posix(): p for p in home.rglob("*") if p.is_file()}
        repository = repository_of(benchmark.hub)
        assert repository is not None and repository not in contents
        contents[repository] = {path: file.read_bytes() for path, file in files.items()}
    return contents


def invoke(*command: str) -> str:
    done = CliRunner().invoke(app, list(command))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, (command, done.output)
    return done.output


def test_twenty_benchmarks_from_nothing_to_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    built = loaded("qwen2_5_vl")
    for model in ("before", "after"):
        built.model.save_pretrained(model)
        built.processor.save_pretrained(model)
    with hub_server(published(tmp_path / "hub")) as hub:
        said = invoke("data", "fetch", *NAMES, "--from", hub.url)
    assert all(f"{name}: in data/{name}" in said for name in NAMES)
    limits = ("--limit", "4", "--max-tokens", "4", "--protocol", "lmms_eval")
    for model in ("before", "after"):
        asked = ("--benchmark", ",".join(NAMES), "--out", f"results/{model}")
        said = invoke("eval", model, *asked, *limits, "--export", "lmms_eval")
        assert all(name in said for name in NAMES)
        for name in NAMES:
            result = json.loads(Path(f"results/{model}/{name}/result.json").read_text())
            assert {"official", "strict"} <= result["figures"].keys()
    said = invoke("compare", "results/before", "results/after")
    assert all(name in said for name in NAMES)
