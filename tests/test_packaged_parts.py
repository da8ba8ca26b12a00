"""Parts of an installed package, none of the checkout: listed, found by name, tested by one command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from PIL import Image

from vlmrl import config, plugins
from vlmrl.assemble.sources import open_benchmarks, rewards_by_source
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.errors import UserError
from vlmrl.features.check import list_parts

GUIDE = Path(__file__).parents[1] / "docs/extend/benchmark.md"
VERIFIER = '''
from __future__ import annotations
from dataclasses import dataclass


@dataclass(frozen=True)
class AreaRatio:
    """Pays the ratio of two areas."""

    tolerance: float = 0.25
    """Ratios this far from 1 are paid nothing."""
'''


@pytest.fixture()
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, on `sys.path`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, name: str, entries: dict[str, str], files: dict[str, str]) -> None:
    """Install a package as pip does: its files, and a folder `.dist-info` with its entry points."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[vlmrl.parts]", *lines]))
    for file, text in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(textwrap.dedent(text))
    plugins._entries.cache_clear()


def test_a_part_of_a_package_is_listed_with_it_and_built_by_its_name(site: Path) -> None:
    entries = {"verifier.area_ratio": "inspection.area_ratio:AreaRatio"}
    install(site, "inspection-parts", entries, {"inspection/area_ratio.py": VERIFIER})
    assert "area_ratio" in plugins.names("verifier")
    assert "area_ratio" not in plugins.shipped("verifier")
    assert "inspection.area_ratio" not in sys.modules
    assert list_parts.describe("verifier", "area_ratio") == [
        "area_ratio (inspection-parts): Pays the ratio of two areas.",
        "    tolerance: float = 0.25",
        "        Ratios this far from 1 are paid nothing.",
    ]
    assert plugins.build("verifier", "area_ratio", {"tolerance": 0.5}).tolerance == 0.5
    with pytest.raises(UserError, match="did you mean 'area_ratio'"):
        plugins.load("verifier", "area_ratios")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("verifier.box_iou = inspection.box_iou:BoxIou", "vlmrl ships a verifier of this name"),
        ("verifier.area = inspection.area_ratio:AreaRatio", "the name of its file, 'area_ratio'"),
        ("verifiers.area = inspection.area:Area", "expected kind.name, the kind one of verifier"),
    ],
)
def test_a_name_that_cannot_be_is_one_error_that_names_package_and_part(
    site: Path, entry: str, sentence: str
) -> None:
    key, _, value = entry.partition(" = ")
    install(site, "inspection-parts", {key: value}, {})
    with pytest.raises(UserError, match=rf"inspection-parts: part {entry}: .*{sentence}"):
        plugins.names("verifier")
    assert plugins.load("verifier", "box_iou").__module__ == "vlmrl.rewards.box_iou"


def test_two_packages_cannot_have_a_part_of_one_name(site: Path) -> None:
    for package in ("inspection", "survey"):
        install(site, package, {"verifier.area_ratio": f"{package}.area_ratio:AreaRatio"}, {})
    with pytest.raises(UserError, match=r"survey: .*: inspection has a verifier of this name"):
        plugins.load("verifier", "area_ratio")


def test_a_file_without_a_package_has_a_name_by_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "area_ratio.py"
    file.write_text(VERIFIER)
    monkeypatch.setenv(plugins.VARIABLE, f"verifier.area_ratio={file}:AreaRatio")
    part = plugins.load("verifier", "area_ratio")
    assert (plugins.name_of(part), part.__name__) == ("area_ratio", "AreaRatio")
    monkeypatch.setenv(plugins.VARIABLE, str(file))
    with pytest.raises(UserError, match=r"VLMRL_PARTS: expected kind\.name=path"):
        plugins.names("verifier")


def test_a_shipped_part_is_loaded_without_asking_which_packages_are_installed() -> None:
    code = "import sys; from vlmrl import plugins; plugins.load('sampler', 'mixture')"
    code += "; print(plugins._entries.cache_info().currsize)"
    environment = {key: value for key, value in os.environ.items() if key != plugins.VARIABLE}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert run.stdout.strip() == "0"


def test_a_benchmark_of_a_file_is_named_with_its_split() -> None:
    assert plugins.split_of("refcoco:testB") == ("refcoco", "testB")
    assert plugins.split_of("parts/own.py:Own") == ("parts/own.py:Own", "")
    assert plugins.split_of("mine.own:Own:val") == ("mine.own:Own", "val")
    labels = [plugins.label_of(n) for n in ("parts/own.py:Own", "mine.own:Own:val", "a:b", "gqa")]
    assert labels == ["own", "own:val", "a:b", "gqa"]


def test_a_benchmark_of_a_file_is_opened_by_a_config_and_called_after_its_file(
    tmp_path: Path,
) -> None:
    (text,) = re.findall(r"```python.*?\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "my_choice.py").write_text(text)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    row = {"image": "a.png", "question": "Which?", "options": ["x", "y"], "answer": "B"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    name = f"{tmp_path / 'my_choice.py'}:MyChoice"
    asked = {"benchmarks": [{"name": name, "path": str(tmp_path), "limit": 1}]}
    more = f"evaluation={json.dumps({**asked, 'metric': 'my_choice/strict'})}"
    settings = config.load("quickstart", [more])
    (source,) = open_benchmarks(settings)
    assert (source.name, source.sample(0).truth.value("choice")) == ("my_choice", "B")
    assert rewards_by_source(settings)["my_choice"][0].verifier == "choice"
    with pytest.raises(UserError, match="no split 'val'; it has: test"):
        config.load("quickstart", [more.replace("MyChoice", "MyChoice:val")])
    with pytest.raises(UserError, match="get the data at me/my_choice"):
        BenchmarkCard(open_benchmark(name, str(tmp_path / "absent")), "ours").rows("test")
