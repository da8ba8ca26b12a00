"""Caption sufficiency: which descriptions are paid, what their reader is shown, and what a resume keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.interrupts import stop_after
from helpers.rollouts_ahead import ahead_config, begin_training
from helpers.runs import TINY, final_state, metric_lines
from helpers.witness_engine import SUFFICES, WITNESSES
from vlmrl.answers import templates
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.parts.strategies.caption_sufficiency import CaptionSufficiency
from vlmrl.schema import Completion, Rewards, Rollouts, Verdict
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)
LABEL = "caption_sufficiency"


def picky(answer: str, truth: object) -> float:
    """Fail on an answer that nothing is known of."""
    if answer == "nothing":
        raise ValueError("cannot grade nothing")
    return 1.0


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("captions") / "run"
    with begin_training(ahead_config(folder, *WITNESSES)) as built:
        yield built


@pytest.fixture(scope="module")
def scored(trainer: Trainer) -> tuple[Rollouts, Rewards]:
    rollouts = trainer._generate(trainer._draw_prompts(0))
    return rollouts, trainer.scorer.score(rollouts)


def verdicts(rewards: Rewards) -> list[list[Verdict]]:
    return [[of[LABEL] for of in group] for group in rewards.verdicts]


def test_a_description_is_paid_if_it_leads_to_the_right_answer(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    rollouts, rewards = CaptionSufficiency(weight=0.25).expand(*scored, DRAW, trainer.run_parts)
    assert rollouts is scored[0]
    gain = rewards.total - scored[1].total
    expected = torch.tensor([[0.25 * (g in SUFFICES) for g in range(5)]] * 3)
    assert torch.allclose(gain, expected, atol=1e-6)
    assert rewards.valid.all()
    for group in verdicts(rewards):
        assert [verdict.score for verdict in group] == [1.0, 0.0, 0.0, 0.0, 1.0]
        assert "tag" in group[2].note and group[3].note == "no description"


def test_the_curves_count_what_is_missing_refused_and_copied(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    strategy = CaptionSufficiency()
    found = strategy.metrics(*strategy.expand(*scored, DRAW, trainer.run_parts))
    # One of five has no description; of the other four one holds a tag, and two the own answer.
    assert found == pytest.approx(
        {f"{LABEL}/missing": 0.2, f"{LABEL}/refused": 0.25, f"{LABEL}/copied": 0.5}
    )


def test_the_reader_is_shown_the_description_and_the_question_alone(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    trainer.engine.asked.clear()  # type: ignore[attr-defined]
    CaptionSufficiency().expand(*scored, DRAW, trainer.run_parts)
    asked = trainer.engine.asked  # type: ignore[attr-defined]
    assert len(asked) == 3 * 3  # not what is refused or missing
    for prompt in asked:
        assert not prompt.media and not prompt.encoded.tensors and not prompt.sample.media
        assert prompt.text.count("Description: ") == 1 and "<info>" not in prompt.text
        assert prompt.sample.template == "answer_only"
    first = scored[0].batch.prompts[0]
    assert first.sample.text in asked[0].text
    assert (asked[0].home, asked[0].frame) == (first.home, first.frame)


def test_what_was_cut_masked_or_written_by_others_is_left_alone(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    rollouts, rewards = scored
    (first, *others), *more = rollouts.completions
    cut: tuple[Completion, ...] = (replace(first, finish_reason="length"), *others)
    told = tuple(c.with_origin("hint") for c in more[0])
    valid = rewards.valid.clone()
    valid[2] = False
    rollouts = replace(rollouts, completions=(cut, told, *more[1:]))
    _, paid = CaptionSufficiency().expand(
        rollouts, replace(rewards, valid=valid), DRAW, trainer.run_parts
    )
    assert paid.verdicts[0][0][LABEL].score == 0 and paid.verdicts[0][4][LABEL].score == 1
    assert not any(LABEL in of for group in paid.verdicts[1:] for of in group)
    assert torch.equal(paid.total[1:], rewards.total[1:])


def test_a_reader_that_cannot_be_graded_masks_and_is_not_0(tmp_path: Path) -> None:
    rewards = f"rewards=[{{verifier: {__file__}:picky}}, format]"
    more = [*WITNESSES, rewards, "scoring.fault_limit=1"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        rollouts = trainer._generate(trainer._draw_prompts(0))
        before = trainer.scorer.score(rollouts)
        _, after = CaptionSufficiency().expand(rollouts, before, DRAW, trainer.run_parts)
    assert before.valid.all()
    assert after.valid.tolist() == [[True, False, True, True, True]] * 3
    assert "cannot grade" in str(after.verdicts[0][1][LABEL].fault)


@pytest.mark.parametrize(
    ("caption", "copied"),
    [
        ("It is red.", 1.0),
        ("A RED circle", 1.0),
        ("It is reddish.", 0.0),
        ("", None),
        ("Nothing \\boxed{red}", 1.0),
    ],
)
def test_a_copied_answer_is_found_word_by_word(
    caption: str, copied: float | None, scored: tuple[Rollouts, Rewards]
) -> None:
    text = f"<info>{caption}</info><think>a</think><answer>Red.</answer>"
    prompt = scored[0].batch.prompts[0]
    completion = templates.completion(text, "caption_think_answer", prompt.frame)
    verdict, tried = CaptionSufficiency()._look_at(completion, prompt)
    assert verdict.parts.get("copied") == copied
    assert bool(tried) == (bool(caption) and "boxed" not in caption)


def test_a_run_without_a_description_is_refused(tmp_path: Path) -> None:
    bare = ["data.train.0.template=think_answer", "strategies=[caption_sufficiency]"]
    with pytest.raises(UserError, match="whose template has the tag <info>"):  # noqa: SIM117
        with begin_training(ahead_config(tmp_path / "run", *bare)):
            pass
    with pytest.raises(UserError, match="no template is named 'answer_onl'"):
        CaptionSufficiency(template="answer_onl")


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(name: str, *more: str):  # type: ignore[no-untyped-def]
        short = ("sft=null", "evaluation=null", "checks.parity_every=0", *WITNESSES)
        ways = "strategies=[caption_sufficiency]"
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *short, ways, *more])

    assert lifecycle.train(config("whole"))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(3))
        assert not lifecycle.train(config("run"))["finished"]
    assert lifecycle.train(config("run", "resume=auto"))["finished"]
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
