"""Places in a thought: what counts as one, against slow code that reads a text character by character."""

from __future__ import annotations

import random

import pytest

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.errors import UserError
from vlmrl.schema import Frame, Sample, Truth


def places(thought: str, kind: str = "boxes", space: str = "pixel") -> float:
    text = f"<think>{thought}</think><answer>7</answer>"
    completion = templates.completion(text, "think_answer", Frame(100, 50, space))  # type: ignore[arg-type]
    verdict = plugins.build("verifier", "grounded_thought", {"kind": kind})(
        completion, Sample("", "", (), Truth())
    )
    assert verdict.score == float(verdict.parts["places"] >= 1)
    return verdict.parts["places"]


@pytest.mark.parametrize(
    ("thought", "kind", "expected"),
    [
        ("[1, 2, 30, 40], 5,6,7,8 and {1.5, 2, 9, 9}", "boxes", 3),
        ("[1, 2, 30, 40] again [1,2,30,40]", "boxes", 1),
        ("[30, 2, 1, 40] [200, 2, 300, 40] [1, 2, 1, 9]", "boxes", 0),
        ("[1, 2, 30]", "boxes", 0),
        ("(1, 2) and (1,2), (99.5, 3), (101, 3), (5, 51)", "points", 2),
        ("[1, 2], 3, 4 and (1, 2, 3)", "points", 0),
    ],
)
def test_a_place_is_a_form_inside_the_image(thought: str, kind: str, expected: int) -> None:
    assert places(thought, kind) == expected


def test_boxes_are_those_that_were_written_into_random_prose() -> None:
    rng = random.Random(0)
    for _ in range(200):
        written, words = set(), []
        for _ in range(rng.randrange(6)):
            x1, y1, x2, y2 = (rng.randrange(130) for _ in range(4))
            comma = rng.choice([",", ", ", " , "])
            words += ["the dog", f"{rng.choice('[( ')}{comma.join(map(str, (x1, y1, x2, y2)))} "]
            if x1 < x2 and y1 < y2 and x1 < 100 and y1 < 50:
                written.add((x1, y1, x2, y2))
        assert places(" is ".join(words)) == len(written)


def test_the_number_that_is_asked_for_and_the_least() -> None:
    text = "<think>[1, 2, 30, 40] [5, 6, 7, 8]</think><answer>2</answer>"
    completion = templates.completion(text, "think_answer", Frame(100, 50))
    counted = plugins.build("verifier", "grounded_thought", {"count": True})
    assert counted(completion, Sample("", "", (), Truth(number=2))).score == 1
    assert counted(completion, Sample("", "", (), Truth(number=1))).score == 0
    assert not counted(completion, Sample("", "", (), Truth(text=("2",)))).applies
    for least, score in ((2, 1.0), (3, 0.0)):
        verifier = plugins.build("verifier", "grounded_thought", {"least": least})
        assert verifier(completion, Sample("", "", (), Truth())).score == score
    with pytest.raises(UserError, match="least: expected"):
        plugins.build("verifier", "grounded_thought", {"least": 0})
