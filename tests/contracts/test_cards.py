"""What must hold of every card, on a few rows in the layout that its data are published in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.card_examples import EXAMPLES, write_example
from helpers.contracts import require
from vlmrl import plugins
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.schema import Sample

KIND = "card"
APART = True
MAX_ROWS = 5


@pytest.fixture
def card(part: str, loaded: Any, tmp_path: Path) -> Card:
    if part in EXAMPLES:
        return plugins.build("card", part, write_example(part, tmp_path))
    options = dict(loaded.write_example(tmp_path))
    known = plugins.options_of(loaded)
    missing = [name for name, option in known.items() if option.required and name not in options]
    sentence = f"define write_example(folder): write some rows, return the options {missing}"
    require(not missing, part, sentence)
    return plugins.build("card", part, options)


def test_it_is_a_card_that_says_what_it_reads(part: str, loaded: Any) -> None:
    require(issubclass(loaded, Card), part, "derive it from vlmrl.data.card.Card")
    for method in ("rows", "to_sample"):
        defined = getattr(loaded, method) is not getattr(Card, method)
        require(defined, part, f"define the method {method}, as the base class says")
    require(loaded.origin, part, "say in `origin` where the data come from: an address or a paper")
    unknown = sorted({*loaded.verifiers} - {*plugins.names("verifier")})
    require(not unknown, part, f"`verifiers` names {unknown}, which `vlmrl list verifiers` has not")


def test_its_rows_become_samples(part: str, loaded: Any, card: Card) -> None:
    found = [split for split in loaded.splits if _rows(card, split)]
    require(found, part, f"none of the splits {loaded.splits} of the example has rows")
    judges = [plugins.load("verifier", name) for name in loaded.verifiers]
    needs = {need for judge in judges for need in judge.needs}
    for split in found:
        rows = card.rows(split)
        rows = [rows[i] for i in range(min(len(rows), MAX_ROWS))]
        samples = [card.to_sample(row, "source") for row in rows]
        for sample in samples:
            require(isinstance(sample, Sample), part, f"to_sample returns a Sample, not {sample!r}")
            require(sample.source == "source", part, "give the sample the source it is read for")
            require(sample.text.strip(), part, "a sample asks something: its text is empty")
            _require_inside(part, sample)
            stated = any(sample.truth.value(need) is not None for need in needs)
            of_turns = any(judge.laws.of_turns for judge in judges)
            judged = stated or of_turns or sample.truth.none or not loaded.verifiers
            require(judged, part, f"none of {loaded.verifiers} can judge the truth {sample.truth}")
            kinds = {medium.kind for medium in sample.media}
            fits = not loaded.media or kinds == {*loaded.media}
            require(fits, part, f"`media` says {loaded.media}, a sample has {sorted(kinds)}")
        ids = [sample.id for sample in samples]
        require(len({*ids}) == len(ids), part, f"each sample has an id of its own, got {ids}")
        again = [card.to_sample(row, "source") for row in rows]
        require([s.id for s in again] == ids, part, "the same row gives the same id")
        require([s.truth for s in again] == [s.truth for s in samples], part, "and the same truth")


def test_a_split_that_does_not_exist_is_refused_by_name(part: str, card: Card) -> None:
    try:
        rows = card.rows("no such split")
    except UserError as error:
        require("no such split" in str(error), part, f"name the split in the error, got {error}")
    else:
        require(not rows or _reads_one_file(card), part, "raise UserError for an unknown split")


def _reads_one_file(card: Card) -> bool:
    """Whether the path is a file: it is then the only split, whatever it is called."""
    return Path(str(getattr(card, "path", ""))).is_file()


def _rows(card: Card, split: str) -> int:
    try:
        return len(card.rows(split))
    except UserError:
        return 0


def _require_inside(part: str, sample: Sample) -> None:
    truth = sample.truth
    boxes = [*(truth.boxes or ()), *(truth.track.boxes if truth.track else ())]
    shares = [n for box in boxes for n in box.xyxy]
    shares += [n for point in truth.points or () for n in (point.x, point.y)]
    unit = "convert places to the unit square of the original media (vlmrl.answers.geometry)"
    require(all(0 <= n <= 1 for n in shares), part, f"{unit}, got {shares}")
    for span in truth.spans or ():
        require(0 <= span.start <= span.end, part, f"spans are in seconds, in order, got {span}")
