"""Calls that a policy wrote: what is read, and what is said of those that cannot be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.interaction.tools import parse_calls

VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())


def test_calls_are_read_in_order() -> None:
    text = (
        'Let me look.\n<tool_call>\n{"name": "crop", "arguments": {"bbox_2d": [1, 2, 3, 4]}}\n'
        '</tool_call>\n<tool_call>{"name": "rotate"}</tool_call>'
    )
    first, second = parse_calls(text)
    assert (first.name, first.arguments) == ("crop", {"bbox_2d": [1, 2, 3, 4]})
    assert (second.name, second.arguments, second.problem) == ("rotate", {}, "")


def test_a_turn_without_calls_has_none() -> None:
    assert parse_calls("<answer>A</answer>") == ()


def test_calls_in_a_thought_are_thoughts() -> None:
    call = '<tool_call>{"name": "crop"}</tool_call>'
    assert parse_calls(f"<think>I could {call}</think><answer>A</answer>") == ()
    assert [c.name for c in parse_calls(f"<think>so</think>{call}")] == ["crop"]


PROBLEMS = {
    '<tool_call>{"name": "crop"}': "expected </tool_call>",
    "<tool_call></tool_call>": "in JSON",
    "<tool_call>{'name': 'crop'}</tool_call>": "in JSON",
    '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>': "in JSON",
    '<tool_call>{"name": "a", "arguments": {"x": -1e999}}</tool_call>': "in JSON",
    '<tool_call>{"name": "a", "arguments": {"x": ["\\ud800"]}}</tool_call>': "in JSON",
    '<tool_call>{"name": "\\udfff", "arguments": {}}</tool_call>': "in JSON",
    "<tool_call>[]</tool_call>": "expected a call {",
    '<tool_call>{"name": 3}</tool_call>': "expected a call {",
    '<tool_call>{"name": ""}</tool_call>': "expected a call {",
    '<tool_call>{"name": "a", "arguments": "x"}</tool_call>': "expected an object",
    '<tool_call>{"name": "a", "args": {}}</tool_call>': "the key 'args'",
    f"<tool_call>{'[' * 15_000}</tool_call>": "in JSON",
    f"<tool_call>{' ' * 30_000}</tool_call>": "at most 20000 characters",
    f'<tool_call>{{"name": "a", "arguments": {{"x": {"9" * 10_000}}}}}</tool_call>': "in JSON",
    "<tool_call>" * 100: "at most 64 calls",
}


@pytest.mark.parametrize("text", PROBLEMS, ids=lambda text: text[:40])
def test_what_cannot_be_read_says_what_was_expected(text: str) -> None:
    (call,) = parse_calls(text)
    assert PROBLEMS[text] in call.problem and "\n" not in call.problem


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_every_object_survives(arguments: dict[str, object]) -> None:
    text = json.dumps({"name": "f", "arguments": arguments})
    if not any(tag in text for tag in ("</tool_call>", "</think>")):  # both end what they stand in
        (call,) = parse_calls(f"<tool_call>{text}</tool_call>")
        assert call.arguments == arguments


@given(st.text(alphabet='<>/tool_call{}":name[]arguments, ', max_size=200))
def test_no_text_is_a_fault(text: str) -> None:
    parse_calls(text)
