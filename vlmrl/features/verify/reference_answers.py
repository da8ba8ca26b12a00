"""Right and wrong answers that an honest model might give, derived from a truth, and examples.

The attack bench measures every attack against these two. A wrong answer is a plausible one: a box
moved by half its width, a number off by half, a text half misread, another option. Each kind of
truth says in its own file which answers these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vlmrl.answers.templates import template
from vlmrl.schema import Frame, Sample
from vlmrl.scoring.verifier import SHUFFLED_REWARDS
from vlmrl.truths import prompting
from vlmrl.truths.base import TruthKind, kinds

FRAME = Frame(640, 480, resized_width=644, resized_height=476, duration=60.0)
"""The media of every example."""
CONTROL = {SHUFFLED_REWARDS: [1.0, 0.0]}
"""Metadata of a sample for verifiers that compare with a control group."""


@dataclass(frozen=True, slots=True)
class Honest:
    """A question with a right and a wrong answer to it, as the content of the answer tag.

    `kind` is the kind of truth and `form` the way in which it is stated; `everything` lists all
    that could be right, at once.
    """

    sample: Sample
    frame: Frame
    kind: TruthKind
    form: str
    right: str
    wrong: str
    everything: str = ""


def lay_out(sample: Sample, answer: str, thought: str = "I see it.") -> str:
    """Put an answer into the sample's template and form; other tags hold the thought too.

    Raises:
        UserError: no such template.
    """
    contents = dict.fromkeys((tag.name for tag in template(sample.template).tags), thought)
    if not sample.truth.none:
        answer = prompting.put_in_form(answer, sample.form)
    contents |= {"think": thought, "glue": "0 to 1"}
    return prompting.lay_out(sample.template, answer, contents, sample.form)


def state_honestly(sample: Sample, frame: Frame) -> Iterator[Honest]:
    """Yield every way to state the sample's truth as an answer, each with a wrong counterpart.

    Exact answers come first: of those that a verifier pays alike the bench attacks the first.
    """
    for kind in sorted(kinds().values(), key=lambda kind: kind.words):
        for claim in kind.claim(sample.truth, frame):
            yield Honest(
                sample, frame, kind, claim.form, claim.right, claim.wrong, claim.everything
            )


def examples() -> list[tuple[Sample, Frame]]:
    """Return small questions with every kind of truth, in the layout `think_answer`, in pixels."""
    asked = [example for kind in kinds().values() for example in kind.examples()]
    return [
        (Sample(f"example {i}", "examples", (question,), truth, meta=CONTROL), FRAME)
        for i, (question, truth) in enumerate(asked, start=1)
    ]
