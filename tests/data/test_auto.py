"""Data recognised by themselves: who reads a path, what is said where it is unclear, what is shown."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.drawn import IMAGES, draw
from vlmrl import plugins
from vlmrl.data.layout import DataPlace
from vlmrl.data.source import open_card, open_target
from vlmrl.errors import UserError
from vlmrl.features.check.data_check import explain
from vlmrl.schema import Box, Truth
from vlmrl.truths.drawn import draw_places


def rows(folder: Path, *rows: dict[str, Any], name: str = "train.jsonl") -> str:
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(folder / name)


@pytest.mark.parametrize(
    ("row", "options", "card"),
    [
        ({"messages": [{"role": "user", "content": "?"}], "answer": "a"}, {}, "Auto"),
        ({"id": "1", "task": "t", "question": "?", "answer": "a", "images": []}, {}, "Records"),
        ({"q": "?", "a": "b"}, {"columns": {"question": "q", "answer": "a"}}, "Table"),
        ({"prompt": "?", "solution": "a"}, {"columns": {"question": "prompt"}}, "Table"),
        ({"prompt": "?", "solution": "a"}, {}, "Auto"),
    ],
)
def test_a_path_is_read_by_the_card_that_fits(
    tmp_path: Path, row: dict[str, Any], options: dict[str, Any], card: str
) -> None:
    assert type(open_card(rows(tmp_path, row), options)).__name__ == card


def test_the_verifiers_that_fit_are_those_of_the_layout(tmp_path: Path) -> None:
    card = open_card("auto", {"path": str(tmp_path), "layout": "yolo"})
    assert card.fitting_verifiers() == plugins.load("layout", "yolo").verifiers


def test_what_no_layout_fits_is_said_with_what_was_seen(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="no layout fits: its rows have the keys a, b; write layout: "
    ):
        open_target(rows(tmp_path, {"a": 1, "b": 2}))
    (tmp_path / "object.json").write_text('{"things": []}')
    with pytest.raises(UserError, match="no layout fits: it is one object with the keys things"):
        open_target(str(tmp_path / "object.json"))
    with pytest.raises(UserError, match="no such file or folder"):
        open_target("auto", {"path": str(tmp_path / "absent.json")})


def test_two_layouts_that_fit_are_both_named(tmp_path: Path) -> None:
    both = {"messages": [{"role": "user", "content": "?"}], "problem": "?", "answer": "a"}
    path = rows(tmp_path, both)
    expected = r"more than one layout fits: easyr1 \(.*\); messages \(.*\); write layout: easyr1"
    with pytest.raises(UserError, match=expected):
        open_target(path)
    assert open_target(path, {"layout": "messages"}).sample(0).text == "?"
    with pytest.raises(UserError, match="layout 'messages' has no option 'task'"):
        open_target(path, {"layout": "messages", "task": "detection"})


def test_boxes_without_a_space_are_never_guessed(tmp_path: Path) -> None:
    draw(tmp_path)
    turns = [
        {"role": "user", "content": "<image>Where is the disc?"},
        {"role": "assistant", "content": json.dumps(IMAGES[0].boxes)},
    ]
    path = rows(tmp_path, {"messages": turns, "images": ["a.png"]})
    with pytest.raises(UserError, match=r"jsonl:1: column 'messages': .*state box_space"):
        open_target(path).sample(0)
    sample = open_target(path, {"box_space": "pixel"}).sample(0)
    assert sample.truth.boxes == (Box(4 / 64, 6 / 48, 30 / 64, 40 / 48),)


def test_a_chat_keeps_its_system_turn_and_its_history(tmp_path: Path) -> None:
    written = importlib.import_module("helpers.layout_writers.messages").write(tmp_path)
    sample = open_target("auto", written.options).sample(1)
    assert sample.system == "Be brief."
    assert [(turn.role, turn.parts) for turn in sample.history] == [
        ("user", ("Hello",)),
        ("assistant", ("Hello",)),
    ]
    assert sample.demo is not None and sample.demo.thought == "I look."


@pytest.mark.parametrize("name", plugins.names("layout"))
def test_a_layout_is_explained_with_its_reason_its_prompt_and_its_truth(
    tmp_path: Path, name: str
) -> None:
    written = importlib.import_module(f"helpers.layout_writers.{name}").write(tmp_path)
    layout = plugins.build("layout", name)
    split = layout.splits(DataPlace(Path(written.options["path"])))[0]
    out = explain(open_target(f"auto:{split}", written.options), 0)
    assert out.startswith(f"data      layout {name} (")
    assert "\nrows " in out and "\nappended " in out and "\ntruth " in out


def test_the_truth_is_drawn_where_it_is(tmp_path: Path) -> None:
    image = Image.new("RGB", (100, 80), (0, 0, 0))
    drawn, count = draw_places(image, Truth(boxes=(Box(0.1, 0.1, 0.9, 0.9),), none=False))
    assert count == 1 and image.getpixel((10, 40)) == (0, 0, 0)
    assert drawn.getpixel((10, 40)) == drawn.getpixel((90, 40)) == (0, 170, 60)
    assert drawn.getpixel((50, 40)) == (0, 0, 0)
