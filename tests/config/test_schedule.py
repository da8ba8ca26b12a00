"""Values that change over training: the forms of a schedule, where it may stand, and what is refused."""

from __future__ import annotations

import json

import pytest

from vlmrl import config
from vlmrl.assemble.validate import validate
from vlmrl.config import Config, schedule
from vlmrl.config.exclusions import refuse_parts
from vlmrl.errors import UserError

COSINE = {"schedule": {"cosine": [0.04, 0.0], "from": 0.2, "until": 0.8}}


def with_(*overrides: str) -> Config:
    return config.load("quickstart", list(overrides))


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ([[0, 1], [0.5, 2]], {0: 1, 0.49: 1, 0.5: 2, 1: 2}),
        ({"linear": [4, 8]}, {0: 4, 0.25: 5, 0.5: 6, 1: 8}),
        ({"linear": [4, 8], "from": 0.5}, {0: 4, 0.5: 4, 0.75: 6, 1: 8}),
        ({"linear": [1.0, 0.0], "until": 0.5}, {0: 1, 0.25: 0.5, 0.5: 0, 0.9: 0}),
        # Half a cosine: 1/2 (1 + cos pi/4) = (2 + sqrt 2) / 4 of the way is left after a quarter.
        ({"cosine": [1.0, 0.0]}, {0: 1, 0.25: (2 + 2**0.5) / 4, 0.5: 0.5, 1: 0}),
    ],
)
def test_a_schedule_has_its_value_at_every_progress(
    form: object, values: dict[float, float]
) -> None:
    got = {p: schedule.resolve({"schedule": form}, p) for p in values}
    assert got == pytest.approx(values)


def test_a_value_that_is_no_schedule_stays_itself() -> None:
    for value in (3, "x", None, [1], {"schedule": [[0, 1]], "more": 2}):
        assert schedule.resolve(value, 0.5) is value
        assert schedule.moments(value) == [0.0]


@pytest.mark.parametrize(
    "form",
    [
        "linear",
        {"linear": [1]},
        {"linear": [1, "x"]},
        {"linear": [1, True]},
        {"linear": [1, 2], "cosine": [1, 2]},
        {"linear": [1, 2], "from": 0.5, "until": 0.5},
        {"linear": [1, 2], "until": 1.5},
        {"linear": [1, 2], "to": 1},
        [[0, 1], [1.5, 2]],
        [[False, 1]],
        [["0", 1]],
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_with_its_key(form: object) -> None:
    text = json.dumps({"schedule": form})
    for key in ("rollout.max_tokens", "optimizer.lr", "algorithm.options.kl"):
        with pytest.raises(UserError, match=rf"{key}: a schedule is .*; got"):
            with_(f"{key}={text}")


def test_the_config_holds_the_first_value_and_at_gives_later_ones() -> None:
    settings = with_(
        "rollout.max_tokens={schedule: {linear: [100, 201]}}",
        "rollout.group_size={schedule: [[0, 4], [0.5, 8]]}",
        f"algorithm.options.kl={json.dumps(COSINE)}",
        "optimizer.max_grad_norm={schedule: [[0, 1], [0.5, 0.5]]}",
        "data.train.shapes.weight={schedule: [[0, 1], [0.5, 3]]}",
    )
    assert (settings.rollout.max_tokens, settings.rollout.group_size) == (100, 4)
    half = settings.at(0.5)
    assert (half.rollout.max_tokens, half.rollout.group_size) == (150, 8)
    assert half.algorithm.options["kl"] == pytest.approx(0.02)
    assert half.optimizer.max_grad_norm == 0.5
    assert half.data.train[0].weight == 3
    assert settings.last.rollout.max_tokens == 201
    assert half.is_constant and half.at(0.1) is half
    assert settings.changing == {
        "rollout.max_tokens",
        "rollout.group_size",
        "algorithm.options.kl",
        "optimizer.max_grad_norm",
    }
    assert settings.values_at(0.5)["algorithm.options.kl"] == pytest.approx(0.02)


def test_a_config_without_schedules_is_itself_at_every_progress() -> None:
    settings = with_()
    assert settings.at(0.7) is settings
    assert settings.moments == [0.0]


def test_a_dump_holds_the_schedules_and_reads_back_alike() -> None:
    settings = with_(
        "rollout.max_tokens={schedule: {linear: [100, 201]}}",
        f"algorithm.options.kl={json.dumps(COSINE)}",
        "data.train.shapes.weight={schedule: [[0, 1], [0.5, 3]]}",
    )
    tree = json.loads(settings.model_dump_json())
    assert tree["rollout"]["max_tokens"] == {"schedule": {"linear": [100, 201]}}
    again = config.parse(tree)
    assert again == settings
    assert again.at(0.3) == settings.at(0.3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.max_tokens={schedule: [[0, 16], [0.5, 0]]}", "rollout.max_tokens: .* 1 .found 0"),
        ("rollout.group_size={schedule: {linear: [8, 0]}}", "rollout.group_size: .*found 0"),
        ("rollout.temperature={schedule: [[0, hot]]}", "rollout.temperature: .*found 'hot'"),
        ("run.steps={schedule: [[0, 16]]}", "run.steps: this key takes no schedule"),
        ("rollout.max_staleness={schedule: [[0, 1]]}", "rollout.max_staleness: this key takes no"),
        (
            "rollout.prompts={schedule: [[0, 16], [0.25, 9]]}",
            "25 % into training: rollout.prompts .9. must be a multiple of optimizer.minibatches",
        ),
    ],
)
def test_every_value_of_a_schedule_is_checked_when_it_is_read(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_("optimizer.minibatches=2", override)


def test_a_temperature_that_changes_needs_one_batch_at_a_time() -> None:
    hot = "rollout.temperature={schedule: [[0, 1], [0.5, 1.2]]}"
    assert with_(hot).last.rollout.temperature == 1.2
    with pytest.raises(UserError, match=r"one that changes needs rollout\.max_staleness 0"):
        refuse_parts(with_(hot, "rollout.max_staleness=1", "engine=vllm_server"))


def test_every_value_of_an_option_is_checked_before_a_run() -> None:
    validate(with_("algorithm.options.kl={schedule: [[0, 0.1], [0.5, 0]]}"))
    with pytest.raises(UserError, match=r"expected kl of at least 0, got -0\.1"):
        validate(with_("algorithm.options.kl={schedule: [[0, 0.1], [0.5, -0.1]]}"))
    with pytest.raises(UserError, match=r"'dynamic_sampling_batches': .* integer"):
        validate(with_("algorithm.options.dynamic_sampling_batches={schedule: {linear: [4, 1]}}"))


def test_the_schema_for_editors_allows_a_schedule_where_it_may_stand() -> None:
    keys = json.loads(config.schema())["$defs"]["RolloutConfig"]["properties"]
    assert "schedule" in json.dumps(keys["max_tokens"])
    assert "schedule" not in json.dumps(keys["max_staleness"])
