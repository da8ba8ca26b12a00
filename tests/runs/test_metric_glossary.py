"""Every number that a run writes is in the glossary; `make style` holds it against the names in the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.runs import TINY
from vlmrl import config, plugins
from vlmrl.assemble import lifecycle
from vlmrl.runs import metrics as glossary


@pytest.mark.slow
def test_every_number_of_a_short_run_is_in_the_glossary(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    few = ["run.steps=2", "evaluation.samples=2", "checks.parity_exact=true"]
    summary = lifecycle.train(config.load("quickstart", [*TINY, *few, f"run.dir={folder}"]))
    assert summary["finished"]
    for file in ("metrics.jsonl", "sft.jsonl"):
        lines = map(json.loads, (folder / file).read_text().splitlines())
        names = {name for line in lines for name in line}
        assert len(names) >= 5
        assert [name for name in names if glossary.describe(name) is None] == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("reward/mean", "Mean reward"),
        ("reward/box_iou", "one verifier"),
        ("source/shapes/uniform_share", "of one source"),
        ("mode/think/box_iou", "in one mode"),
        ("media_ablation/blank_video_logprob_drop", "one kind"),
        ("validation/box_iou", "validation"),
    ],
)
def test_a_name_is_described_by_the_nearest_pattern(name: str, part: str) -> None:
    line = glossary.describe(name)
    assert line is not None and part in line


@pytest.mark.parametrize("name", ["reward", "nothing/mean", "reward/a/b"])
def test_an_unknown_name_has_no_description(name: str) -> None:
    assert glossary.describe(name) is None


@pytest.mark.parametrize(
    ("kind", "variable"), [("algorithm", "metrics"), ("sampler", "curves"), ("strategy", "curves")]
)
def test_what_is_read_without_an_import_is_what_the_parts_have(kind: str, variable: str) -> None:
    loaded = {name: plugins.load(kind, name) for name in plugins.names(kind)}
    own = {name: vars(part)[variable] for name, part in loaded.items() if variable in vars(part)}
    assert plugins.stated(kind, variable) == own != {}
    for part in loaded.values():
        for name, line in getattr(part, variable).items():
            assert glossary.describe(name) == line
