"""ToolRL's correctness of calls, against numbers computed by hand from its formula."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from vlmrl import plugins
from vlmrl.schema import Truth
from vlmrl.scoring.verifier import judge


def block(*calls: dict[str, Any]) -> str:
    lines = "\n".join(json.dumps(call) for call in calls)
    return f"<think>so</think>\n<tool_call>\n{lines}\n</tool_call>"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "parameters": arguments}


def score(text: str, *right: dict[str, Any]) -> float | None:
    truth = Truth(fields={"calls": list(right)}) if right else Truth(none=True)
    return judge(plugins.build("verifier", "tool_calls"), text, truth, "think_answer").score


def test_unclosed_marks_take_no_time() -> None:
    began = time.process_time()
    assert score("<tool_call>" * 100_000, call("a")) == 0.0
    assert score("<tool_call>" * 100_000 + "</tool_call>", call("a")) == 0.0
    assert time.process_time() - began < 5


def test_a_call_goes_from_the_first_opening_mark_to_the_closing_one() -> None:
    one = json.dumps(call("a"))
    assert score(f"<tool_call>{one}</tool_call></tool_call><tool_call>", call("a")) == 1.0
    assert score(f"</tool_call><tool_call>{one}</tool_call>", call("a")) == 1.0
    assert score(f"<tool_call><tool_call>{one}</tool_call>", call("a")) == 1.0


A, B = call("a", x=1, y="two"), call("b")

GOLDENS = {
    # names 1, keys 1, values 2: 4 of 4, and the short cut
    "the same call": (block(A), (A,), 1.0),
    # names 1, keys 1, one value: 3 of 4
    "one wrong value": (block(call("a", x=1, y="three")), (A,), 3 / 4),
    # names 1, keys 1/2, one value: 2.5 of 4
    "one argument missing": (block(call("a", x=1)), (A,), 2.5 / 4),
    # names 1, keys 2/3, two values: 1 + 2/3 + 2 of 4
    "one argument too many": (block(call("a", x=1, y="two", z=0)), (A,), (1 + 2 / 3 + 2) / 4),
    "another name": (block(call("c", x=1, y="two")), (A,), 0.0),
    # names 1/2, keys 1, values 2: 3.5 of 4
    "one call too many": (block(A, B), (A,), 3.5 / 4),
    # names 1/2, A whole: 0.5 + 3 of 1 + 3 + 1
    "one call missing": (block(A), (A, B), 3.5 / 5),
    # not the short cut, but every point: 1 + 3 + 1 of 5
    "another order": (block(B, A), (A, B), 1.0),
    # names: a twice on both sides; each right call gets its own: 1 + (1+0) ... best first
    "two of a name": (
        block(call("a", x=1), call("a", x=2)),
        (call("a", x=2), call("a", x=3)),
        (1 + 2 + 1) / 5,
    ),
    "no JSON": ("<tool_call>crop the left</tool_call>", (A,), 0.0),
    "nothing": ("<think>so</think><answer></answer>", (A,), 0.0),
    "no call where none is right": ("<think>so</think><answer>none</answer>", (), 1.0),
    "a call where none is right": (block(A), (), 0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", GOLDENS)
def test_scores_are_those_of_the_formula(case: str) -> None:
    text, right, expected = GOLDENS[case]
    assert score(text, *right) == pytest.approx(expected)


def test_repeating_the_right_call_does_not_pay() -> None:
    assert score(block(A, A), A) < 1.0
    assert score(block(*[A] * 100), A) == 0.0


def test_true_is_not_one() -> None:
    assert score(block(call("a", x=True, y="two")), A) == pytest.approx(3 / 4)
