"""Pairs of answers as preference sets are published, and the order in which they are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlmrl import plugins
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.schema import Media, Sample

GOOD, BAD = "A cat on a mat.", "Two dogs."
ASKED = "What is it?"
USER = {"role": "user", "content": ASKED}
REPLIES = [{"role": "assistant", "content": text} for text in (GOOD, BAD)]


def card(home: Path, rows: list[dict[str, Any]], **options: Any) -> Card:
    Image.new("RGB", (8, 8)).save(home / "a.png")
    Image.new("RGB", (8, 8)).save(home / "b.png")
    (home / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return plugins.build("card", "preferences", {"path": str(home), **options})


def read(home: Path, row: dict[str, Any], **options: Any) -> Sample:
    made = card(home, [row], **options)
    return made.to_sample(made.rows("train")[0], "s")


FORMS: dict[str, dict[str, Any]] = {
    "RLAIF-V": {"question": ASKED, "chosen": GOOD, "rejected": BAD, "image": "a.png"},
    "TRL with texts": {"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "images": ["a.png"]},
    "TRL with turns": {
        "prompt": [USER], "chosen": REPLIES[:1], "rejected": REPLIES[1:], "images": ["a.png"],
    },
    "TRL with parts": {
        "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ASKED}]}],
        "chosen": [{"role": "assistant", "content": [{"type": "text", "text": GOOD}]}],
        "rejected": [{"role": "assistant", "content": [{"type": "text", "text": BAD}]}],
        "images": ["a.png"],
    },
    "TRL without a prompt": {
        "chosen": [USER, REPLIES[0]], "rejected": [USER, REPLIES[1]], "image": "a.png",
    },
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": f"<image>{ASKED}"}],
        "chosen": {"from": "gpt", "value": GOOD}, "rejected": {"from": "gpt", "value": BAD},
        "images": ["a.png"],
    },
    "ms-swift": {
        "messages": [USER, REPLIES[0]], "rejected_response": BAD, "images": ["a.png"],
    },
    "VL-RewardBench": {
        "query": ASKED, "response": [BAD, GOOD], "human_ranking": [1, 0], "image": "a.png",
    },
    "Multimodal RewardBench": {
        "Text": ASKED, "Output1": BAD, "Output2": GOOD, "Better": "Output2", "Image": "a.png",
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("order", "right"), [("better_first", "1"), ("better_second", "2")])
def test_a_published_form_asks_which_answer_is_better(
    form: str, order: str, right: str, tmp_path: Path
) -> None:
    sample = read(tmp_path, FORMS[form], order=order)
    image, text = sample.parts
    assert isinstance(image, Media) and image.path == str(tmp_path / "a.png")
    assert isinstance(text, str)
    shown = [GOOD, BAD] if right == "1" else [BAD, GOOD]
    assert text.endswith(f"Question:\n{ASKED}\n\nAnswer 1:\n{shown[0]}\n\nAnswer 2:\n{shown[1]}")
    assert sample.truth.text == (right,)
    assert sample.demo is not None and sample.demo.text == right


@pytest.mark.parametrize(
    ("columns", "preferred"),
    [
        ({"better": "x", "worse": "y"}, None),
        *(
            ({"first": "x", "second": "y", "preferred": "p"}, p)
            for p in (1, "1", "A", "First", "x")
        ),
    ],
)
def test_columns_of_ones_own_state_the_better_answer_or_which_it_is(
    columns: dict[str, str], preferred: Any, tmp_path: Path
) -> None:
    row = {"q": ASKED, "x": GOOD, "y": BAD, "p": preferred, "file": "a.png"}
    columns = {"question": "q", "image": "file", **columns}
    sample = read(tmp_path, row, columns=columns, order="better_first")
    assert f"Answer 1:\n{GOOD}" in sample.text and sample.truth.text == ("1",)


def test_an_earlier_turn_and_several_images_stay_in_their_places(tmp_path: Path) -> None:
    row = {
        "prompt": [
            {"role": "user", "content": "Here is one: <image>"},
            {"role": "assistant", "content": "I see."},
            {"role": "user", "content": "And <image> another. Which is red?"},
        ],
        "chosen": "The second {first} <image>",
        "rejected": "Neither",
        "images": ["a.png", "b.png"],
    }
    sample = read(tmp_path, row, order="better_second")
    kinds = [part.path if isinstance(part, Media) else part for part in sample.parts]
    assert kinds[1] == str(tmp_path / "a.png") and kinds[3] == str(tmp_path / "b.png")
    assert kinds[0].endswith("Question:\nuser: Here is one:")
    assert kinds[2] == "assistant: I see.\nuser: And"
    assert kinds[4].endswith("Answer 1:\nNeither\n\nAnswer 2:\nThe second {first} <image>")


def test_the_place_of_the_better_answer_says_nothing_and_the_seed_decides_it(
    tmp_path: Path,
) -> None:
    rows = [{"prompt": "?", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(400)]
    made = {seed: card(tmp_path, rows, seed=seed) for seed in (0, 1)}
    truths = {
        seed: [one.to_sample(row, "s").truth.text for row in one.rows("train")]
        for seed, one in made.items()
    }
    for found in truths.values():
        assert 160 <= found.count(("1",)) <= 240  # 4 deviations about the half
    assert truths[0] != truths[1]
    again = card(tmp_path, rows[::-1])
    assert [again.to_sample(r, "s").truth.text for r in again.rows("train")] == truths[0][::-1]


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"chosen": GOOD, "rejected": GOOD, "prompt": "?"}, {}, "two different answers"),
        ({"chosen": GOOD, "prompt": "?"}, {}, "no pair of answers: expected the keys chosen and"),
        (
            {"chosen": GOOD, "rejected": 7, "prompt": "?"},
            {},
            "key 'rejected': expected a text, got 7",
        ),
        (
            {"query": "?", "response": [GOOD, BAD], "human_ranking": [0, 0]},
            {},
            r"'human_ranking': expected \[0, 1\] or \[1, 0\]",
        ),
        (
            {"q": "?", "x": GOOD, "y": BAD, "p": 0},
            {"columns": {"question": "q", "first": "x", "second": "y", "preferred": "p"}},
            "column 'p': expected 1 or 2",
        ),
        (
            {"prompt": "<image>?", "chosen": GOOD, "rejected": BAD},
            {},
            "the question: expected a mark",
        ),
    ],
)
def test_a_row_that_is_no_pair_is_refused_by_its_key(
    row: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        read(tmp_path, row, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": {"betters": "x"}}, "no key 'betters'.*better"),
        ({"columns": {"better": "x"}}, "expected better and worse, or first, second and preferred"),
        ({"prompt": "{question} {first}"}, "prompt: expected"),
    ],
)
def test_options_that_name_no_pair_are_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        card(tmp_path, [], **options)
