"""The best constant answer: what a policy that looks at nothing earns from a verifier, measured.

The rows are drawn data (the cards `shapes` and `videos`, and truths of other kinds in the places of
their boxes) or the user's own. The candidates are the right answers of the rows, most frequent first,
and answers that fit many questions.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlmrl import plugins
from vlmrl.answers import geometry
from vlmrl.errors import UserError
from vlmrl.features.verify.reference_answers import lay_out
from vlmrl.schema import Box, BoxTrack, Frame, Sample, Truth, Verdict
from vlmrl.scoring.verifier import Verifier
from vlmrl.truths import json_form, prompting
from vlmrl.truths.base import kinds

ROWS = 40
"""Rows of each task."""
FEWEST = 5
"""Fewest rows that say something of a constant answer."""
CANDIDATES = 12
"""Right answers of rows that are tried on all others."""
ALWAYS = (
    *("none", "[]", "yes", "0", "none <confidence>0</confidence>"),
    *('{"bbox_2d": [0, 0, 1000, 1000]}', '{"bbox_2d": [250, 250, 750, 750]}'),
)
SECONDS = 10.0
"""After this long no further data are tried."""
FRAME = Frame(1000, 1000, space="norm1000", duration=60.0)
TASKS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *(("shapes", {"task": task}) for task in ("grounding", "counting", "question", "reading")),
    ("videos", {}),
)

Ask = Callable[[Sample, Frame, Sequence[str]], Sequence[Verdict]]
Questions = Sequence[tuple[Sample, Frame]]


@dataclass(frozen=True, slots=True)
class ConstantAnswer:
    """The best constant answer to `rows` questions of `data`, its mean score, and how fine the scores are.

    The last three are of the right answers of the rows, each scored on every row.
    """

    answer: str
    pay: float
    rows: int
    data: str
    scores: tuple[float, ...] = ()
    """The distinct ones, in order."""
    ties: float = 0.0
    """Share of the pairs of different answers to one question that are paid alike."""
    depends_on_truth: bool = True
    """Whether an answer is paid otherwise on another row."""

    def __str__(self) -> str:
        """Return a sentence for a person."""
        return f"{self.answer!r:.70} to all of {self.rows} {self.data} earns {self.pay:.2f}"


def find_best(
    verifier: Verifier, ask: Ask, questions: Mapping[str, Questions] | None = None
) -> ConstantAnswer | None:
    """Return the constant answer with the highest pay; None if no data suit the verifier.

    A verifier that compares completions has none. Rows count if the verifier pays their right
    answer; data made of drawn data count where the drawn data themselves do not suit. `ask` gives
    verdicts on completions.
    """
    if verifier.scope != "item":
        return None
    end, form = time.monotonic() + SECONDS, verifier.answer_form()
    constants: list[ConstantAnswer] = []
    for number, (data, asked) in enumerate((questions or list_drawn()).items()):
        if time.monotonic() > end or (constants and number >= len(TASKS)):
            break
        paid = []
        for sample, frame in ((replace(s, form=form), f) for s, f in asked):
            if time.monotonic() >= end or not verifier.applies_to(sample):
                continue
            right = prompting.write(sample.truth, frame, replace(sample.form, key=None))
            if right is not None:
                (verdict,) = ask(sample, frame, [lay_out(sample, right)])
                if (verdict.score or 0.0) > verifier.low + 0.05:
                    paid.append((sample, frame, right))
        if len(paid) >= FEWEST:
            constants.append(_best_on(paid, data, ask, end))
    return max(constants, key=lambda constant: constant.pay, default=None)


def _best_on(
    paid: Sequence[tuple[Sample, Frame, str]], data: str, ask: Ask, end: float
) -> ConstantAnswer:
    common = [answer for answer, _ in Counter(r for _, _, r in paid).most_common(CANDIDATES)]
    answers = list(dict.fromkeys([*common, *ALWAYS]))
    scores: dict[str, list[float]] = {answer: [] for answer in answers}
    for number, (sample, frame, _) in enumerate(paid):
        if number >= FEWEST and time.monotonic() > end:
            break
        verdicts = ask(sample, frame, [lay_out(sample, answer) for answer in answers])
        for answer, verdict in zip(answers, verdicts, strict=True):
            scores[answer].append(verdict.score or 0.0)
    best = max(answers, key=lambda answer: statistics.fmean(scores[answer]))
    by_answer = [[round(score, 9) for score in scores[answer]] for answer in common]
    pairs = [
        p for by_row in zip(*by_answer, strict=True) for p in itertools.combinations(by_row, 2)
    ]
    return ConstantAnswer(
        best,
        statistics.fmean(scores[best]),
        len(scores[best]),
        data,
        tuple(sorted({score for by_row in by_answer for score in by_row})),
        statistics.fmean(a == b for a, b in pairs) if pairs else 0.0,
        any(len(set(by_row)) > 1 for by_row in by_answer),
    )


@functools.cache
def list_drawn() -> dict[str, Questions]:
    """Return drawn questions by what they are: rows of `shapes` and `videos`, and truths made of them."""
    questions: dict[str, list[Sample]] = {}
    for name, options in TASKS:
        card = plugins.build("card", name, dict(options))
        rows = card.rows("train")
        made = [card.to_sample(rows[i], name) for i in range(ROWS)]
        questions[f"rows of {name} {options.get('task', '')}".rstrip()] = [
            replace(sample, template="think_answer") for sample in made
        ]
    drawn = dict(questions)
    places = [kind.name for kind in kinds().values() if kind.placed and kind.listed]
    makers: dict[str, Callable[[Truth], Truth | None]] = {
        **{name: functools.partial(_fill, name) for name in places},
        **MADE,
    }
    for what, truth_of in makers.items():
        for data, samples in drawn.items():
            made = [replace(s, truth=t) for s in samples if (t := truth_of(s.truth)) is not None]
            if made:
                questions[f"{data}, as {what}"] = made
    return {data: [(sample, FRAME) for sample in samples] for data, samples in questions.items()}


def _fill(name: str, truth: Truth) -> Truth | None:
    """Return a truth of this kind of places that fills the boxes."""
    boxes = (tuple(1000 * n for n in box.xyxy) for box in truth.boxes or ())
    items = [kinds()[name].cover(*box) for box in boxes]
    try:
        return json_form.read({name: items}, FRAME) if items else None
    except UserError:  # its answers are written otherwise than its rows
        return None


def _events(truth: Truth) -> Truth | None:
    spans = tuple(replace(span, label="red") for span in truth.spans or ())
    return Truth(spans=spans) if spans else None


def _of_boxes(make: Callable[[Sequence[Box]], Truth]) -> Callable[[Truth], Truth | None]:
    return lambda truth: make(truth.boxes) if truth.boxes else None


def _of_text(make: Callable[[str], Truth | None]) -> Callable[[Truth], Truth | None]:
    return lambda truth: make(truth.text[0]) if truth.text else None


MADE: dict[str, Callable[[Truth], Truth | None]] = {
    "points": _of_boxes(lambda boxes: Truth(points=tuple(map(geometry.centre, boxes)))),
    "labels": lambda truth: Truth(labels=truth.text) if truth.text else None,
    "fields": _of_text(lambda text: Truth(fields={"action": text})),
    "yes or no": _of_text(lambda text: Truth(text=("yes" if text < "m" else "no",))),
    "events": _events,
    "tracks": _of_boxes(lambda boxes: Truth(track=BoxTrack((0.0,), tuple(boxes[:1])))),
    "questions without an answer": _of_text(lambda text: Truth(none=True) if text < "m" else None),
}
"""Truths of other kinds, made of those that are drawn."""
