"""Ask a model that sees nothing the row's questions, with the completion as its only source."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.answers import parsing
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring import model_judge
from vlmrl.scoring.model_judge import read_object
from vlmrl.scoring.named_judge import AskingVerifier
from vlmrl.scoring.verifier import Laws
from vlmrl.system.chat_endpoint import Invalid

UNKNOWN = "It cannot be answered from the description."
"""The last option of each question."""
_RULES = """Answer the multiple-choice question by the description alone, whatever you know or could \
guess besides. The user's message is one JSON object: a description that another model wrote of what you \
cannot see, the question, and its options by letter.
Reply with one JSON object and nothing else: {reply}."""

Question = tuple[str, Sequence[str], str]
"""What is asked, the options, and the right one's letter."""


@dataclass(frozen=True)
class CaptionQuiz(AskingVerifier):
    """The share of a row's choice questions that a model without media answers right from the description.

    The row's `fields` are `{"questions": [{"question": text, "options": [texts], "answer": letter or
    text}]}`. `count` of them are asked `tries` times each, their options in another order every time, an
    option that the description does not say behind them; questions and orders are drawn by row and
    description. A reply that is not the JSON object asked for, or none in time, masks the completion and is
    never a 0. No description scores 0 without asking.

    Used by: CapRL (`count: 0`, all questions of a row).

    Refuses: a reply with another key, several letters, prose around the JSON.

    Source: Xing et al. 2025, "CapRL", arXiv 2509.22647, section 3. Differs: the reply is a JSON object, there
    its first capital letter.

    Raises: ValueError: `model` names none of the config's models, or the row has no such questions.
    """

    laws: ClassVar[Laws] = Laws(of_models=True)

    count: int = 0
    """Questions of a description; 0: all of the row."""
    tries: int = 1
    """How often each is asked."""
    part: str = "answer"
    """The description: `answer`, `text` (the whole completion) or a tag of the template."""
    temperature: float = 0.0
    """Of the model's reply."""
    max_chars: int = 16_000
    """Characters of the description that it is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 0 or self.tries < 1:
            raise ValueError("expected count of at least 0 and tries of at least 1")

    def applies_to(self, sample: Sample) -> bool:
        """Return whether a row has fields, in which the questions are."""
        return sample.truth.fields is not None

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        """Ask the drawn questions, and count the right answers."""
        if not self.applies_to(sample):
            return Verdict.not_applicable("the truth has no fields")
        questions = read_questions(sample)
        caption = model_judge.part_of(completion, self.part)
        if not caption:
            return Verdict(0.0, note=f"no {self.part}")
        draw = random.Random(f"{sample.id} {caption}")
        chosen = draw.sample(questions, min(self.count or len(questions), len(questions)))
        right = []
        for question, options, letter in chosen * self.tries:
            order = draw.sample(range(len(options)), len(options))
            shown = [*(options[number] for number in order), UNKNOWN]
            body = self._body(caption, question, shown)
            picked = self.ask(body, lambda reply, shown=shown: _read(reply, shown))  # type: ignore[misc]
            if isinstance(picked, Verdict):
                return picked
            right.append(float(picked == _letter(order.index(ord(letter) - ord("A")))))
        return Verdict(
            statistics.fmean(right), note=f"{sum(right):g} of {len(right)} answered right"
        )

    def _body(self, caption: str, question: str, options: Sequence[str]) -> dict[str, Any]:
        lettered = {_letter(number): option for number, option in enumerate(options)}
        data = {"description": caption[: self.max_chars], "question": question, "options": lettered}
        rules = _RULES.format(reply=json.dumps({"answer": "letter"}))
        messages = model_judge.messages(rules, data)
        return {"messages": messages, "temperature": self.temperature, "max_tokens": 64}


def read_questions(sample: Sample) -> list[Question]:
    """Return the questions of a row.

    Raises:
        ValueError: there are none, or one of another form; the message names the row.
    """
    stated = (sample.truth.fields or {}).get("questions")
    where = f"sample {sample.id!r}: fields.questions"
    if not isinstance(stated, list) or not stated:
        raise ValueError(f"{where}: expected a list of questions, got {stated!r:.60}")
    return [_read_question(item, where) for item in stated]


def _read_question(item: object, where: str) -> Question:
    match item:
        case {
            "question": str(question),
            "options": [str(), str(), *_] as options,
            "answer": str(answer),
        }:
            letter = parsing.letter_of(answer, options)
            if (
                letter is not None
                and len(options) < 26
                and all(isinstance(o, str) for o in options)
            ):
                return question, options, letter
    raise ValueError(
        f"{where}: expected a question, options and the right answer, got {item!r:.80}"
    )


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def _read(reply: str, options: Sequence[str]) -> str:
    """Return the letter that a reply picks; Invalid if it picks none or several."""
    answer = read_object(reply, ("answer",))["answer"]
    letter, note = parsing.read_choice(str(answer), options)
    if letter is None:
        raise Invalid(f"no letter: {note}: {reply[:80]!r}")
    return letter
