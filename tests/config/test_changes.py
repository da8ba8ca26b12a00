"""A resume takes, notes or refuses another value of a key, by the class that stands at its field."""

from __future__ import annotations

import pytest

from vlmrl.config import load
from vlmrl.config.changes import changes, classes, require_allowed
from vlmrl.errors import UserError


def changed(*overrides: str, name: str = "quickstart") -> dict[str, str]:
    before, after = load(name), load(name, overrides)
    both = (each.model_dump(mode="json") for each in (before, after))
    return {str(change): change.how for change in changes(*both)}


def test_every_key_has_one_class() -> None:
    keys = [key for key, _ in classes()]
    assert len(keys) == len(set(keys)) > 200
    assert {how for _, how in classes()} == {"free", "noted", "fixed"}


def test_what_is_free_is_no_change() -> None:
    free = ("run.name=other", "run.save_every=7", "data.workers=1", "checks={parity_every: 0}")
    assert changed(*free, "scoring.workers=1", "distributed.timeout_s=9", "resume=auto") == {}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("run.steps=300", "run.steps was 150, is 300"),
        ("optimizer.lr=0.5", "optimizer.lr was 0.0004, is 0.5"),
        ("rollout.group_size=4", "rollout.group_size was 8, is 4"),
        ("algorithm=dapo", "algorithm.name was grpo, is dapo"),
    ],
)
def test_what_training_does_from_here_on_is_noted(override: str, line: str) -> None:
    assert changed(override)[line] == "noted"


def test_rewards_are_known_by_name() -> None:
    lines = changed("rewards=[{verifier: box_iou, weight: 2}, text]")
    assert set(lines.values()) == {"noted"}
    assert any(line.startswith("rewards.box_iou.weight was") for line in lines)
    assert any(line.startswith("rewards.text was not set") for line in lines)


@pytest.mark.parametrize(
    "override",
    [
        "model.build.family=qwen2_audio",
        "model.freeze=[vision]",
        "model.lora={rank: 4}",
        "data.train.0.split=test",
        "run.seed=1",
        "optimizer.name=adamw_8bit",
        "data.sampler=in_order",
    ],
)
def test_what_makes_the_checkpoint_another_thing_is_refused(override: str) -> None:
    before, after = load("quickstart"), load("quickstart", [override])
    found = changes(before.model_dump(mode="json"), after.model_dump(mode="json"))
    with pytest.raises(UserError, match="makes the checkpoint another thing") as refused:
        require_allowed(found, ())
    allow = str(refused.value).partition("resume.allow=[")[2].rstrip("]").split(",")
    require_allowed(found, allow)
    require_allowed(found, [allow[0].partition(".")[0]])


def test_data_may_move_but_not_be_read_otherwise() -> None:
    source = "data.train=[{card: records, options: {path: a}, name: mine}]"
    moved = "data.train=[{card: records, options: {path: b}, name: mine}]"
    before, after = load("quickstart", [source]), load("quickstart", [moved])
    (change,) = changes(before.model_dump(mode="json"), after.model_dump(mode="json"))
    assert (change.key, change.how) == ("data.train.mine.options.path", "noted")
    boxes = "data.train=[{card: records, options: {path: a, box_space: pixel}, name: mine}]"
    after = load("quickstart", [boxes])
    (change,) = changes(before.model_dump(mode="json"), after.model_dump(mode="json"))
    assert (change.key, change.how) == ("data.train.mine.options.box_space", "fixed")


def test_a_key_that_an_earlier_version_did_not_have_is_unchanged() -> None:
    now = load("quickstart").model_dump(mode="json")
    before = {**now, "model": {k: v for k, v in now["model"].items() if k != "several_images"}}
    assert changes(before, now) == []
