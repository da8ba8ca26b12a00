"""A question that is asked until it is answered: a wrong answer is told "Try again", and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlmrl import plugins
from vlmrl.answers import templates, text
from vlmrl.errors import UserError
from vlmrl.interaction.environment import Environment, Move, MoveOutcome, Part, Sample
from vlmrl.schema import AnswerForm, Truth


@dataclass(frozen=True, slots=True)
class Tries:
    """A question, what is true, and the answers that were tried, normalised."""

    question: str
    template: Any
    truth: Truth
    form: AnswerForm
    answers: tuple[str, ...] = ()

    @property
    def repeated(self) -> float:
        """Return the share of answers that stood there before, in [0, 1)."""
        return 1 - len(set(self.answers)) / len(self.answers) if self.answers else 0.0


@dataclass(frozen=True)
class TryAgain(Environment):
    """A row's question, of which the policy writes an answer a turn until one is right.

    `verifier` says whether an answer is right, by a score of 1. The first right one, the t-th, pays
    decay^(t - 1). Of T answers of which E differ, `repeat_cost` (1 - E / T) is taken from the sum, in each
    turn what it grew by, and `unread_cost` for each turn without an answer. Metrics: `solved`, `tries`,
    `repeated` (1 - E / T so far).

    Used by: UFO, "A Simple 'Try Again' Can Elicit Multi-Turn LLM Reasoning" (arXiv 2507.14295, section 3).
    """

    verifier: str
    """Verifier of one answer, as `exact`, `number`, `math` or `choice`."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options of the verifier."""
    max_tries: int = 5
    """Answers after which the question is given up."""
    decay: float = 0.5
    """What the reward of a right answer is multiplied by for each wrong one before it, in (0, 1]."""
    repeat_cost: float = 0.1
    """Weight of the share of answers that stood there before."""
    unread_cost: float = 0.1
    """What a turn without an answer costs."""
    feedback: str = "Try again."
    """What is said of a wrong answer."""

    def __post_init__(self) -> None:
        if self.max_tries < 1 or not 0 < self.decay <= 1:
            raise ValueError("expected max_tries of at least 1 and decay in (0, 1]")
        if min(self.repeat_cost, self.unread_cost) < 0:
            raise ValueError("expected repeat_cost and unread_cost of at least 0")
        if plugins.load("verifier", self.verifier).scope != "item":
            raise ValueError(f"expected a verifier of one answer, got {self.verifier!r}")

    def prepare(self) -> None:
        """Load the verifier."""
        plugins.build("verifier", self.verifier, self.options)

    def reset(self, sample: Sample, seed: int) -> Tries:
        """Return the question of a row, without answers."""
        return Tries(sample.text, sample.template, sample.truth, sample.form)

    def observe(self, state: Tries) -> Sequence[Part]:
        """Return what is said of the last answer; nothing before the first."""
        return [self.feedback] if state.answers else []

    def task(self, state: Tries) -> str:
        """Return the question."""
        return state.question

    def step(self, state: Tries, move: Move) -> MoveOutcome:
        """Grade the answer that a turn states."""
        written = templates.completion(move.text, state.template, move.frame)
        asked = Sample("", "", (), state.truth, state.template, form=state.form)
        verdict = plugins.build("verifier", self.verifier, self.options)(written, asked)
        if verdict.score is None:
            raise UserError(f"verifier {self.verifier!r} does not grade such a row: {verdict.note}")
        solved = verdict.score == 1
        answer = text.normalised(written.answer or "")
        after = replace(state, answers=(*state.answers, answer))
        paid = self.decay ** len(state.answers) if solved else 0.0
        paid -= self.repeat_cost * (after.repeated - state.repeated)
        paid -= self.unread_cost * (written.answer is None)
        done = solved or len(after.answers) >= self.max_tries
        metrics = {
            "solved": float(solved),
            "tries": float(len(after.answers)),
            "repeated": after.repeated,
        }
        return MoveOutcome(after, [] if done else self.observe(after), paid, done, metrics)
