"""Rows with odd values in every column, and what the loader and `data check` make of them."""

from __future__ import annotations

import functools
import json
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from helpers import small
from vlmrl.assemble.prompts import build_prompt_maker
from vlmrl.data.card import select
from vlmrl.data.loader import Loader, Make
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.source import Source, open_card
from vlmrl.data.typed_rows import COLUMNS
from vlmrl.features.check.contact_sheet import ContactSheet
from vlmrl.features.check.data_check import check_and_print
from vlmrl.media.access import Access

Row = dict[str, Any]

BROKEN_URI = "data:image/png;base64," + "A" * 100_001
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    7,
    10**400,
    -(10**400),
    2**63,
    2**64,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    " ",
    "a.png",
    "b.png",
    "a\0b.png",
    "\0",
    "\ud800.png",
    "\udfff",
    "x" * 256,
    "x" * 5000,
    "x/" * 3000,
    "..",
    "../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "/",
    ".",
    "~",
    "text.txt",
    "broken.png",
    "file:///a.png",
    "http://127.0.0.1:1/a.png",
    "http://[::1",
    "http://\ud800",
    "https://\0",
    "data:",
    "data:,",
    "data:image/png;base64,é",
    BROKEN_URI,
    "iVBORw0KGgo=",
    "/9j/é",
    "R0lGOD",
    "<image>",
    "<image><image>",
    "<video>",
    "<audio>",
    "[",
    "{",
    "]",
    "[]",
    "{}",
    "[[1, 2, 3, 4]]",
    "[1e999]",
    "NaN",
    "9" * 500,
    "-" + "9" * 500,
    "[" * 2000,
    "\n\r\t",
    "\u202e\u2028",
    "<|im_start|>",
    "<|image_pad|>" * 3,
    "{question}",
    "A",
    "(A) cat (B) dog",
    "none",
    [],
    [[]],
    [[[]]],
    {},
    [None],
    [{}],
    [1, 2],
    [[1, 2]],
    [1, 2, 3, 4],
    [[1, 2, 3, 4]],
    [[4, 3, 2, 1]],
    [[10**400] * 4],
    [10**400, 1],
    [[float("nan")] * 4],
    ["a", "b"],
    ["\ud800"],
    ["\0"],
    [["a.png"]],
    ["a.png", "a\0.png"],
    {"path": "\0"},
    {"bytes": "\ud800", "path": 7},
    {"path": "a.png", "start": -1},
    {"path": "a.png", "start": "\0", "end": 10**400},
    {"a": {"a": {"a": []}}},
    [{"box": [1, 2, 3, 10**400]}],
    [{"point": [10**400, 0]}],
    [{"label": "\ud800", "box": [0, 0, 1, 1]}],
    {"role": "user"},
    [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "\0"}],
    [{"role": "user", "content": "<image>", "images": ["\0"]}],
    {"k" * 300: 10**400},
    {"\ud800": "\0"},
)
"""Values that some column has, or that no column should have."""
RECORDS = (
    *"id task images videos audios question answer tags boxes labels count width height".split(),
    *"image_index span spans options choices problem_type system history meta".split(),
    *("\ud800", ""),
)
TYPED = tuple(
    key for key in COLUMNS if key != "rewards"
)  # verifiers are checked before any row is read
CARDS = {"records": RECORDS, "table": (*TYPED, "<info>")}

values = st.recursive(
    st.sampled_from(ODD)
    | st.text(st.characters(exclude_categories=()), max_size=12)
    | st.integers()
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def changes(card: str) -> st.SearchStrategy[Row]:
    """What makes a good row of a card odd: values by column."""
    return st.dictionaries(st.sampled_from(CARDS[card]), values, min_size=1, max_size=3)


def drawn(card: str, rng: random.Random) -> Row:
    """The same without hypothesis, for many rows."""
    columns = rng.sample(CARDS[card], rng.randint(1, 3))
    return {column: _value(rng, 3) for column in columns}


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if kind < 0.7 or not depth:
        return rng.choice(ODD)
    if kind < 0.8:
        return "".join(
            chr(rng.choice((rng.randrange(0x110000), rng.randrange(128)))) for _ in "text"
        )
    if kind < 0.95:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(5))]
    return {rng.choice(string.printable): _value(rng, depth - 1) for _ in range(2)}


def write_media(folder: Path) -> None:
    """Two images, one that is cut, and a text."""
    noise = np.random.default_rng(0).integers(0, 255, (28, 56, 3), np.uint8)
    for name in ("a.png", "b.png"):
        Image.fromarray(noise).save(folder / name)
    (folder / "broken.png").write_bytes((folder / "a.png").read_bytes()[:50])
    (folder / "text.txt").write_text("no image")


def source_of(folder: Path, card: str, odd: Sequence[Row]) -> Source:
    """A source of odd rows, with a plain one before and behind them."""
    good: Mapping[str, Row] = {
        "records": {"question": "Which?", "answer": "it", "images": ["a.png"]},
        "table": {"question": "Which?", "answer": "it", "image": "a.png"},
    }
    first = dict.fromkeys(CARDS[card]) if card == "table" else {}  # a mapped column must occur
    rows = [
        {**(first if n == 0 else {}), "id": f"row-{n}", **good[card], **row}
        for n, row in enumerate([{}, *odd, {}])
    ]
    file = folder / f"{card}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options: Row = {"path": str(file)}
    if card == "table":
        options |= {"columns": {key: key for key in CARDS[card]}, "box_space": "pixel"}
    read = open_card(card, options)
    return Source(card, read, "train", select(read, "train"), access=Access(str(folder)))


@functools.cache
def make() -> Make:
    """A maker of prompts of a small model."""
    return build_prompt_maker(small.policy(), {}, {})


def loaded_rows(source: Source, workers: int) -> tuple[set[int], dict[int, str]]:
    """Rows of which a loader made prompts over two epochs or more, and the reasons of the others."""
    count = len(source.rows)
    quarantine, good = Quarantine(), set()
    with Loader(
        [source], make(), count, quarantine=quarantine, quarantine_limit=1, workers=workers
    ) as loader:
        while len(good) + len(quarantine.rows(source)) < count:
            good |= {prompt.place[1] for prompt in loader.next().prompts if prompt.place}
    return good, dict(quarantine.reasons(source))


def checked_rows(source: Source, folder: Path) -> dict[int, str | None]:
    """By row what `data check` says: the reason of a bad row, None of a good one."""
    sheet, lines = ContactSheet(), []
    out = folder / "check.jsonl"
    check_and_print([source], out, make(), sheet.add, lines.append)
    sheet.write(folder / "rows.html", lines)
    return dict(enumerate(json.loads(line)["reason"] for line in out.read_text().splitlines()))


def account(source: Source, folder: Path, workers: Sequence[int]) -> tuple[int, int]:
    """Run loaders and `data check` over a source; return how many rows are good and bad.

    All must say the same of every row.
    """
    source.card.corpus()
    select(source.card, "train[:50%]")
    checked = checked_rows(source, folder)
    assert checked.keys() == set(range(len(source.rows)))
    bad = {row: reason for row, reason in checked.items() if reason is not None}
    for number in workers:
        good, refused = loaded_rows(source, number)
        assert good == checked.keys() - bad.keys(), number
        assert refused == bad, number
    assert all(bad.values())
    return len(checked) - len(bad), len(bad)
