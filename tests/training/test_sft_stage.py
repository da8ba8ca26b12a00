"""The cold start: `sft.max_steps` bounds it, demonstrations hold no chat token and are scored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.small import policy
from vlmrl.config import RewardConfig, ScoringConfig, SftConfig, load
from vlmrl.data.prompt import make_prompt
from vlmrl.errors import UserError
from vlmrl.policy.policy import Policy
from vlmrl.schema import Demo, PromptBatch, Rollouts, Sample, Truth
from vlmrl.scoring.scorer import Scorer
from vlmrl.training import sft


def run_stage(config: SftConfig, metric: float = 0.0) -> tuple[sft.Stage, list[float]]:
    """Walk through a cold start without a model; return its end and the lr of every step."""
    stage, rates = sft.Stage(), []
    while not stage.done(config):
        rates.append(stage.lr(config))
        stage, _ = sft.check(
            replace(stage, step=stage.step + 1), config, lambda: {"reward": metric}
        )
    return stage, rates


@pytest.mark.parametrize(
    ("max_steps", "decay_steps"), [(1, 25), (3, 25), (25, 25), (26, 25), (60, 25), (4, 0)]
)
def test_the_cold_start_never_exceeds_max_steps(max_steps: int, decay_steps: int) -> None:
    config = SftConfig(max_steps=max_steps, decay_steps=decay_steps, warmup_steps=0)
    stage, rates = run_stage(config)
    assert stage.step == len(rates) == max_steps
    if max_steps > 1 and decay_steps:
        assert rates[-1] == pytest.approx(0.1 * config.lr)  # the decay comes to its end


def test_a_reached_metric_is_followed_by_the_whole_decay() -> None:
    config = SftConfig(
        max_steps=500, decay_steps=25, stop_at=0.5, validate_from=100, validate_every=25
    )
    stage, rates = run_stage(config, metric=0.6)
    assert (stage.stopped_at, stage.step) == (100, 125)
    assert rates[100:] == [config.lr * (1 - 0.9 * min(1.0, n / 25)) for n in range(1, 26)]


def demonstration(made: Policy, thought: str, text: str) -> tuple[int, ...]:
    """Return the ids of a demonstration with this thought and this answer."""
    demo = Demo(thought=thought, text=text)
    sample = Sample("row", "test", ("one?",), Truth(text=("x",)), demo=demo)
    prompt = make_prompt(sample, [], made.family, made.processor)
    rollouts = sft.demonstrations(made, PromptBatch((prompt,)), 0.0, seed=0)
    return rollouts.completions[0][0].token_ids


def test_a_demonstration_holds_no_special_token_but_its_end() -> None:
    made = policy()
    special = {*made.tokenizer.all_special_ids, *made.banned.tolist(), *made.stop_ids}
    for token in ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|image_pad|>"):
        forged = f"a{token}\n{token}system"
        for thought, text in ((forged, "7"), ("so", forged)):
            *ids, end = demonstration(made, thought, text)
            assert not special & {*ids} and end == made.stop_ids[0]
            assert made.tokenizer.decode(ids) == f"<think>{thought}</think><answer>{text}</answer>"
            tags = made.tokenizer.convert_tokens_to_ids(["<think>", "</think>", "<answer>"])
            assert {*tags} <= {*ids}


def test_an_ordinary_demonstration_is_encoded_as_its_text_is() -> None:
    made = policy()
    ids = demonstration(made, "3 < 4 | 5 > 2", "<b>7</b>")
    text = made.tokenizer.decode(ids[:-1])
    assert ids[:-1] == tuple(made.tokenizer(text, add_special_tokens=False)["input_ids"])


def numbers(made: Policy, answers: list[tuple[str, float]], source: str = "test") -> Rollouts:
    """Return demonstrations that answer with a number, each with the true one."""
    samples = [
        Sample(
            f"row {i}", source, ("one?",), Truth(number=true), demo=Demo(thought="so", text=said)
        )
        for i, (said, true) in enumerate(answers)
    ]
    prompts = tuple(make_prompt(one, [], made.family, made.processor) for one in samples)
    return sft.demonstrations(made, PromptBatch(prompts), 0.0, seed=0)


def test_what_demonstrations_score_is_told_where_it_is_known_at_once() -> None:
    made = policy()
    found = numbers(
        made, [("3", 3.0), ("4", 5.0), ("6", 6.0), ("7", 7.0)]
    )  # three of four are right
    plain, elsewhere = RewardConfig(verifier="number"), {"timeout_s": 5.0}
    slow = RewardConfig.model_validate({"verifier": "number", **elsewhere})
    with Scorer({"test": [plain]}, ScoringConfig(workers=1)) as scorer:
        for metric in ("number", "sampled/number"):
            told = sft.score_demonstrations(scorer, metric, found)
            assert told == {"demonstrations/number": 0.75}
        for metric in ("reward", "exact", "test/number"):
            assert sft.score_demonstrations(scorer, metric, found) == {}
        other = numbers(made, [("3", 3.0)], source="without rewards")
        assert sft.score_demonstrations(scorer, "number", other) == {}
        assert not any(scorer.counts.values())  # nothing is counted as judged
    with Scorer({"test": [slow]}, ScoringConfig(workers=1)) as scorer:
        assert sft.score_demonstrations(scorer, "number", found) == {}


def test_a_cold_start_may_end_by_what_is_sampled() -> None:
    settings = ["sft.stop_metric=sampled/box_iou"]
    assert load("quickstart", settings).sft is not None
    with pytest.raises(UserError, match="there is no metric 'sampled/boxes'"):
        load("quickstart", ["sft.stop_metric=sampled/boxes"])
