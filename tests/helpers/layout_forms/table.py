"""The table of layouts: every form is written, recognised and read back, and the outcome is noted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from helpers.layout_forms.annotations import ANNOTATIONS, MORE_ANNOTATIONS
from helpers.layout_forms.chats import CHATS, MORE_CHATS
from helpers.layout_forms.items import Form, Item, drawn_items
from vlmrl import plugins
from vlmrl.config import SourceConfig
from vlmrl.data.layout import DataPlace
from vlmrl.data.layout_recognition import matches
from vlmrl.data.source import Source, open_source
from vlmrl.schema import Sample, Truth
from vlmrl.truths.json_form import to_json

FORMS: tuple[Form, ...] = (*CHATS, *ANNOTATIONS)
"""The twenty-seven published layouts, each in its usual form."""
VARIANTS: tuple[Form, ...] = (*MORE_CHATS, *MORE_ANNOTATIONS)
"""Other forms of them."""
MAX_LINES = 6


@dataclass(frozen=True)
class Outcome:
    """What came back of a form; `rows` have the media that were written, `lines` are those of a config."""

    form: Form
    recognised: bool
    rows: int
    of: int
    truths: bool
    prompts: bool
    lines: int

    @property
    def whole(self) -> bool:
        """Whether everything came back, with a short config."""
        return (
            self.recognised
            and self.rows == self.of
            and self.truths
            and self.prompts
            and self.lines <= MAX_LINES
        )


def try_form(form: Form, folder: Path, items: Sequence[Item] | None = None) -> Outcome:
    """Write the drawn items in a form, and read them."""
    written = form.takes(drawn_items() if items is None else items)
    options = form.write(folder, written)
    source = open_form(form, options)
    samples = [source.sample(index) for index in range(len(source.rows))]
    pairs = list(zip(samples, written, strict=False))
    found = [match.name for match in matches(DataPlace(Path(options["path"])))]
    return Outcome(
        form,
        found == [form.layout],
        sum(contents(sample) == [c for _, c in item.media] for sample, item in pairs),
        len(written),
        all(stated(s.truth) == stated(form.expected(item)) for s, item in pairs),
        all(sample.text.strip() == form.prompt(item) for sample, item in pairs),
        len(config_of(source, options).splitlines()),
    )


def open_form(form: Form, options: dict[str, Any]) -> Source:
    """Open what a form wrote, by the card `auto` and without naming the layout."""
    split = plugins.build("layout", form.layout).splits(DataPlace(Path(options["path"])))[0]
    return open_source(SourceConfig(card="auto", options=options, split=split))


def contents(sample: Sample) -> list[bytes]:
    """The files of a sample's media."""
    return [m.data if m.data is not None else Path(m.path or "").read_bytes() for m in sample.media]


def config_of(source: Source, options: dict[str, Any]) -> str:
    """The source as one writes it in a config."""
    tree: dict[str, Any] = {"card": "auto", "options": options}
    tree |= {} if source.split == "train" else {"split": source.split}
    return yaml.safe_dump([tree], width=1000)


def stated(truth: Truth) -> Any:
    """What a truth states, to nine digits: shares of an image are not exact."""
    text = json.dumps(to_json(truth.stated()))
    return json.loads(text, parse_float=lambda number: round(float(number), 9))
