"""Every shipped config runs from any folder, on data of the repository, every source by its own verifiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.daily import marked
from vlmrl import plugins
from vlmrl.assemble import lifecycle
from vlmrl.assemble.validate import validate
from vlmrl.config import load
from vlmrl.config.tree import shipped
from vlmrl.data.source import open_source
from vlmrl.errors import UserError

TINY = [
    "run.threads=1",
    "run.steps=2",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft.max_steps=4",
    "sft.batch_size=4",
    "sft.validate_from=2",
    "sft.validate_every=2",
    "sft.decay_steps=1",
    "sft.validation_limit=4",
    "rollout.prompts=6",
    "rollout.group_size=2",
    "rollout.max_tokens=8",
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs a shipped config may be anywhere."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def installed_in(folder: Path, card: str) -> list[str]:
    """Write a few files as a package installs them; return the overrides with which a config reads them."""
    path = plugins.load("card", card).write_example(folder)["path"]
    keys = ("data.train.0", "sft.sources.0", "sft.validation.0")
    return [f"{key}.options.path={path}" for key in keys]


SOURCES = {
    "quickstart": {"shapes": ["box_iou", "format"]},
    "think_or_not": {"shapes": ["box_iou", "format"]},
    "video_grounding": {"videos": ["temporal_iou", "format"]},
    "omni_mixed": {
        "shapes": ["box_iou", "format"],
        "videos": ["temporal_iou", "format"],
        "digits": ["exact", "format"],
    },
    "look_twice": {"look_twice": ["exact", "format"]},
    "gui_world": {"gui_world": ["world_return"]},
    "bccd_grounding": {"cells": ["box_iou", "format"]},
    "spoken_digits": {"digits": ["exact", "format"]},
    "whisper_digits": {"digits": ["exact", "format"]},
    "whisper_sequences": {"digits": ["asr", "format"]},
    "smollm_words": {"words": ["exact", "format"]},
    "stamps": {"scenes": ["detection", "format"]},
    "drum_hits": {"hits": ["asr", "format"]},
    "cards_mixed": {
        "referring": ["box_iou", "class_name", "format"],
        "questions": ["count", "class_name", "format"],
    },
}
"""Config -> source -> verifiers."""
INSTALLED = ("stamps", "drum_hits")
"""Configs whose card, of the same name, reads what a package of Debian installs."""
CONFIGS = [name for name in shipped() if "/" not in name]
SLOWEST = ("cards_mixed", "gui_world", "omni_mixed")


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(CONFIGS, [c for c in CONFIGS if c not in SLOWEST]))
def test_a_shipped_config_takes_two_steps_and_scores_every_source(
    tmp_path: Path, name: str
) -> None:
    folder, sources = tmp_path / name, SOURCES[name]
    limit = 60 if name == "cards_mixed" else 12  # the first classification is after 30 counts
    overrides = [f"run.dir={folder}", f"evaluation.limit={limit}", *TINY]
    if load(name).model.build.weights:
        overrides += ["model.build.weights={}"]  # nothing is fetched here
    if name in INSTALLED:  # nor are the files of packages part of the repository
        overrides += installed_in(tmp_path, name)
    settings = load(name, overrides)
    validate(settings)
    summary = lifecycle.train(settings)

    assert summary["finished"] and summary["steps"] == 2
    assert summary["dropped"] == {} and summary["faulted"] == {}
    wanted = {f"{source}/{verifier}" for source in sources for verifier in sources[source]}
    for when in ("first_evaluation", "last_evaluation"):
        metrics = summary[when]["metrics"]
        scored = {key for key in metrics if key.count("/") == 1}
        scored = {
            key for key in scored if not key.startswith(("sampled/", "rollout/", "tool/", "world/"))
        }
        plain = {
            f"{source}/{key}" for source in sources for key in ("reward", "answered", "length")
        }
        assert scored == wanted | plain
        assert wanted <= set(summary[when]["intervals"])
    curves = {key for line in lines(folder / "metrics.jsonl") for key in line}
    assert {f"source/{key}" for key in wanted} <= curves
    checked = [
        line for line in lines(folder / "sft.jsonl") if any("validation/" in k for k in line)
    ]
    stops = settings.sft is not None and settings.sft.stop_at is not None
    assert [line["step"] for line in checked] == ([2] if stops else [])


@pytest.mark.parametrize("name", ["bccd_grounding", "cards_mixed"])
def test_photos_that_are_not_there_are_one_clear_line(tmp_path: Path, name: str) -> None:
    absent = tmp_path / "absent"
    paths = [f"data.train.{i}.options.path={absent}" for i in range(len(load(name).data.train))]
    with pytest.raises(UserError) as refused:
        lifecycle.train(load(name, [f"run.dir={tmp_path / 'run'}", *paths]))
    assert str(refused.value) == f"{absent}: no such file or folder"
    assert not (tmp_path / "run").exists()


def test_stamps_say_what_to_install_and_offline_which_folder_to_name(tmp_path: Path) -> None:
    run = f"run.dir={tmp_path / 'run'}"
    with pytest.raises(UserError, match="`apt-get install tuxpaint-stamps-default`"):
        lifecycle.train(load("stamps", [run, "data.train.0.options.path=/absent"]))
    overrides = [
        run,
        *installed_in(tmp_path, "stamps"),
        "model.build.weights.vision=facebook/not-a-model",
    ]
    with pytest.raises(UserError, match=r"got 'facebook/not-a-model'.* offline, name a folder"):
        lifecycle.train(load("stamps", overrides))


@pytest.mark.parametrize(
    "name", ["bccd_grounding", "cards_mixed", "spoken_digits", "whisper_sequences"]
)
def test_no_photo_or_recording_serves_two_purposes(name: str) -> None:
    """Imitation, its stop, GRPO and evaluation each have media of their own; with variants the first and
    the third have other views of the same."""
    config = load(name)
    assert config.sft
    held_out = [s.model_copy(update={"split": "test"}) for s in config.data.train]
    purposes = [config.data.train, config.sft.sources, config.sft.validation, held_out]
    if name == "bccd_grounding":
        purposes[:2] = [[*config.data.train, *config.sft.sources]]
    seen: set[str] = set()
    for sources in purposes:
        opened = [open_source(source) for source in sources]
        images = {
            str(image)
            for source in opened
            for row in source.rows
            for image in row.get("images", row.get("files", [row["id"]]))
        }
        assert images and not images & seen
        seen |= images


def test_every_shipped_config_loads_and_its_parts_build(subtests: pytest.Subtests) -> None:
    for name in (name for name in shipped() if "/" not in name):
        with subtests.test(name):
            settings = load(name)
            validate(settings)
            plugins.build("engine", settings.engine.name, settings.engine.options)
            begun = settings.at(0.0).algorithm  # an option may follow a schedule
            plugins.build("algorithm", begun.name, begun.options)
            if settings.model.build:
                plugins.build("family", settings.model.build.family)
