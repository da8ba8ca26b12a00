"""One reward from several scores: gates, maxima, factors, saturation; by hand and a slow version."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Frame, Parsed, Sample, Truth
from vlmrl.scoring.combine import combine, touching
from vlmrl.scoring.reward_components import Component, components_of
from vlmrl.scoring.scorer import Judged, Scorer

HUMAN_OMNI = [
    {"name": "format"},
    {"name": "context"},
    {"name": "logical", "gated_by": {"context": 0.4}},
    {"name": "acc", "gated_by": {"context": 0.4, "logical": 0.4}},
]
R1_REWARD = [
    {"name": "format", "weight": 0.5},
    {"name": "acc"},
    {"name": "consistency", "weight": 0.5, "multiplies": "acc"},
]
QWEN_LONG = [{"name": "rule"}, {"name": "judge", "max_with": "rule"}]


def component(**keys: Any) -> Component:
    reward = RewardConfig(verifier="exact", **keys)
    return Component(reward.label, SimpleNamespace(), reward.weight, reward, ("", ""), None)  # type: ignore[arg-type]


def combined(rewards: list[dict[str, Any]], mode: str = "sum", **scores: float) -> float | None:
    return combine(mode, [component(**keys) for keys in rewards], scores)


@pytest.mark.parametrize(
    ("rewards", "scores", "expected"),
    [
        # HumanOmniV2, grpo_trainer.py:829-836: a score of 0.4 or less is not enough
        (HUMAN_OMNI, {"format": 1, "context": 0.6, "logical": 0.8, "acc": 1}, 3.4),
        (HUMAN_OMNI, {"format": 1, "context": 0.4, "logical": 0.8, "acc": 1}, 1.4),
        (HUMAN_OMNI, {"format": 1, "context": 0.6, "logical": 0.2, "acc": 1}, 1.8),
        # R1-Reward: 0.5·format + acc·(1 + 0.5·consistency), consistency in {-1, 0, 1}
        (R1_REWARD, {"format": 1, "acc": 1, "consistency": 1}, 2.0),
        (R1_REWARD, {"format": 1, "acc": 1, "consistency": -1}, 1.0),
        (R1_REWARD, {"format": 1, "acc": 0, "consistency": 1}, 0.5),
        # QwenLong-L1: max(rule, judge)
        (QWEN_LONG, {"rule": 0, "judge": 1}, 1.0),
        (QWEN_LONG, {"rule": 1, "judge": 0}, 1.0),
        (QWEN_LONG, {"rule": 0.25, "judge": 0}, 0.25),
        # a maximum is multiplied, then gated; a part's weight is inside
        (
            [
                {"name": "rule", "weight": 2.0, "gated_by": {"format": 0.5}},
                {"name": "judge", "weight": 0.5, "max_with": "rule"},
                {"name": "short", "weight": 0.25, "multiplies": "rule"},
                {"name": "format", "weight": 0.0},
            ],
            {"rule": 0.25, "judge": 1, "short": 1, "format": 1},
            2 * 0.5 * 1.25,
        ),
        ([{"name": "style", "max_score": 0.75}], {"style": 0.9}, 0.75),
        ([{"name": "style", "max_score": 0.75}], {"style": 0.5}, 0.5),
    ],
)
def test_published_combinations_by_hand(
    rewards: list[dict[str, Any]], scores: dict[str, float], expected: float
) -> None:
    assert combined(rewards, **scores) == pytest.approx(expected, abs=1e-12)


def test_a_gate_of_the_whole_reward_has_a_limit_of_its_own() -> None:
    rewards = [{"name": "context", "gate": True, "gate_above": 0.4, "weight": 0.0}, {"name": "acc"}]
    found = [combined(rewards, "gate", context=c, acc=0.5) for c in (0.0, 0.4, 0.41)]
    assert found == [0.0, 0.0, 0.5]


def test_what_does_not_apply_drops_out_and_leaves_its_weight_to_the_others() -> None:
    assert combined(QWEN_LONG, judge=0.5) == 0.5
    assert combined(QWEN_LONG, rule=0.25) == 0.25
    assert combined(QWEN_LONG) is None
    assert combined(R1_REWARD, acc=1) == 1.0
    assert combined(R1_REWARD, consistency=1) is None
    assert combined(R1_REWARD, "mean", format=1, consistency=1) == 1.0
    assert combined(HUMAN_OMNI, "mean", logical=0.8, acc=1) == pytest.approx(0.9)


def test_a_closed_gate_never_pays_more_than_an_open_one() -> None:
    rewards = [{"name": "signed", "gated_by": {"format": 0.5}}, {"name": "format", "weight": 0.0}]
    assert [combined(rewards, signed=-1.0, format=f) for f in (0.0, 1.0)] == [-1.0, -1.0]


def test_what_has_no_weight_touches_nothing_unless_it_gates() -> None:
    rewards = [*QWEN_LONG, {"name": "seen", "weight": 0.0}, *HUMAN_OMNI]
    rewards[1] = {**rewards[1], "weight": 0.0}
    rewards[4] = {**rewards[4], "weight": 0.0}
    names = [c.label for c in touching([component(**keys) for keys in rewards])]
    assert names == ["rule", "format", "context", "logical", "acc"]
    unweighted = [{"name": "rule", "weight": 0.0}, QWEN_LONG[1]]
    assert touching([component(**keys) for keys in unweighted]) == []
    assert combined(unweighted, rule=0.5, judge=1) is None


def slow(mode: str, rewards: list[RewardConfig], scores: dict[str, float]) -> float | None:
    """Return the reward step by step, from a table of what is known of each name."""
    table = dict(scores)
    for r in rewards:
        if r.label in table and r.max_score is not None and table[r.label] > r.max_score:
            table[r.label] = r.max_score

    def shut(r: RewardConfig) -> bool:
        return any(g in scores and not scores[g] > above for g, above in r.gated_by.items())

    for r in rewards:
        if r.label in table and r.counts_in and shut(r) and table[r.label] > 0:
            table[r.label] = 0.0
    for r in rewards:
        if r.max_with and r.weight and r.label in table:
            mine = r.weight * table[r.label]
            there = table.get(r.max_with)
            table[r.max_with] = mine if there is None or mine > there else there
    for r in rewards:
        if r.multiplies and r.weight and r.label in table and r.multiplies in table:
            table[r.multiplies] *= 1 + r.weight * table[r.label]
    for r in rewards:
        if r.label in table and not r.counts_in and shut(r) and table[r.label] > 0:
            table[r.label] = 0.0
    counted = [r for r in rewards if r.label in table and r.weight and not r.counts_in]
    if not counted:
        return None
    if mode == "gate":
        for r in rewards:
            if r.gate and r.label in scores and not scores[r.label] > r.gate_above:
                return 0.0
    values, weights = [table[r.label] for r in counted], [float(r.weight) for r in counted]  # type: ignore[arg-type]
    if mode == "product":
        return math.prod(values)
    total = sum(w * v for w, v in zip(weights, values, strict=True))
    return total if mode == "sum" else total / sum(weights)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[RewardConfig], dict[str, float]]:
    mode = draw(st.sampled_from(["sum", "mean", "product", "gate"]))
    names = [f"r{i}" for i in range(draw(st.integers(1, 6)))]
    limit = st.sampled_from([0.0, 0.25, 0.4, 0.5])
    rewards = []
    whole = names[: draw(st.integers(1, len(names)))]
    for name in names:
        keys: dict[str, Any] = {"weight": draw(st.sampled_from([0.0, 0.5, 1.0, 2.0]))}
        keys["max_score"] = draw(st.none() | st.sampled_from([0.5, 0.75]))
        others = st.dictionaries(st.sampled_from(names), limit, max_size=2)
        keys["gated_by"] = {k: v for k, v in draw(others).items() if k != name}
        if name not in whole:
            keys[draw(st.sampled_from(["max_with", "multiplies"]))] = draw(st.sampled_from(whole))
        elif mode == "gate" and draw(st.booleans()):
            keys |= {"gate": True, "gate_above": draw(limit)}
        rewards.append(RewardConfig(verifier="exact", name=name, **keys))
    scores = st.dictionaries(
        st.sampled_from(names), st.sampled_from([-1.0, 0.0, 0.3, 0.4, 0.6, 1.0])
    )
    return mode, rewards, draw(scores)


@given(cases())
def test_equals_a_plain_slow_version(
    case: tuple[str, list[RewardConfig], dict[str, float]],
) -> None:
    mode, rewards, scores = case
    components = [component(**r.model_dump(exclude={"verifier"})) for r in rewards]
    expected = slow(mode, rewards, scores)
    found = combine(mode, components, scores)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))
    known = {c.label for c in touching(components)}
    assert combine(mode, components, {k: v for k, v in scores.items() if k in known}) == found


@given(
    st.sampled_from(["sum", "mean", "product"]),
    st.lists(st.tuples(st.floats(0.1, 3), st.floats(-1, 1)), min_size=1, max_size=5),
)
def test_without_the_new_keys_the_numbers_are_those_of_before_to_the_bit(
    mode: str, pairs: list[tuple[float, float]]
) -> None:
    rewards = [{"name": f"r{i}", "weight": weight} for i, (weight, _) in enumerate(pairs)]
    scores = {f"r{i}": score for i, (_, score) in enumerate(pairs)}
    total = sum(weight * score for weight, score in pairs)
    expected = {
        "sum": total,
        "mean": total / sum(weight for weight, _ in pairs),
        "product": math.prod(score for _, score in pairs),
    }
    assert combined(rewards, mode, **scores) == expected[mode]


def judged(path: Path, rewards: list[dict[str, Any]], answer: str, **scoring: Any) -> Judged:
    """Judge an answer such as `a=1,b=0.5` with functions that read a number of it each."""
    names = [keys["name"] for keys in rewards]
    body = "return None if value == 'none' else float(value)"
    path.write_text(
        "\n".join(
            f"def {name}(answer):\n    value = dict(p.split('=') for p in answer.split(','))['{name}']"
            f"\n    {body}\n"
            for name in names
        )
    )
    configs = [RewardConfig(verifier=f"{path}:{keys['name']}", **keys) for keys in rewards]
    parsed = Parsed(answer, None, "none", True, 1.0)
    completion = Completion(answer, parsed, Frame(100, 100), finish_reason="stop")
    with Scorer({"s": configs}, ScoringConfig(**scoring)) as scorer:
        ((found,),) = scorer.judge([[completion]], [Sample("row-7", "s", ("?",), Truth())])
    return found


def test_a_fault_of_a_part_or_of_a_gate_of_weight_zero_masks_and_is_never_a_zero(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.py"
    fault = judged(path, QWEN_LONG, "rule=1,judge=bad")
    assert fault.reward is None and fault.reason.startswith("judge: ")
    gated = [{"name": "context", "weight": 0.0}, {"name": "acc", "gated_by": {"context": 0.4}}]
    fault = judged(tmp_path / "gated.py", gated, "context=bad,acc=1")
    assert fault.reward is None and fault.reason.startswith("context: ")
    logged = [{"name": "rule"}, {"name": "judge", "max_with": "rule", "weight": 0.0}]
    assert judged(tmp_path / "logged.py", logged, "rule=0.5,judge=bad").reward == 0.5
    left = judged(tmp_path / "left.py", QWEN_LONG, "rule=none,judge=0.5")
    assert left.reward == 0.5
    assert judged(tmp_path / "none.py", QWEN_LONG, "rule=none,judge=none").reason == (
        "no verifier applies"
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"max_with": "rul"},
            "reward 'other': max_with: expected the name of another reward of its",
        ),
        ({"max_with": "rul"}, "got 'rul'; did you mean 'rule'?"),
        ({"multiplies": "other"}, "multiplies: expected the name of another reward"),
        ({"gated_by": {"conext": 0.4}}, "gated_by: .* got 'conext'; did you mean 'context'?"),
        ({"max_with": "judge"}, "counted by itself, got 'judge', which is a part of 'rule'"),
        ({"gated_by": {"context": 1}}, "gated_by 'context': expected at least 0 and less than 1"),
        ({"max_score": 0}, "max_score: expected more than 0 and at most 1, .* got 0"),
        ({"multiplies": "rule", "weight": -1.5}, "expected a weight with 1 \\+ w·s >= 0"),
        (
            {"multiplies": "rule", "weight": {"schedule": [[0, 1], [0.5, -2]]}},
            "expected a weight with 1 \\+ w·s >= 0 .* got -2",
        ),
    ],
)
def test_a_combination_that_makes_no_sense_is_refused(keys: dict[str, Any], message: str) -> None:
    rewards = [*QWEN_LONG, {"name": "context"}, {"name": "other", **keys}]
    configs = [RewardConfig(verifier="exact", **each) for each in rewards]
    with pytest.raises(UserError, match=message):
        components_of("s", configs, ScoringConfig())


def test_a_gate_that_can_never_open_is_refused() -> None:
    gate = RewardConfig(verifier="exact", gate=True, gate_above=1)
    with pytest.raises(UserError, match="gate_above: expected at least 0 and less than 1"):
        components_of("s", [gate], ScoringConfig(combine="gate"))
