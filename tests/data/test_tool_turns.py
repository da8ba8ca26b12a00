"""Calls and what they returned, read from rows in the forms in which chats publish them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from vlmrl import plugins
from vlmrl.config import SourceConfig
from vlmrl.data.source import open_source
from vlmrl.data.tool_turns import read_tool_turns
from vlmrl.errors import UserError
from vlmrl.schema import Demo, DemoTurn, Media

ARGUMENTS = {"bbox_2d": [0, 0, 28, 28]}
CALL = {"name": "crop", "arguments": ARGUMENTS}
WRITTEN = json.dumps(CALL)
THOUGHT = "<think>Too small.</think>"
ASKED = "<image>What is it?"
ANSWER = "<think>Seen.</think><answer>7</answer>"
CUT = "Cut:<image>"


def openai_calls(arguments: object) -> list[dict[str, object]]:
    return [{"id": "1", "type": "function", "function": {"name": "crop", "arguments": arguments}}]


def chat(*turns: tuple[str, str], keys: tuple[str, str] = ("role", "content")) -> list[object]:
    return [dict(zip(keys, turn, strict=True)) for turn in turns]


SHAREGPT = ("from", "value")
CHATS = {
    "OpenAI's, arguments as text": (
        "messages",
        [
            *chat(("user", ASKED)),
            {"role": "assistant", "content": THOUGHT, "tool_calls": openai_calls(WRITTEN[30:-1])},
            {"role": "tool", "tool_call_id": "1", "content": CUT},
            *chat(("assistant", ANSWER)),
        ],
    ),
    "OpenAI's, parts and an object": (
        "messages",
        [
            *chat(("user", ASKED)),
            {"role": "assistant", "content": THOUGHT, "tool_calls": openai_calls(ARGUMENTS)},
            {"role": "tool", "content": [{"type": "text", "text": "Cut:"}, {"type": "image"}]},
            *chat(("assistant", ANSWER)),
        ],
    ),
    "ms-swift's": (
        "messages",
        chat(
            ("user", ASKED),
            ("assistant", THOUGHT),
            ("tool_call", WRITTEN),
            ("tool_response", CUT),
            ("assistant", ANSWER),
        ),
    ),
    "ShareGPT's": (
        "conversations",
        chat(
            ("human", ASKED),
            ("function_call", f"{THOUGHT}{WRITTEN}"),
            ("observation", CUT),
            ("gpt", ANSWER),
            keys=SHAREGPT,
        ),
    ),
    "Hermes' marks, a user answers": (
        "messages",
        chat(
            ("user", ASKED),
            ("assistant", f"{THOUGHT}\n<tool_call>\n{WRITTEN}\n</tool_call>"),
            ("user", f"<tool_response>\n{CUT}\n</tool_response>"),
            ("assistant", ANSWER),
        ),
    ),
}


def save(home: Path, rows: list[dict[str, object]]) -> Path:
    for name in ("whole.png", "cut.png"):
        Image.new("RGB", (56, 56), (90, 90, 20)).save(home / name)
    (home / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return home / "train.jsonl"


def demo_of(path: Path, card: str = "auto", **options: object) -> Demo:
    source = open_source(SourceConfig(card=card, options={"path": str(path), **options}))
    demo = source.sample(0).demo
    assert demo is not None
    return demo


def expected(home: Path) -> tuple[DemoTurn, ...]:
    returned = ("Cut:", Media("image", path=str(home / "cut.png")))
    return (DemoTurn("crop", ARGUMENTS, "Too small.", returned=returned),)


@pytest.mark.parametrize("form", CHATS)
def test_a_chat_with_tools_is_a_demonstration_of_several_turns(form: str, tmp_path: Path) -> None:
    key, turns = CHATS[form]
    path = save(tmp_path, [{key: turns, "images": ["whole.png", "cut.png"]}] * 2)
    demo = demo_of(path)
    assert demo.turns == expected(tmp_path)
    assert demo.turns[0].arguments == ARGUMENTS
    assert (demo.thought, demo.answer and demo.answer.text) == ("Seen.", ("7",))


def test_a_column_of_a_table_holds_the_turns(tmp_path: Path) -> None:
    trace = [
        {"role": "assistant", "content": THOUGHT, "tool_calls": [CALL]},
        {"role": "tool", "content": CUT, "images": ["cut.png"]},
    ]
    row = {"file": "whole.png", "asked": "What is it?", "right": "7", "so": "Seen."}
    columns = {"image": "file", "question": "asked", "answer": "right", "thought": "so"}
    columns |= {"turns": "trace"}
    path = save(tmp_path, [{**row, "trace": trace}, {**row, "trace": json.dumps(trace)}, row])
    source = open_source(
        SourceConfig(card="table", options={"path": str(path), "columns": columns})
    )
    demos = [source.sample(n).demo for n in range(3)]
    assert [demo and demo.turns for demo in demos] == [expected(tmp_path)] * 2 + [()]


def test_calls_at_once_are_one_turn_and_calls_without_a_result_are_run() -> None:
    other = {"name": "zoom", "arguments": {}}
    together = DemoTurn("crop", ARGUMENTS, text="Look.", also=(("zoom", {}),), returned=("a", "b"))
    answers = [{"role": "tool", "content": text} for text in "ab"]
    for calls in (
        [{"role": "assistant", "content": "Look.", "tool_calls": [CALL, other]}],
        [
            {"role": "assistant", "content": "Look."},
            {"role": "tool_call", "content": WRITTEN},
            {"role": "tool_call", "content": json.dumps(other)},
        ],
        [
            {
                "role": "assistant",
                "content": f"Look.<tool_call>{json.dumps([CALL, other])}</tool_call>",
            }
        ],
    ):
        assert read_tool_turns([*calls, *answers], "") == (together,)
    asked = [{"role": "assistant", "tool_calls": [each]} for each in (CALL, other)]
    first, second = read_tool_turns(asked, "")
    assert (first.name, first.returned, second.name, second.returned) == (
        "crop",
        None,
        "zoom",
        None,
    )


WRONG = {
    "expected a list of messages": 7,
    "message 1: role 'tool': nothing was called before": [{"role": "tool", "content": "a"}],
    "message 1: role: expected one of": [{"role": "user", "content": "a"}],
    "message 1: expected the keys role, .*got 'cost'": [{"role": "assistant", "cost": 1}],
    "message 1: a call: not valid JSON": [{"role": "tool_call", "content": "{"}],
    "message 1: expected a call with name": [{"role": "tool_call", "content": "{}"}],
    "message 1: expected a name and an object": [
        {"role": "assistant", "tool_calls": [{"name": "crop", "arguments": "[]"}]}
    ],
    "turn 1 calls nothing and is shown nothing": [{"role": "assistant", "content": "Well."}],
    "message 2: content: the turn of a tool is empty": [
        {"role": "tool_call", "content": WRITTEN},
        {"role": "tool", "content": " "},
    ],
    "message 1: role 'assistant': expected no media": [
        {"role": "assistant", "tool_calls": [CALL], "images": ["a.png"]}
    ],
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_message_of_another_form_is_refused_by_its_number(problem: str) -> None:
    with pytest.raises(UserError, match=f"^turns.*{problem}"):
        read_tool_turns(WRONG[problem], "")


def test_calls_before_the_question_and_calls_beside_preferences_are_refused(tmp_path: Path) -> None:
    turns = [*CHATS["ms-swift's"][1], *chat(("user", "Sure?"), ("assistant", "Yes."))]
    path = save(tmp_path, [{"messages": turns, "images": ["whole.png", "cut.png"]}] * 2)
    with pytest.raises(UserError, match="expected calls of tools after the last question alone"):
        demo_of(path)
    row = {"messages": CHATS["ms-swift's"][1], "rejected_response": "8"}
    card = plugins.build("card", "preferences", {"path": str(path)})
    with pytest.raises(UserError, match="got calls of tools"):
        card.to_sample({**row, "images": ["whole.png", "cut.png"]}, "pairs")
