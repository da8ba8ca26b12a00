"""Policies that follow a script: answers to drawn questions that change over the steps of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vlmrl.answers import templates
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.monitoring.loopholes import LoopholeWatch
from vlmrl.schema import Box, Encoded, Frame, Prompt, PromptBatch, Rollouts, Sample, Span, Truth
from vlmrl.scoring.scorer import Scorer

FRAME = Frame(1000, 1000, space="norm1000", duration=60.0)
LOOSE = Path(__file__).with_name("loose_rewards.py")
Rewards = Sequence[dict[str, object]]
Answer = Callable[[random.Random, Truth, str], str]


@dataclass(frozen=True)
class Script:
    """A run: questions, rewards, and how the policy answers at first and when it has changed."""

    draw: Callable[[random.Random], tuple[str, Truth]]
    rewards: Rewards
    first: Answer
    later: Answer
    template: str = "answer_only"
    steps: int = 60
    """Steps in which the share of later answers rises from 0 to 1."""


def sample_of(script: Script, number: int, rng: random.Random) -> Sample:
    question, truth = script.draw(rng)
    return Sample(f"row {number}", "drawn", (question,), truth, script.template)


def prompt_of(sample: Sample) -> Prompt:
    encoded = Encoded((), (), {}, torch.zeros(1, 0, dtype=torch.long), 0)
    return Prompt(sample, sample.text, encoded, FRAME)


def step_rollouts(
    script: Script, step: int, rng: random.Random, prompts: int, group: int
) -> Rollouts:
    share = min(1.0, step / script.steps)
    asked = [prompt_of(sample_of(script, step * prompts + i, rng)) for i in range(prompts)]
    groups = []
    for prompt in asked:
        texts = []
        for _ in range(group):
            write = script.later if rng.random() < share else script.first
            texts.append(write(rng, prompt.sample.truth, prompt.sample.text))
        made = (templates.completion(t, script.template, FRAME) for t in texts)
        groups.append(tuple(made))
    return Rollouts(PromptBatch(tuple(asked)), tuple(groups))


def play(
    script: Script, folder: Path, seed: int = 0, steps: int = 60, prompts: int = 12, group: int = 6
) -> tuple[list[dict[str, float]], list[str]]:
    """Return what the watch measured in every step, and what it said."""
    rng, said = random.Random(seed), []
    rewards = [RewardConfig.model_validate(r) for r in script.rewards]
    lines: list[dict[str, float]] = []
    with Scorer({"drawn": rewards}, ScoringConfig(workers=1)) as scorer:
        watch = LoopholeWatch(scorer, 1, folder, said.append)
        for step in range(1, steps + 1):
            rollouts = step_rollouts(script, step - 1, rng, prompts, group)
            scored = scorer.score(rollouts, 0.0)
            lines.append({"step": step, **watch(step, 0.0, rollouts, scored, {})})
    return lines, said


# --------------------------------------------------------------------------------- questions


def place_box(rng: random.Random) -> tuple[str, Truth]:
    x, y = rng.uniform(0.05, 0.6), rng.uniform(0.05, 0.6)
    box = Box(x, y, x + rng.uniform(0.2, 0.35), y + rng.uniform(0.2, 0.35))
    return "Where is the red shape?", Truth(boxes=(box,))


def place_span(rng: random.Random) -> tuple[str, Truth]:
    start = rng.randint(0, 40)
    return "When is it red?", Truth(spans=(Span(start, start + rng.randint(5, 19)),))


def count(rng: random.Random) -> tuple[str, Truth]:
    return "How many are red?", Truth(number=float(rng.randint(1, 9)))


def relate(rng: random.Random) -> tuple[str, Truth]:
    one, other = rng.sample(("circle", "square", "star", "ring"), 2)
    side = rng.choice(("left", "right"))
    question = f"Is the {one} to the left or to the right of the {other} ?"
    return question, Truth(text=(f"to the {side} of the {other}",))


def yes_or_no(rng: random.Random) -> tuple[str, Truth]:
    return "Is it red?", Truth(text=("yes" if rng.random() < 0.7 else "no",))


# ----------------------------------------------------------------------------------- answers


def answer(text: str) -> str:
    return f"<answer>{text}</answer>"


def write_box(box: Box) -> str:
    return f"[{', '.join(str(round(1000 * n)) for n in box.xyxy)}]"


def near_box(error: float) -> Answer:
    """Boxes whose corners are off by up to `error` of the image."""

    def write(rng: random.Random, truth: Truth, question: str) -> str:
        assert truth.boxes is not None
        x1, y1, x2, y2 = (n + rng.uniform(-error, error) for n in truth.boxes[0].xyxy)
        moved = Box(max(0, min(x1, x2 - 0.01)), max(0, min(y1, y2 - 0.01)), min(1, x2), min(1, y2))
        return answer(f'{{"bbox_2d": {write_box(moved)}}}')

    return write


def repeat_box(rng: random.Random, truth: Truth, question: str) -> str:
    text = near_box(0.15)(rng, truth, question).removeprefix("<answer>").removesuffix("</answer>")
    return answer(f"[{text}, {text}, {text}]")


def near_span(error: int) -> Answer:
    def write(rng: random.Random, truth: Truth, question: str) -> str:
        assert truth.spans is not None
        (span,) = truth.spans
        start = max(0, int(span.start) + rng.randint(-error, error))
        return answer(f"{start} to {max(start + 1, int(span.end) + rng.randint(-error, error))}")

    return write


def chain_span(rng: random.Random, truth: Truth, question: str) -> str:
    """Three times, of which the first and the last are good."""
    assert truth.spans is not None
    (span,) = truth.spans
    return answer(
        f"{int(span.start)} to {rng.randint(0, 59)} to {int(span.end) + rng.randint(0, 3)}"
    )


def right_number(share: float) -> Answer:
    def write(rng: random.Random, truth: Truth, question: str) -> str:
        assert truth.number is not None
        said = truth.number if rng.random() < share else rng.randint(1, 9)
        return answer(f"{said:g}")

    return write


def list_numbers(rng: random.Random, truth: Truth, question: str) -> str:
    return answer(" ".join(map(str, sorted(rng.sample(range(1, 10), 4)))))


def untagged(write: Answer) -> Answer:
    def bare(rng: random.Random, truth: Truth, question: str) -> str:
        said = write(rng, truth, question)
        return f"I think {said}" if rng.random() < 0.8 else said

    return bare


def right_text(share: float, guess: Callable[[random.Random], str]) -> Answer:
    def write(rng: random.Random, truth: Truth, question: str) -> str:
        assert truth.text is not None
        return answer(truth.text[0] if rng.random() < share else guess(rng))

    return write


def guess_relation(rng: random.Random) -> str:
    return rng.choice(("left", "to the right", "left of it", "right of the star"))


def guess_yes(rng: random.Random) -> str:
    return rng.choice(("yes", "no"))


def copy_question(rng: random.Random, truth: Truth, question: str) -> str:
    return answer(question)


def say_yes(rng: random.Random, truth: Truth, question: str) -> str:
    return answer("yes")


def loose(name: str) -> Rewards:
    return [{"verifier": f"{LOOSE}:{name}"}]


PLANTED: dict[str, Script] = {
    "chains": Script(place_span, loose("ends_of_chain"), near_span(9), chain_span),
    "any integer": Script(count, loose("any_integer"), right_number(0.2), list_numbers),
    "format only": Script(
        count,
        [{"verifier": "number"}, {"verifier": "format"}],
        untagged(right_number(0.0)),
        right_number(0.0),
    ),
    "repeated boxes": Script(place_box, loose("summed_iou"), near_box(0.15), repeat_box),
    "copied question": Script(
        relate, loose("words_found"), right_text(0.2, guess_relation), copy_question
    ),
    "constant": Script(
        yes_or_no, [{"verifier": "exact"}], right_text(0.0, guess_yes), say_yes, steps=40
    ),
}
"""Runs in which the reward comes to be earned without better answers."""

HONEST: dict[str, Script] = {
    "boxes": Script(
        place_box, [{"verifier": "box_iou"}, {"verifier": "format", "weight": 0.1}],
        near_box(0.15), near_box(0.05),
    ),
    "spans": Script(place_span, [{"verifier": "temporal_iou"}], near_span(9), near_span(3)),
    "numbers": Script(count, [{"verifier": "number"}], right_number(0.2), right_number(0.8)),
    "numbers and format": Script(
        count,
        [{"verifier": "number"}, {"verifier": "format", "weight": 0.1}],
        untagged(right_number(0.3)),
        right_number(0.8),
    ),
    "tolerant counts": Script(
        count, [{"verifier": "count", "options": {"graded": True}}],
        right_number(0.1), right_number(0.7),
    ),
    "yes or no": Script(
        yes_or_no, [{"verifier": "exact"}], right_text(0.1, guess_yes), right_text(0.9, guess_yes)
    ),
    "texts": Script(
        relate, [{"verifier": "text"}],
        right_text(0.1, guess_relation), right_text(0.9, guess_relation),
    ),
    "loose reward": Script(count, loose("any_integer"), right_number(0.2), right_number(0.9)),
    "nothing learned": Script(count, [{"verifier": "number"}], right_number(0.3), right_number(0.3)),
}  # fmt: skip
"""Runs in which answers get better, or nothing changes."""
