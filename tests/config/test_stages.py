"""Stages of a config: what each lays over it, and what is refused, with the stage that is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from vlmrl import config
from vlmrl.assemble.validate import validate
from vlmrl.config import Config, tree
from vlmrl.errors import UserError

TWO = "data.train=[{name: easy, card: shapes}, {name: hard, card: shapes, split: 'train[:50%]'}]"
THREE = """stages=[
  {until: 0.3, name: short, sources: [easy], rollout: {max_tokens: 16, group_size: 16}},
  {until: 0.6, template: direct, rollout: {max_tokens: {schedule: {linear: [30, 60]}}}},
  {sources: [hard], rewards: [format], algorithm: {options: {kl: 0.1}}, optimizer: {lr: 1e-5}}]"""


def with_(*overrides: str) -> Config:
    return config.load("quickstart", [TWO, "evaluation=null", "sft=null", *overrides])


def test_a_stage_lays_its_values_over_the_config_and_the_next_one_begins_afresh() -> None:
    settings = with_(THREE)
    first, second, third = (settings.at(progress) for progress in (0.29, 0.3, 0.6))
    assert (first.rollout.max_tokens, first.rollout.group_size) == (16, 16)
    assert [source.label for source in first.data.train] == ["easy"]
    # Progress is that of the whole run, in a stage too.
    assert (second.rollout.max_tokens, second.rollout.group_size) == (
        39,
        settings.rollout.group_size,
    )
    assert [source.template for source in second.data.train] == ["direct", "direct"]
    assert [source.label for source in third.data.train] == ["hard"]
    assert [reward.label for reward in third.rewards] == ["format"]
    assert third.algorithm.options == {"kl": 0.1} and third.optimizer.lr == 1e-5
    assert third.rollout == settings.rollout
    assert settings.last == third
    assert settings.changing == {
        "rollout.max_tokens",
        "rollout.group_size",
        "algorithm.options.kl",
        "optimizer.lr",
    }


def test_stages_are_read_back_alike_and_the_config_itself_is_not_changed_by_them() -> None:
    settings = with_(THREE)
    assert config.parse(json.loads(settings.model_dump_json())) == settings
    assert settings.model_copy(update={"stages": []}) == with_()


def test_an_algorithm_of_another_name_does_not_inherit_options() -> None:
    both = with_(
        "algorithm={name: grpo, options: {clip_low: 0.1}}",
        "stages=[{until: 0.5}, {algorithm: dapo}]",
    )
    assert both.at(0.4).algorithm.options == {"clip_low": 0.1}
    assert both.last.algorithm.name == "dapo" and both.last.algorithm.options == {}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[{until: 0.3}, {until: 0.2}, {}]", r"stages\.1\.until: expected a share .* above 0\.3"),
        ("[{}, {until: 1}]", r"stages\.0\.until: expected a share of training above 0 .* got None"),
        ("[{until: 0.5}]", r"stages\.0\.until: expected 1 or nothing, got 0\.5"),
        ("[{untill: 1}]", r"stages\.0\.untill: unknown key; did you mean 'until'"),
        (
            "[{optimizer: {lr_factors: {vision: 2}}}]",
            r"stages\.0\.optimizer: .*lr_factors is the same during a whole run: no stage may set it",
        ),
        ("[{rollout: {max_token: 1}}]", r"stages\.0\.rollout: .* did you mean 'max_tokens'"),
        ("[{rollout: {max_staleness: 1}}]", r"stages\.0\.rollout: max_staleness is the same during"),
        ("[{data: {workers: 1}}]", r"stages\.0\.data\.workers: .*found 'workers'"),
        ("[{until: 0.5}, {sources: [hart]}]", "stage 2: sources: no .* 'hart'; did you mean 'hard'"),
        ("[{name: a, rollout: {max_tokens: 0}}]", r"stage 1 \(a\): rollout\.max_tokens: .*found 0"),
        ("[{rewards: []}]", "stage 1: source 'easy' has no rewards"),
        ("[{until: 0.5}, {optimizer: {minibatches: 3}}]", r"stage 2: rollout\.prompts .* multiple of"),
    ],
)  # fmt: skip
def test_a_stage_that_is_wrong_is_named(stages: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_(f"stages={stages}")


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("{algorithm: {options: {kl: -1}}}", r"stage 2 \(late\): .*expected kl of at least 0"),
        ("{rewards: [box_iu]}", r"stage 2 \(late\): .*'box_iu'; did you mean 'box_iou'"),
        ("{template: thinc}", r"stage 2 \(late\): .*'thinc'"),
        ("{data: {train: [shape]}}", r"stage 2 \(late\): no card is named 'shape'"),
    ],
)
def test_the_parts_of_every_stage_are_looked_for_before_a_run(stage: str, message: str) -> None:
    late = stage[:-1] + ", name: late}"
    with pytest.raises(UserError, match=message):
        validate(with_(f"stages=[{{until: 0.5}}, {late}]"))


def test_one_name_means_the_same_data_in_all_stages() -> None:
    other = "{until: 0.5}, {data: {train: [{name: easy, card: videos}]}}"
    with pytest.raises(UserError, match="stage 2: source 'easy' has other data"):
        with_(f"stages=[{other}]")


PAGE = (Path(__file__).parents[2] / "docs/train/schedules.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"^```yaml[^\n]*\n(.*?)^```$", PAGE, re.M | re.S))
def test_the_examples_of_the_page_are_valid_configs(text: str) -> None:
    own = yaml.safe_load(text)
    settings = config.parse(tree.merge(tree.read(own.pop("extends")), own))
    validate(settings)
    assert not settings.is_constant
