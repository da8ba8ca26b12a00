"""Rows that name their own verifiers: what they may name, and how they are scored."""

from __future__ import annotations

import json

import pytest
import torch

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import RewardConfig, ScoringConfig, SourceConfig
from vlmrl.data.row_forms import read_rewards
from vlmrl.data.source import open_source
from vlmrl.errors import UserError
from vlmrl.schema import (
    MAX_CONFIGURATIONS,
    Box,
    Encoded,
    Frame,
    Prompt,
    PromptBatch,
    Rollouts,
    RowReward,
    Sample,
    Truth,
)
from vlmrl.scoring.score_rows import by_reward, read_row, score
from vlmrl.scoring.scorer import Scorer
from vlmrl.training.metrics import rollout_metrics

FRAME = Frame(100, 100)
BOX = Truth(boxes=(Box(0.1, 0.1, 0.5, 0.5),))


def test_rewards_are_names_or_objects_as_a_list_or_as_json_text():
    wanted = (RowReward("box_iou", 2.0, '{"threshold": 0.5}'), RowReward("format"))
    listed = [{"verifier": "box_iou", "weight": 2, "options": {"threshold": 0.5}}, "format"]
    assert read_rewards(listed) == read_rewards(json.dumps(listed)) == wanted
    assert read_rewards("format") == (RowReward("format"),)
    assert read_rewards(None) == read_rewards([]) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("path/to/mine.py:Reward", r"expected a shipped one, got 'path/to/mine\.py:Reward'"),
        (["os:system"], "expected a shipped one, got 'os:system'"),
        (["box_io"], "did you mean 'box_iou'"),
        (["judge"], "'judge' asks a server, which only the config may choose"),
        ([{"verifier": "bmas", "options": {"vectors": "/etc/passwd"}}], "'vectors': a free text"),
        ([{"verifier": "calibration", "options": {"of": "x.py:F"}}], "'of': a free text"),
        ([{"verifier": "calibration", "options": {"of_options": {}}}], "'of_options': a free text"),
        ([{"verifier": "box_iou", "options": {"treshold": 1}}], "did you mean 'threshold'"),
        ([{"verifier": "box_iou", "options": {"threshold": "much"}}], "valid number"),
        ([{"verifier": "box_iou", "options": {"threshold": {"schedule": []}}}], "a schedule is"),
        (
            [
                {
                    "verifier": "box_iou",
                    "options": {"threshold": {"schedule": [[0, 0.5], [0.5, "x"]]}},
                }
            ],
            "valid number",
        ),
        ([{"verifier": "box_iou", "weight": -1}], "expected a number above 0, .*got -1"),
        ([{"verifier": "box_iou", "weight": float("nan")}], "expected a number above 0, .*got nan"),
        ([{"verifier": "box_iou", "weight": 1e300}], "at most 1e\\+06, got 1e\\+300"),
        ([{"verifier": "box_iou", "gate": True}], "unknown key 'gate'"),
        (["box_iou", "box_iou"], "'box_iou' is named twice"),
        (["format"] * 17, "at most 16 verifiers, got 17"),
        ([3], "verifier 1: expected a name"),
        ("[1", "not valid JSON"),
        ([{"verifier": "length_window", "options": {"correct_by": "exact"}}, "ocr"], "correct_by"),
    ],
)
def test_what_data_must_not_choose_is_refused(value, message):
    with pytest.raises(UserError, match=f"rewards.*{message}"):
        read_rewards(value)


def test_no_shipped_verifier_takes_code_or_a_file_from_a_row():
    free = {
        (name, key)
        for name in plugins.names("verifier")
        for key, option in plugins.options_of(plugins.load("verifier", name)).items()
        if "str" in str(option.type) and "Literal" not in str(option.type)
    }
    taken = set()
    for name, key in sorted(free):
        try:
            read_rewards([{"verifier": name, "options": {key: "x.py:F"}}])
        except UserError:
            continue
        taken.add((name, key))
    assert not taken


# ----------------------------------------------------------------------------------- in a table


def table(folder, rows):
    lines = [{"ask": "Where?", "where": [[10, 10, 50, 50]], **row} for row in rows]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    columns = {"question": "ask", "boxes": "where", "rewards": "pay"}
    options = {"path": str(folder / "train.jsonl"), "columns": columns, "box_space": "norm1000"}
    return open_source(SourceConfig(card="table", options=options))


def test_a_table_names_rewards_by_row(tmp_path):
    source = table(tmp_path, [{"pay": ["box_iou"]}, {}])
    assert [source.sample(i).rewards for i in (0, 1)] == [(RowReward("box_iou"),), ()]


def test_a_bad_row_is_named_before_training(tmp_path):
    with pytest.raises(
        UserError, match=r"train\.jsonl:2: column 'pay': rewards, verifier 1: .*x:y"
    ):
        table(tmp_path, [{"pay": ["box_iou"]}, {"pay": ["x:y"]}])


def test_distinct_configurations_are_bounded(tmp_path):
    pays = [
        {"pay": [{"verifier": "box_iou", "options": {"threshold": n / 1000}}]}
        for n in range(MAX_CONFIGURATIONS + 1)
    ]
    assert len(table(tmp_path, pays[:-1] + pays[:3]).rows) == MAX_CONFIGURATIONS + 3
    with pytest.raises(UserError, match=r"train\.jsonl:65: .*at most 64 different verifiers"):
        table(tmp_path, pays)


def test_a_row_whose_verifiers_cannot_speak_of_its_truth_is_bad(tmp_path):
    source = table(tmp_path, [{"pay": ["number"]}])
    with pytest.raises(UserError, match=r"train\.jsonl:1: rewards: .*number needs number"):
        source.sample(0)


# ----------------------------------------------------------------------------------- scoring


def sample(name, *rewards):
    return Sample(name, "mine", ("Where?",), BOX, rewards=rewards)


def answered(text):
    return templates.completion(f"<think>a</think><answer>{text}</answer>", "think_answer", FRAME)


HALF = answered("[10, 10, 50, 30]")  # an IoU of 0.5


def test_a_row_is_scored_by_its_own_and_curves_are_means_over_rows_where_they_applied():
    own = (RowReward("box_iou", 3.0, '{"threshold": 0.9}'),)
    samples = [sample("a"), sample("b", *own), sample("c", RowReward("format"))]
    rewards = {"mine": [RewardConfig(verifier="box_iou"), RewardConfig(verifier="format")]}
    encoded = Encoded((1,), (1,), {}, torch.zeros(1, 1), 1)
    prompts = tuple(Prompt(s, "", encoded, FRAME) for s in samples)
    rollouts = Rollouts(PromptBatch(prompts), ((HALF,),) * 3)
    with Scorer(rewards, ScoringConfig(combine="mean")) as scorer:
        found = scorer.score(rollouts)

    assert found.total.flatten().tolist() == pytest.approx([0.75, 0.0, 1.0])
    assert [set(group[0]) for group in found.verdicts] == (
        [{"box_iou", "format"}, {"box_iou"}, {"format"}]
    )
    kept = type("Kept", (), {"metrics": {}})
    metrics = rollout_metrics(rollouts, found, kept)
    assert metrics["source/mine/box_iou"] == pytest.approx((0.5 + 0.0) / 2)
    assert metrics["source/mine/format"] == pytest.approx(1.0)
    assert metrics["reward/mean"] == pytest.approx(1.75 / 3)


def test_gates_of_the_source_stay():
    gate = RewardConfig(verifier="format", weight=0, gate=True)
    rewards = {"mine": [gate, RewardConfig(verifier="exact")]}
    bare = templates.completion("[10, 10, 50, 50]", "think_answer", FRAME)
    with Scorer(rewards, ScoringConfig(combine="gate")) as scorer:
        ((judged, ungated),) = scorer.judge([[HALF, bare]], [sample("a", RowReward("box_iou"))])
    assert (judged.reward, ungated.reward) == (pytest.approx(0.5), 0.0)


def test_a_slow_verifier_of_a_row_is_loaded_within_its_first_call():
    row = Sample("a", "mine", ("2 + 2?",), Truth(text=("4",)), rewards=(RowReward("math"),))
    with Scorer({"mine": [RewardConfig(verifier="format")]}, ScoringConfig(workers=1)) as scorer:
        ((judged,),) = scorer.judge([[answered("4")]], [row])
    assert judged.reward == 1.0


def test_scored_rows_name_their_own():
    row = {
        "completion": "<answer>[10, 10, 50, 30]</answer>",
        "truth": {"boxes": [[10, 10, 50, 50]]},
        "media": {"width": 100, "height": 100},
    }
    own = [{"verifier": "box_iou", "weight": 1}, {"verifier": "repetition", "weight": 3}]
    rows = [read_row(row), read_row(row | {"rewards": own})]
    first, second = score(rows, RewardConfig(verifier="box_iou", options={"threshold": 0.9}))
    assert first.score == 0.0
    assert second.parts == {"box_iou": pytest.approx(0.5), "repetition": 1.0}
    assert second.score == pytest.approx((0.5 + 3 * 1.0) / 4)
    named = by_reward(rows, RewardConfig(verifier="exact"))
    assert [reward.verifier for reward, _ in named] == ["exact", "box_iou", "repetition"]
