"""What must hold of every layout, on the drawn images written in it: recognised alone, truths equal."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.contracts import require
from helpers.drawn import Written
from vlmrl import plugins
from vlmrl.config import SourceConfig
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.data.layout_recognition import matches
from vlmrl.data.source import Source, open_source
from vlmrl.data.typed_rows import KEYS
from vlmrl.errors import UserError
from vlmrl.media.decode import decode
from vlmrl.schema import Truth
from vlmrl.truths.json_form import to_json

KIND = "layout"
APART = True


@pytest.fixture
def written(part: str, loaded: Any, tmp_path: Path) -> Written:
    if part not in plugins.shipped(KIND):  # a layout of the user's own
        return Written(*loaded.write_example(tmp_path))
    return importlib.import_module(f"helpers.layout_writers.{part}").write(tmp_path)


def test_it_is_a_layout_that_says_what_it_reads(part: str, loaded: Any) -> None:
    require(issubclass(loaded, Layout), part, "derive it from vlmrl.data.layout.Layout")
    require(loaded.title, part, "say in `title` what people call the layout")
    require(loaded.origin, part, "say in `origin` where the layout is described")
    unknown = sorted({*loaded.fields} - {*KEYS})
    require(not unknown, part, f"`fields` names {unknown}, which are no keys of a typed row")
    judges = sorted({*loaded.verifiers} - {*plugins.names("verifier")})
    require(not judges, part, f"`verifiers` names {judges}, which `vlmrl list verifiers` has not")
    strangers = sorted({*loaded.narrows} - {*plugins.names("layout")})
    require(not strangers, part, f"`narrows` names {strangers}, which `vlmrl list layouts` has not")
    required = [k for k, option in plugins.options_of(loaded).items() if option.required]
    require(
        not required, part, f"give {required} a default: a layout is recognised without options"
    )


def test_it_is_recognised_alone(part: str, written: Written) -> None:
    place = DataPlace(Path(written.options["path"]))
    if part not in plugins.shipped(KIND):
        found = {part: plugins.build("layout", part).recognise(place)}
    else:
        found = {match.name: match.reason for match in matches(place)}
    require([*found] == [part], part, f"recognise what you write, and you alone; got {found}")
    require("\n" not in (found[part] or "\n"), part, "say in one line why it is this layout")


def test_nothing_else_is_recognised_as_it(part: str, loaded: Any, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "object.json").write_text("{}")
    (tmp_path / "broken.json").write_text("[{")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path, *tmp_path.iterdir()):
        require(loaded().recognise(DataPlace(path)) is None, part, f"do not recognise {path.name}")


def test_its_rows_become_samples_with_the_truths_that_were_written(
    part: str, written: Written
) -> None:
    source = opened(part, written)
    samples = [source.sample(index) for index in range(len(source.rows))]
    found = [stated(sample.truth) for sample in samples]
    require(found == [stated(t) for t in written.truths], part, f"read the truths, got {found}")
    require(len({s.id for s in samples}) == len(samples), part, "give each row an id of its own")
    for sample in samples:
        require(sample.text.strip(), part, "ask something: a sample's text is empty")
        media = decode(sample, source.access, source.reading)
        require(len(media) == len(sample.media), part, "refer to media that can be read")
    require(len(written.options) <= 4, part, "a config of at most six lines reads it")


def test_a_bad_row_is_one_line_with_file_row_and_key(
    part: str, written: Written, tmp_path: Path
) -> None:
    if part not in plugins.shipped(KIND):
        pytest.skip("a layout of the user's own has no writer of bad rows")
    message = importlib.import_module(f"helpers.layout_writers.{part}").spoil(tmp_path)
    source = opened(part, written)
    errors = [error for index in range(len(source.rows)) if (error := reason(source, index))]
    require(len(errors) == 1, part, f"refuse the spoilt row and no other, got {errors}")
    require("\n" not in errors[0], part, f"say it in one line, got {errors[0]!r}")
    require(re.search(message, errors[0]), part, f"expected {message}, got {errors[0]}")


def test_a_split_that_does_not_exist_is_refused_by_name(part: str, written: Written) -> None:
    with pytest.raises(UserError, match="no such split"):
        opened(part, written, "no such split")


def stated(truth: Truth) -> Any:
    """What a truth states, to nine digits: percent of an image are not exact."""
    text = json.dumps(to_json(truth.stated()))
    return json.loads(text, parse_float=lambda number: round(float(number), 9))


def opened(part: str, written: Written, split: str | None = None) -> Source:
    """The rows that a writer wrote, read by the card `auto`."""
    options = (
        written.options if part in plugins.shipped(KIND) else {**written.options, "layout": part}
    )
    place = DataPlace(Path(options["path"]))
    split = split or plugins.build("layout", part).splits(place)[0]
    return open_source(SourceConfig(card="auto", options=options, split=split))


def reason(source: Source, index: int) -> str | None:
    """Why a row is bad; None: it is not."""
    try:
        decode(source.sample(index), source.access, source.reading)
    except UserError as error:
        return str(error)
    return None
