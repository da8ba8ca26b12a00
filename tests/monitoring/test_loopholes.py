"""A reward that rises without better answers is flagged before it doubles; an honest run never is."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from helpers.daily import marked
from helpers.scripted_policies import (
    HONEST,
    PLANTED,
    Script,
    answer,
    count,
    play,
    say_yes,
    step_rollouts,
    yes_or_no,
)
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.monitoring.loopholes import WINDOW, LoopholeWatch, find_alarms, measure, read_signs
from vlmrl.scoring.scorer import Scorer

Lines = Sequence[Mapping[str, float]]


def mean_reward(lines: Lines) -> float:
    return statistics.fmean(line["loophole/reward"] for line in lines)


def first_alarm(lines: Lines) -> int | None:
    """The number of the first line with a flag."""
    raised = (i for i, line in enumerate(lines) if any(line[k] for k in line if "/flag/" in k))
    return next(raised, None)


# ------------------------------------------------------------------------------ planted and honest


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(sorted(PLANTED), ["copied question", "repeated boxes"]))
def test_a_planted_loophole_is_flagged_before_the_reward_has_doubled(
    name: str, tmp_path: Path
) -> None:
    lines, said = play(PLANTED[name], tmp_path)
    at = first_alarm(lines)
    assert at is not None
    begun = mean_reward(lines[:WINDOW])
    assert mean_reward(lines[at - WINDOW + 1 : at + 1]) < 2 * begun
    assert "loophole?" in said[0] and "the reward rose from" in said[0]
    assert mean_reward(lines[-WINDOW:]) > begun
    (first, *_) = (tmp_path / "loopholes.jsonl").read_text().splitlines()
    row = json.loads(first)
    assert row["step"] == lines[at]["step"] and 0 < len(row["rows"]) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", marked([0, 1, 2], [0]))
@pytest.mark.parametrize("name", sorted(HONEST))
def test_an_honest_run_is_never_flagged(name: str, seed: int, tmp_path: Path) -> None:
    lines, said = play(HONEST[name], tmp_path, seed)
    assert first_alarm(lines) is None and said == []
    assert not (tmp_path / "loopholes.jsonl").exists()


# ------------------------------------------------------------------------------------ the numbers


def measured(script: Script, tmp_path: Path, step: int) -> dict[str, float]:
    import random

    rewards = [RewardConfig.model_validate(r) for r in script.rewards]
    with Scorer({"drawn": rewards}, ScoringConfig(workers=1)) as scorer:
        rollouts = step_rollouts(script, step, random.Random(0), 10, 4)
        watch = LoopholeWatch(scorer, 1, tmp_path, lambda line: None)
        return watch(1, 0.0, rollouts, scorer.score(rollouts, 0.0), {})


def test_what_a_constant_answer_earns_does_not_depend_on_whose_truth_it_is(tmp_path: Path) -> None:
    found = measured(Script(yes_or_no, [{"verifier": "exact"}], say_yes, say_yes), tmp_path, 0)
    assert found["loophole/commonest"] == 1
    # Each truth is asked twice: of its own prompt, and of the one before it.
    assert found["loophole/margin"] == pytest.approx(0)
    assert found["loophole/elsewhere"] == pytest.approx(found["loophole/reward"])
    assert found["loophole/strict"] == pytest.approx(found["loophole/reward"])


def test_an_answer_is_asked_of_the_next_prompt_of_its_source(tmp_path: Path) -> None:
    import random

    script = Script(
        count,
        [{"verifier": "number"}],
        lambda rng, truth, question: answer(f"{truth.number:g}"),
        say_yes,
    )
    rollouts = step_rollouts(script, 0, random.Random(1), 6, 2)
    with Scorer({"drawn": [RewardConfig(verifier="number")]}, ScoringConfig(workers=1)) as scorer:
        found = measure(scorer, rollouts, scorer.score(rollouts, 0.0), 0.0)
    truths = [prompt.sample.truth.number for prompt in rollouts.batch.prompts]
    for one in found:
        assert (one.own, one.strict) == (1, 1)
        assert one.elsewhere == float(truths[one.p] == truths[(one.p + 1) % 6])


def test_the_share_of_the_form_is_what_verifiers_without_a_truth_pay(tmp_path: Path) -> None:
    script = Script(
        count,
        [{"verifier": "number"}, {"verifier": "format", "weight": 0.5}],
        lambda rng, truth, question: answer(f"{truth.number:g}"),
        say_yes,
    )
    assert measured(script, tmp_path, 0)["loophole/form_share"] == pytest.approx(1 / 3)
    later = Script(script.draw, script.rewards, say_yes, say_yes)
    assert measured(later, tmp_path, 0)["loophole/form_share"] == 1


def test_a_source_whose_truth_nobody_here_compares_is_not_measured(tmp_path: Path) -> None:
    script = Script(yes_or_no, [{"verifier": "format"}], say_yes, say_yes)
    assert measured(script, tmp_path, 0) == {}


@pytest.mark.parametrize(
    ("said", "right", "question", "shown"),
    [
        ("7 to 15", "5 to 9", "When?", ()),
        ("7 to 15 to 12", "5 to 9", "When?", ("candidates", "fallback")),
        ("4", "3", "How many of 7?", ()),
        ("about 4", "3", "How many?", ("fallback",)),
        ("3, 3", "3", "How many?", ("candidates", "fallback", "repeated")),
        ("7", "3", "How many of 7?", ("copied",)),
        ('{"bbox_2d": [1, 2, 3, 4]}', '{"bbox_2d": [5, 6, 7, 8]}', "Where?", ()),
        ('[{"bbox_2d": [1, 2, 3, 4]}, {"bbox_2d": [1, 2, 3, 4]}]', '{"bbox_2d": [5, 6, 7, 8]}',
         "Where?", ("candidates", "fallback", "repeated")),
        ("B", "C", "Which? (A) cat (B) dog (C) owl", ()),
        ("cat dog owl", "cat", "Which?", ("candidates",)),
        ("the cat", "a dog", "Where is the cat ?", ("copied",)),
        ("", "a dog", "Where?", ()),
    ],
)  # fmt: skip
def test_signs_of_an_odd_answer(
    said: str, right: str, question: str, shown: tuple[str, ...]
) -> None:
    assert read_signs(said, right, question).names == shown


# ----------------------------------------------------------------------------------- the alarms


def curve(reward: Sequence[float], strict: Sequence[float]) -> list[dict[str, float]]:
    """Lines with a little noise in which reward and strict reading share it."""
    noise = [0.01 * (-1) ** i for i in range(len(reward))]
    return [
        {"step": i + 1, "loophole/reward": r + n, "loophole/strict": s + n}
        for i, (r, s, n) in enumerate(zip(reward, strict, noise, strict=True))
    ]


def test_a_loophole_found_late_in_an_honest_run_is_flagged() -> None:
    rise = [0.2 + 0.005 * i for i in range(80)]
    honest = curve(rise, rise)
    assert all(find_alarms(honest[:n]) == {} for n in range(1, 81))
    late = curve([*rise, *(0.6 + 0.01 * i for i in range(20))], [*rise, *[0.6] * 20])
    assert "strict" in find_alarms(late)


def test_a_reader_that_never_could_read_the_answers_says_nothing() -> None:
    assert find_alarms(curve([0.2] * 20 + [0.6] * 20, [0.0] * 40))  # noise is no reading of nothing
    unread = [
        {**line, "loophole/strict": 0.0} for line in curve([0.2] * 20 + [0.6] * 20, [0.0] * 40)
    ]
    assert find_alarms(unread) == {}


def test_blank_media_that_cost_nothing_are_an_alarm_only_if_the_reward_has_risen() -> None:
    drops = {0: 0.2, 39: 0.01}
    lines = curve([0.2] * 20 + [0.6] * 20, [0.2] * 20 + [0.6] * 20)
    for at, drop in drops.items():
        lines[at]["media_ablation/blank_reward_drop"] = drop
    assert set(find_alarms(lines)) == {"blind"}
    lines[39]["media_ablation/blank_reward_drop"] = 0.3
    assert find_alarms(lines) == {}
    flat = curve([0.2] * 40, [0.2] * 40)
    for at, drop in drops.items():
        flat[at]["media_ablation/blank_reward_drop"] = drop
    assert find_alarms(flat) == {}


@pytest.mark.parametrize(("error", "alarms"), [(0.02, {"blind"}), (0.17, set())])
def test_blank_media_of_few_prompts_are_an_alarm_only_beyond_their_noise(
    error: float, alarms: set[str]
) -> None:
    lines = curve([0.7] * 20 + [0.9] * 20, [0.7] * 20 + [0.9] * 20)
    for at in (0, 39):  # one prompt of eight earns more without its image, before as after
        lines[at] |= {"media_ablation/blank_reward_drop": -0.125}
        lines[at] |= {"media_ablation/blank_reward_error": error}
    assert set(find_alarms(lines)) == alarms


def test_a_resumed_watch_goes_on_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    said: list[str] = []
    lines, _ = play(PLANTED["format only"], tmp_path / "whole")
    at = first_alarm(lines)
    assert at is not None
    with Scorer({}, ScoringConfig(workers=1)) as scorer:
        watch = LoopholeWatch(scorer, 1, tmp_path, said.append)
        watch.restore([json.loads(json.dumps(line)) for line in lines[: at + 1]])
    assert find_alarms(watch._lines).keys() == watch._told
