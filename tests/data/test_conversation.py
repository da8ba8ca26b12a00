"""The turns before a question, as rows state them."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from vlmrl.config import Config, SourceConfig
from vlmrl.data.row_forms import place_media, read_history
from vlmrl.data.source import open_configured, open_source
from vlmrl.errors import UserError
from vlmrl.features.check.data_check import check_and_print, explain
from vlmrl.features.check.doctor_data import sources
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


def records(folder, **fields):
    Image.new("RGB", (100, 50)).save(folder / "a.png")
    row = {"images": ["a.png"], "question": "What is it?", "answer": "a dog"}
    rows = [row | {"id": f"r{number}"} for number in range(3)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {"data": {"train": [{"card": str(folder), **fields}], "system": "Be brief."}}
    settings = Config.model_validate(config | {"model": {"build": {}}, "rewards": ["exact"]})
    return open_configured(settings, settings.data.train[0])


def test_examples_are_the_rows_of_a_split_but_for_the_row_itself(tmp_path):
    source = records(tmp_path, few_shot="train[:2]")
    shown = [[example.id for example in source.sample(i).examples] for i in range(3)]
    assert shown == [["r1"], ["r0"], ["r0", "r1"]]
    assert source.sample(2).system == "Be brief." and len(source.sample(2).media) == 3


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("train[:0]", r"few_shot 'train\[:0\]': split .*: expected start < stop, got no row"),
        ("train[7:]", r"few_shot 'train\[7:\]': expected 1 to 8 rows, got 0"),
        ("demos", "no file for split 'demos'"),
    ],
)
def test_a_bad_split_of_examples_is_an_error_at_once(tmp_path, split, message):
    with pytest.raises(UserError, match=message):
        records(tmp_path, few_shot=split)


def test_turns_are_counted_and_explained(tmp_path, capsys):
    source = records(tmp_path, few_shot="train[1:2]")
    assert check_and_print([source]) == 0
    assert "turns before the question: 3 rows, up to 3 turns" in capsys.readouterr().out
    lines = explain(source, 0).splitlines()
    assert [line.split()[0] for line in lines[:8]] == (
        ["rows", "sample", "system", "example", "image", "text", "turn", "image"]
    )
    (finding,) = sources([source])
    assert "before the question: a system turn, 1 examples" in finding.text
