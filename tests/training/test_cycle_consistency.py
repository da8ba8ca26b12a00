"""Cycle consistency: what is asked on the way back, and that what leads back is paid, numbers excepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.parts.strategies.cycle_consistency import CycleConsistency, _look_at
from vlmrl.schema import Prompt, PromptBatch, Rewards, Rollouts
from vlmrl.training.strategy import BatchDraw, RunParts
from vlmrl.training.trainer import Trainer
from vlmrl.truths import prompting

DRAW = BatchDraw(0, 0, 0, 0.0)
LABEL = "cycle_consistency"
SOURCES = (
    "data.train=[{name: cycle/describe, card: shapes, options: {task: grounding}, rewards: [format]}, "
    "{name: cycle/ground, card: shapes, options: {task: grounding}, weight: 0, "
    "rewards: [box_iou, format]}]"
)
NAMED = "the shape with the border"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("cycle") / "run"
    with begin_training(ahead_config(folder, SOURCES, "engine=hf")) as built:
        yield built


def describing(trainer: Trainer, texts: Sequence[str]) -> tuple[Rollouts, Rewards]:
    """Return three groups of three that describe their box in these words."""
    rollouts = trainer._generate(trainer._draw_prompts(0))
    groups = tuple(
        tuple(
            replace(c, parsed=templates.split(t, "think_answer"), text=t, finish_reason="stop")
            for c, t in zip(
                group, (f"<think>a</think><answer>{x}</answer>" for x in texts), strict=True
            )
        )
        for group in rollouts.completions
    )
    rollouts = replace(rollouts, completions=groups)
    return rollouts, trainer.scorer.score(rollouts)


class Listener(RunParts):
    """Finds the true box where a prompt asks for `NAMED`, else a corner."""

    asked: list[Prompt]

    def ask(self, prompts, count, draw, purpose):  # type: ignore[no-untyped-def]
        type(self).asked = list(prompts)
        groups = []
        for prompt in prompts:
            answer = '{"bbox_2d": [0, 0, 7, 7]}'
            if NAMED in prompt.sample.text:
                answer = str(prompting.write(prompt.sample.truth, prompt.frame, prompt.sample.form))
            text = f"<think>a</think><answer>{answer}</answer>"
            groups.append((templates.completion(text, prompt.sample.template, prompt.frame),))
        return Rollouts(PromptBatch(tuple(prompts)), tuple(groups))


def listening(trainer: Trainer) -> Listener:
    fields = {name: getattr(trainer.run_parts, name) for name in RunParts.__dataclass_fields__}
    return Listener(**fields)


def test_a_description_is_paid_by_what_it_leads_back_to(trainer: Trainer) -> None:
    before = describing(trainer, [NAMED, "something", "4 corners at 3 and 9"])
    rollouts, rewards = CycleConsistency(weight=2.0).expand(*before, DRAW, listening(trainer))
    assert rollouts is before[0] and rewards.valid.all()
    for p, group in enumerate(rewards.verdicts):
        named, other, numbers = (of[LABEL] for of in group)
        # The box as the model writes it is in whole pixels.
        assert named.score == pytest.approx(1.0, abs=0.05)
        assert other.score is not None and other.score < 0.2
        assert numbers.score == 0 and "place in numbers" in numbers.note
        gain = (rewards.total - before[1].total)[p].tolist()
        assert gain == pytest.approx([2 * named.score, 2 * other.score, 0.0], abs=1e-5)  # type: ignore[operator]
    found = CycleConsistency().metrics(rollouts, rewards)
    assert found == pytest.approx({f"{LABEL}/missing": 0.0, f"{LABEL}/refused": 1 / 3})


def test_the_way_back_shows_the_media_and_the_description_not_the_question(
    trainer: Trainer,
) -> None:
    before = describing(trainer, [NAMED, NAMED, ""])
    run_parts = listening(trainer)
    _, rewards = CycleConsistency(question="Find {}.").expand(*before, DRAW, run_parts)
    assert len(run_parts.asked) == 6  # nothing is asked of what describes nothing
    for prompt in run_parts.asked:
        assert prompt.sample.source == "cycle/ground" and prompt.images
        assert prompt.sample.text == f"Find {NAMED}."
        assert before[0].batch.prompts[0].sample.text not in prompt.text
    assert rewards.verdicts[0][2][LABEL].note == "no description"


def test_the_policy_itself_finds_the_way_back(trainer: Trainer) -> None:
    before = describing(trainer, ["a shape", "a thing", "a red one"])
    _, rewards = CycleConsistency().expand(*before, DRAW, trainer.run_parts)
    _, again = CycleConsistency().expand(*before, DRAW, trainer.run_parts)
    for group in rewards.verdicts:
        assert all(0 <= of[LABEL].score <= 1 for of in group)  # type: ignore[operator]
    assert again.total.tolist() == rewards.total.tolist()


@pytest.mark.parametrize(
    ("said", "tried"),
    [
        ("the second shape", True),
        ("the bus with number 7", True),
        ("[7, 14, 35, 49]", False),
        ("left of 0.25, below 0.5", False),
        ('{"bbox_2d": [7, 14, 35, 49]}', False),
        ("", False),
    ],
)
def test_a_description_that_states_a_place_is_not_tried(
    said: str, tried: bool, trainer: Trainer
) -> None:
    text = f"<think>a</think><answer>{said}</answer>"
    prompt = trainer.loader.next().prompts[0]
    completion = templates.completion(text, "think_answer", prompt.frame)
    verdict, description = _look_at(completion)
    assert bool(description) == tried and verdict.score == 0


def test_a_run_without_the_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a training source 'cycle/describe', got"):  # noqa: SIM117
        with begin_training(ahead_config(tmp_path / "run", "strategies=[cycle_consistency]")):
            pass


@pytest.mark.parametrize("options", [{"weight": 0}, {"question": "Where?"}])
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        CycleConsistency(**options)  # type: ignore[arg-type]
