"""The turns before a question, as rows state them."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from vlmrl.config import SourceConfig
from vlmrl.data.cards.conversation import place_media, read_history
from vlmrl.data.source import open_source
from vlmrl.errors import UserError
from vlmrl.schema import Media, Turn

A, B = (Media("image", path=f"/data/{name}.png") for name in "ab")
HISTORY = [
    {"role": "user", "content": "<image> What is this?", "images": ["a.png"]},
    {"role": "assistant", "content": "A cat."},
]
TURNS = (Turn("user", (A, "What is this?")), Turn("assistant", ("A cat.",)))


def test_history_is_read_from_a_list_and_from_its_json_text():
    assert read_history(HISTORY, "/data") == TURNS
    assert read_history(json.dumps(HISTORY), "/data") == TURNS
    assert read_history(None, "/data") == read_history([], "/data") == ()


def test_media_stand_at_their_marks_or_first():
    sound = Media("audio", path="/data/a.wav")
    assert place_media("Is <image> like <image>?", (A, B)) == ("Is", A, "like", B, "?")
    assert place_media("<audio>\n<image>", (A, sound)) == (sound, A)
    assert place_media("Look.", (A, sound)) == (A, sound, "Look.")
    with pytest.raises(UserError, match="got 1 <image> for 2"):
        place_media("<image>?", (A, B))


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ("hello", "turn 1: expected an object with role and content"),
        ({"role": "system", "content": "x"}, "turn 1: role: expected user or assistant.*`system`"),
        ({"role": "user", "content": 3}, "turn 1: content: expected a text, got 3"),
        ({"role": "user", "content": " "}, "turn 1: content: the turn is empty"),
        ({"role": "user", "content": "x", "image": "a"}, "turn 1: expected the keys.*got 'image'"),
        ({"role": "user", "content": "x <image>"}, "turn 1: .*got 1 <image> for 0"),
    ],
)
def test_a_bad_turn_is_named(turn, message):
    with pytest.raises(UserError, match=f"history, {message}"):
        read_history([turn], "")


@pytest.mark.parametrize("card", ["table", "records"])
def test_cards_read_system_and_history(tmp_path, card):
    Image.new("RGB", (100, 50)).save(tmp_path / "a.png")
    row = {"id": "r", "question": "And what else?", "answer": "a dog"}
    rows = [row | {"system": "Be brief.", "history": HISTORY}, row]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    options = {"path": str(path)}
    if card == "table":
        options["columns"] = {key: key for key in (*row, "system", "history")}
    source = open_source(SourceConfig(card=card, options=options))

    sample, plain = source.sample(0), source.sample(1)

    image = Media("image", path=str(tmp_path / "a.png"))
    assert sample.system == "Be brief." and sample.media == (image,)
    assert sample.history == (Turn("user", (image, "What is this?")), TURNS[1])
    assert sample.conversation.splitlines() == [
        "system: Be brief.",
        "user: What is this?",
        "assistant: A cat.",
        "user: And what else?",
    ]
    assert (plain.system, plain.history, plain.conversation) == ("", (), plain.text)
