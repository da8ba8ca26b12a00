"""The contract of a kind of truth: stored and read back, converted, drawn, refused in one line."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from helpers.contracts import require
from vlmrl import plugins
from vlmrl.features.verify.reference_answers import FRAME, examples
from vlmrl.schema import Frame, Truth
from vlmrl.truths import json_form
from vlmrl.truths.base import TruthKind

KIND = "truth"
SUBSETS = {
    "part": lambda cls: True,
    "placed": lambda cls: cls.placed,
}
UNIT = Frame(space="norm1")


def stating(part: str) -> tuple[TruthKind, list[Truth]]:
    """A kind, and the truths of its examples that state it."""
    kind: TruthKind = plugins.build("truth", part)
    truths = (sample.truth for sample, _ in examples())
    return kind, [truth for truth in truths if truth.value(kind.name) not in (None, False)]


def test_it_has_an_example_and_reads_back_what_it_stores(part: str) -> None:
    kind, truths = stating(part)
    require(truths, part, "yield an example whose truth states this kind")
    for truth in truths:
        stored = json.loads(json.dumps(json_form.to_json(truth)))
        again = json_form.read({kind.name: stored[kind.name]}, UNIT)
        same = json_form.to_json(again)[kind.name] == stored[kind.name]
        require(same, part, f"let parse read back what a row stores, {stored[kind.name]!r}")


def test_its_places_go_to_the_space_of_a_row_and_back_and_can_be_drawn(placed: str) -> None:
    kind, truths = stating(placed)
    for truth in truths:
        typed = json_form.read({kind.name: json_form.to_json(truth)[kind.name]}, UNIT)
        stored = json_form.to_json(json_form.convert(typed.value(kind.name), FRAME))
        back = json_form.read({kind.name: stored}, FRAME)
        first, second = (
            json_form.marks(json_form.to_json(each.value(kind.name))) for each in (typed, back)
        )
        assert first and [m.shape for m in first] == [m.shape for m in second]
        for one, other in zip(first, second, strict=True):
            assert one.numbers == pytest.approx(other.numbers)


def test_a_bad_value_is_one_line_that_names_the_key(part: str) -> None:
    name = plugins.build("truth", part).name
    refusals = []
    for value in (12, "x", {}, [None]):
        try:
            json_form.read({name: value}, UNIT)
        except Exception as error:
            refusals.append(str(error))
    right = [
        line for line in refusals if line.startswith(f"truth.{name}: expected") and "got" in line
    ]
    require(right, part, f"raise ValueError('expected X, got Y') for a bad value; got {refusals}")


def test_its_truths_survive_pickling_and_compare_by_value(part: str) -> None:
    for truth in stating(part)[1]:
        assert pickle.loads(pickle.dumps(truth)) == truth == copy.deepcopy(truth)


def test_its_mistake_is_another_value(part: str) -> None:
    kind, truths = stating(part)
    for truth in truths:
        wrong = kind.mistake(truth)
        if wrong is not None:
            require(wrong != truth, part, "let mistake return a truth with another value")
