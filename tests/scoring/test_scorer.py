"""The scorer: rewards from verdicts, user files, and faults that mask instead of scoring 0."""

import gc
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from vlmrl.config import RewardConfig, ScoringConfig, schedule
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Frame, Parsed, PromptBatch, Rollouts, Sample, Truth
from vlmrl.scoring.reward_components import resolve
from vlmrl.scoring.scorer import MIN_CALLS, Scorer

VERIFIERS = """
import math, os
from dataclasses import dataclass
from typing import ClassVar
from vlmrl.schema import Verdict
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier, Verifier


def number(answer):
    return float(answer)

def half(answer):
    return 0.5

def scaled(answer, factor):
    return float(answer) * factor

def wants_more(answer, ground_truth):
    return 1.0

def silent_on_three(answer):
    return None if answer == "3" else 1.0

def leaves(answer):
    raise SystemExit(1)

def interrupts(answer):
    raise KeyboardInterrupt

def typed(answer):
    import numpy
    return {
        "text": "0.5", "numpy text": numpy.str_("0.5"), "bytes": b"0.5", "list": [0.5], "true": True,
        "numpy": numpy.float32(0.5), "numpy true": numpy.bool_(True),
    }[answer]

def typed_trl(completions, **kwargs):
    return [typed(completion[0]["content"]) for completion in completions]

@dataclass(frozen=True)
class Waits(Verifier):
    waits: ClassVar = True

    def __call__(self, completion, sample):
        raise KeyboardInterrupt

@dataclass(frozen=True)
class Typed(Verifier):
    def __call__(self, completion, sample):
        return Verdict(typed(completion.answer))

def counting_trl(completions, solution, **kwargs):
    pairs = zip(completions, solution, strict=True)
    return [None if s is None else float(c[0]["content"] == s) for c, s in pairs]

@dataclass(frozen=True)
class NeedsBoxes(Verifier):
    needs: ClassVar = ("boxes",)
    value: float = 0.25

    def __call__(self, completion, sample):
        return Verdict(self.value)

@dataclass(frozen=True)
class Signed(Verifier):
    low: ClassVar = -1.0

    def __call__(self, completion, sample):
        return Verdict(float(completion.answer), parts={"twice": 2 * float(completion.answer)})

@dataclass(frozen=True)
class Rank(GroupVerifier):
    def judge(self, completions, sample, rewards):
        known = [r for r in rewards if r is not None]
        return [Verdict(1.0 if r == max(known) else 0.0) for r in rewards]

@dataclass(frozen=True)
class Short(GroupVerifier):
    def judge(self, completions, sample, rewards):
        return [Verdict(1.0)]

@dataclass(frozen=True)
class Share(BatchVerifier):
    def judge(self, groups, samples):
        count = sum(len(g) for g in groups)
        return [[Verdict(1 / count) for _ in g] for g in groups]
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(VERIFIERS))
    return str(path)


def completion(answer: str | None, finish_reason: str = "stop") -> Completion:
    parsed = Parsed(answer, None, "none", True, 1.0)
    return Completion(answer or "", parsed, Frame(100, 100), finish_reason=finish_reason)  # type: ignore[arg-type]


def sample(source: str = "s", **truth: object) -> Sample:
    return Sample("row-7", source, ("How many?",), Truth(**truth))  # type: ignore[arg-type]


def reward(place: str, verifier: str, **fields: object) -> RewardConfig:
    return RewardConfig(verifier=f"{place}:{verifier}", **fields)


def rewards_of(
    rewards: list[RewardConfig], answers: list[str | None], progress: float = 0.0, **scoring: object
) -> list[float | None]:
    config = ScoringConfig.model_validate(scoring)
    with Scorer({"s": rewards}, config) as scorer:
        group = [completion(a) for a in answers]
        return [j.reward for j in scorer.judge([group], [sample(number=1.0)], progress)[0]]


def test_a_users_function_scores_by_path_alone(place: str) -> None:
    assert rewards_of([reward(place, "number")], ["0.25", "1", None]) == [0.25, 1.0, 0.0]


@pytest.mark.parametrize(
    ("combine", "expected"), [("sum", 3 * 0.8 + 1 * 0.5), ("mean", 2.9 / 4), ("product", 0.4)]
)
def test_verdicts_combine_as_configured(place: str, combine: str, expected: float) -> None:
    rewards = [reward(place, "number", weight=3), reward(place, "half", weight=1)]
    assert rewards_of(rewards, ["0.8"], combine=combine) == [pytest.approx(expected)]


def test_a_closed_gate_makes_the_whole_reward_zero_and_an_open_one_is_not_counted_at_weight_zero(
    place: str,
) -> None:
    rewards = [reward(place, "number", gate=True, weight=0), reward(place, "half")]
    assert rewards_of(rewards, ["0", "0.01"], combine="gate") == [0.0, 0.5]


def test_a_component_of_weight_zero_is_only_logged(place: str) -> None:
    rewards = [reward(place, "number", weight=0), reward(place, "half")]
    for combine in ("sum", "mean", "product"):
        assert rewards_of(rewards, ["0.1"], combine=combine) == [0.5]
    # even its faults leave the reward alone
    assert rewards_of(rewards, ["nonsense"], combine="mean") == [0.5]


def test_where_no_component_has_a_weight_the_reward_is_zero_for_a_strategy_to_add_to(
    place: str,
) -> None:
    rewards = [reward(place, "number", weight=0)]
    for combine in ("sum", "mean", "product"):
        assert rewards_of(rewards, ["0.5", None, "nonsense"], combine=combine) == [0.0, 0.0, 0.0]


def test_weights_renormalise_over_the_verifiers_that_apply(place: str) -> None:
    rewards = [reward(place, "NeedsBoxes", weight=9), reward(place, "number", weight=1)]
    assert rewards_of(rewards, ["0.8"], combine="mean") == [pytest.approx(0.8)]


def test_a_schedule_takes_the_last_step_that_was_reached(place: str) -> None:
    factor = {"schedule": [[0, 0.1], [0.5, 0.2], [0.75, 0.3]]}
    rewards = [reward(place, "scaled", options={"factor": factor})]
    got = [rewards_of(rewards, ["1"], p)[0] for p in (0.0, 0.49, 0.5, 0.74, 0.75, 1.0)]
    assert got == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]


def test_options_of_a_verifier_class_and_weights_follow_their_schedules(place: str) -> None:
    step = {"schedule": [[0, 0.25], [0.5, 0.75]]}
    config = reward(place, "NeedsBoxes", options={"value": step}, weight=step)
    early, late = resolve(config, 0.2), resolve(config, 0.8)
    assert (early.weight, late.weight) == (0.25, 0.75)
    assert (early.verifier.value, late.verifier.value) == (0.25, 0.75)  # type: ignore[attr-defined]


@pytest.mark.parametrize("steps", [[], [[0.1, 1]], [[0, 1], [0, 2]], [[0, 1], [0.5]], 3])
def test_a_schedule_that_makes_no_sense_is_refused(steps: object) -> None:
    with pytest.raises(UserError, match="a schedule is"):
        schedule.resolve({"schedule": steps}, 0.5)


def test_an_invalid_option_in_a_later_step_of_a_schedule_is_refused_at_once(place: str) -> None:
    late = reward(place, "NeedsBoxes", options={"value": {"schedule": [[0, 0.5], [0.9, "x"]]}})
    with pytest.raises(UserError, match="option 'value'"):
        Scorer({"s": [late]}, ScoringConfig())


@pytest.mark.parametrize("bad", ["nan", "inf", "1.5", "-0.5", "not a number"])
def test_a_fault_masks_the_completion_and_is_counted(place: str, bad: str) -> None:
    rewards = [reward(place, "number"), reward(place, "half")]
    with Scorer({"s": rewards}, ScoringConfig()) as scorer:
        group = [completion("0.5"), completion(bad)]
        good, masked = scorer.judge([group], [sample()])[0]
        assert good.reward == 1.0
        assert masked.reward is None and masked.verdicts["number"].score is None
        assert masked.reason.startswith("number: ") and masked.verdicts["half"].score == 0.5
        assert scorer.counts["s", "number"] == {
            "calls": 2, "faults": 1, "skipped": 0, "kills": 0,
        }  # fmt: skip


def test_a_function_that_calls_exit_costs_only_its_own_verdict(place: str) -> None:
    assert rewards_of([reward(place, "leaves")], ["1"]) == [None]


def test_a_keyboard_interrupt_of_a_verifier_is_a_fault_and_not_the_users(place: str) -> None:
    assert rewards_of([reward(place, "interrupts")], ["1"]) == [None]
    waits = reward(place, "Waits")  # runs in a thread
    assert rewards_of([waits], ["1"]) == [None]


@pytest.mark.parametrize("name", ["typed", "typed_trl", "Typed"])
def test_a_text_is_no_score(place: str, name: str) -> None:
    answers = ["text", "numpy text", "bytes", "list", "numpy", "true", "numpy true"]
    truths = [1.0, 1.0] if name != "Typed" else [None, None]  # a Verdict states a number
    with Scorer({"s": [reward(place, name)]}, ScoringConfig()) as scorer:
        judged = scorer.judge([[completion(a) for a in answers]], [sample()])[0]
    assert [j.reward for j in judged] == [None] * 4 + [0.5, *truths]
    assert "'0.5'" in judged[0].reason and "number" in judged[0].reason


def test_a_part_that_is_not_finite_is_a_fault(place: str) -> None:
    assert rewards_of([reward(place, "Signed")], ["-0.5", "1e-320"]) == [-0.5, 1e-320]
    with Scorer({"s": [reward(place, "Signed")]}, ScoringConfig()) as scorer:
        judged = scorer.judge([[completion("nan")]], [sample()])[0][0]
        assert judged.verdicts["Signed"].fault == "the score is nan, not a finite number"


def test_too_many_faults_stop_the_run_and_name_the_verifier_and_the_reason(place: str) -> None:
    with Scorer({"s": [reward(place, "number")]}, ScoringConfig(fault_limit=0.2)) as scorer:
        group = [completion("7")] * (MIN_CALLS - 1)
        scorer.judge([group], [sample()])
        with pytest.raises(
            UserError, match=r"'number' failed on 20 .* source 's'.*outside \[0, 1\]"
        ):
            scorer.judge([[completion("7")]], [sample()])


def test_faults_below_the_limit_never_stop_the_run(place: str) -> None:
    group = [completion("7")] + [completion("1")] * 4
    with Scorer({"s": [reward(place, "number")]}, ScoringConfig(fault_limit=0.2)) as scorer:
        for _ in range(60):
            scorer.judge([group], [sample()])
        assert scorer.counts["s", "number"]["faults"] == 60


def test_none_from_a_function_means_that_it_does_not_apply(place: str) -> None:
    assert rewards_of([reward(place, "silent_on_three")], ["3", "4"]) == [None, 1.0]


def test_a_sample_that_no_verifier_can_check_is_named(place: str) -> None:
    with (
        Scorer({"s": [reward(place, "NeedsBoxes")]}, ScoringConfig()) as scorer,
        pytest.raises(UserError, match=r"'row-7' of source 's'.*NeedsBoxes needs boxes"),
    ):
        scorer.judge([[completion("1")]], [sample(number=2.0)])


def test_a_declared_nothing_reaches_every_verifier(place: str) -> None:
    with Scorer({"s": [reward(place, "NeedsBoxes")]}, ScoringConfig()) as scorer:
        assert scorer.judge([[completion("1")]], [sample(none=True)])[0][0].reward == 0.25


@pytest.mark.parametrize(("policy", "expected"), [("score", 0.5), ("zero", 0.0), ("mask", None)])
def test_the_truncation_policy_decides_on_cut_completions(
    place: str, policy: str, expected: float | None
) -> None:
    scoring = ScoringConfig.model_validate({"truncated": policy})
    with Scorer({"s": [reward(place, "number")]}, scoring) as scorer:
        cut, whole = scorer.judge([[completion("0.5", "length"), completion("0.25")]], [sample()])[
            0
        ]
        assert (cut.reward, whole.reward) == (expected, 0.25)
        assert cut.verdicts["number"].score == 0.5


def test_a_fault_on_a_cut_completion_stays_a_fault(place: str) -> None:
    with Scorer({"s": [reward(place, "number")]}, ScoringConfig(truncated="zero")) as scorer:
        assert scorer.judge([[completion("x", "length")]], [sample()])[0][0].reward is None


def test_a_group_verifier_sees_the_item_rewards_of_its_whole_group(place: str) -> None:
    rewards = [reward(place, "number"), reward(place, "Rank")]
    assert rewards_of(rewards, ["0.2", "0.9", "bad", "0.1"]) == [0.2, 1.9, None, 0.1]


def test_the_component_named_decides_which_completions_are_correct(place: str) -> None:
    items = [
        reward(place, "number", name="right", weight=0.5),
        reward(place, "silent_on_three", name="layout", weight=0.5),
    ]
    for by, wanted in [(None, [1.0, 1.0]), ("right", [1.0, 0.0])]:
        bonus = RewardConfig(
            verifier="length_shortest", options={"floor": 0, "correct_by": by, "correct_above": 0.4}
        )
        with Scorer({"s": [*items, bonus]}, ScoringConfig()) as scorer:
            group = [completion("1.0"), completion("0.0")]  # both in the right layout
            judged = scorer.judge([group], [sample(number=1.0)])[0]
            assert [j.verdicts["length_shortest"].score for j in judged] == wanted


def test_the_component_that_decides_is_checked_before_training(place: str) -> None:
    for by in ("rihgt", "length_kimi"):
        bonus = RewardConfig(verifier="length_kimi", options={"correct_by": by})
        with pytest.raises(UserError, match=f"correct_by to name an item reward.*{by}"):
            Scorer({"s": [reward(place, "number", name="right"), bonus]}, ScoringConfig())


def test_a_group_or_batch_verifier_does_not_speak_of_a_part(place: str) -> None:
    rewards = [reward(place, "number"), reward(place, "Rank"), reward(place, "Share")]
    with Scorer({"s": rewards}, ScoringConfig()) as scorer:
        alone = scorer.judge([[completion("0.5")]], [sample()], whole=False)[0][0]
        assert alone.reward == 0.5 and not alone.verdicts["Rank"].applies
        group = [completion("0.5"), completion("0.7", "abort")]
        here, aborted = scorer.judge([group], [sample()])[0]
        assert here.reward == 0.5 and not here.verdicts["Share"].applies
        assert aborted.reward is None and aborted.reason == "aborted"


def test_the_wrong_number_of_verdicts_is_a_fault_of_the_whole_group(place: str) -> None:
    rewards = [reward(place, "number"), reward(place, "Short")]
    assert rewards_of(rewards, ["0.2", "0.9"]) == [None, None]


def test_a_batch_verifier_sees_all_groups_of_the_sources_that_share_it(place: str) -> None:
    share, number = reward(place, "Share"), reward(place, "number")
    with Scorer({"a": [share], "b": [number, share], "c": [number]}, ScoringConfig()) as scorer:
        groups = [[completion("0.5")] * 2 for _ in range(3)]
        judged = scorer.judge(groups, [sample("a"), sample("b"), sample("c")])
        assert [[j.reward for j in group] for group in judged] == [
            [0.25] * 2,
            [0.75] * 2,
            [0.5] * 2,
        ]


def test_each_source_has_its_own_verifiers(place: str) -> None:
    by_source = {"a": [reward(place, "number")], "b": [reward(place, "half")]}
    with Scorer(by_source, ScoringConfig()) as scorer:
        groups = [[completion("0.1")], [completion("0.1")]]
        judged = scorer.judge(groups, [sample("a"), sample("b")])
        assert [j[0].reward for j in judged] == [0.1, 0.5]
        with pytest.raises(UserError, match="source 'c' has no rewards"):
            scorer.judge(groups[:1], [sample("c")])


def test_a_trl_function_is_recognised_by_its_signature(place: str) -> None:
    with Scorer({"s": [reward(place, "counting_trl")]}, ScoringConfig()) as scorer:
        group = [completion("cat"), completion("dog")]
        judged = scorer.judge([group], [sample(text=("cat",))])[0]
        assert [j.reward for j in judged] == [1.0, 0.0]
        assert scorer.judge([group], [sample()])[0][0].reward is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verifier": "wants_more"}, "asks for 'ground_truth', which nobody passes"),
        ({"verifier": "number", "options": {"factr": 1}}, "has no option 'factr'"),
        ({"verifier": "math"}, "neither a function nor a subclass"),
        ({"verifier": "numbr"}, "did you mean 'number'"),
    ],
)
def test_a_mistake_in_the_config_shows_before_the_first_completion(
    place: str, fields: dict[str, object], message: str
) -> None:
    name = str(fields.pop("verifier"))
    with pytest.raises(UserError, match=message):
        Scorer({"s": [reward(place, name, **fields)]}, ScoringConfig())


def test_two_rewards_of_one_verifier_have_names(place: str) -> None:
    named = [reward(place, "number"), reward(place, "number", name="again")]
    assert rewards_of(named, ["0.5"]) == [1.0]


def test_score_gives_tensors_with_zero_where_masked(place: str) -> None:

    prompts = tuple(SimpleNamespace(sample=sample(), seen=None) for _ in range(2))
    completions = tuple(tuple(completion(a) for a in ("0.5", "x", "1")) for _ in range(2))
    rollouts = Rollouts(PromptBatch(prompts), completions)  # type: ignore[arg-type]
    with Scorer({"s": [reward(place, "number")]}, ScoringConfig(fault_limit=0.5)) as scorer:
        rewards = scorer.score(rollouts)
    assert rewards.total.tolist() == [[0.5, 0.0, 1.0]] * 2
    assert rewards.valid.tolist() == [[True, False, True]] * 2
    assert rewards.component("number") == [0.5, 1.0, 0.5, 1.0]


def test_a_call_that_began_early_is_made_once_and_another_completion_has_its_own(
    place: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    counted = tmp_path / "counted.py"
    counted.write_text(
        "def counted(completion):\n"
        f"    with open({str(calls)!r}, 'a') as file:\n"
        "        file.write(completion.answer + ' ')\n"
        "    return float(completion.answer)\n"
    )
    rewards = [reward(str(counted), "counted"), reward(place, "half")]
    with Scorer({"s": rewards}, ScoringConfig()) as scorer:
        row, first, second = sample(number=1.0), completion("0.25"), completion("0.5")
        scorer.begin(SimpleNamespace(sample=row, seen=None), [first, second], 0.0)  # type: ignore[arg-type]
        changed = completion("0.75")  # a strategy put it in the place of the second
        found = scorer.judge([[first, changed]], [row])[0]
        assert [j.reward for j in found] == [0.25 + 0.5, 0.75 + 0.5]
        assert sorted(calls.read_text().split()) in (["0.25", "0.75"], ["0.25", "0.5", "0.75"])
        other = sample(number=2.0)
        scorer.begin(SimpleNamespace(sample=row, seen=None), [changed], 0.0)  # type: ignore[arg-type]
        assert scorer.judge([[changed]], [other])[0][0].reward == 1.25  # of another sample: anew
        del first, second, changed, found
        gc.collect()
        assert not scorer._calls._begun
