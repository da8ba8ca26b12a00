"""VLMEvalKit's TSV: an image as base64, a question, options in columns A to J, and the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data import multiple_choice
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.row_forms import read_reply

LETTERS = "ABCDEFGHIJ"
_TEXT = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_LIST = re.compile(r"""\[\s*(?:'[^']*'|"[^"]*")(?:\s*,\s*(?:'[^']*'|"[^"]*"))*\s*\]""")
"""A list of images in a cell, as Python or JSON writes it; base64 may be of any length."""


@dataclass(frozen=True)
class Vlmevalkit(Layout):
    """Rows of a benchmark: `index`, `image` or `image_path`, `question`, `hint`, A to J, `answer`.

    A row without `answer` is refused, as test splits without answers cannot be trained on. `image`
    may hold a list of several, and in place of its base64 the `index` of the row that has it.

    Source: VLMEvalKit, docs/en/Development.md.
    """

    title: ClassVar[str] = "VLMEvalKit TSV"
    origin: ClassVar[str] = "VLMEvalKit, Duan et al. 2024, arXiv 2407.11691"
    fields: ClassVar[Mapping[str, str]] = {
        "id": "index",
        "image": "image or image_path",
        "question": "hint, question and A to J",
        "answer": "answer",
        "choice": "answer",
        "options": "A to J",
        "number": "answer",
        "meta": "category, l2-category, split",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds a benchmark of VLMEvalKit."""
        shown = place.has_keys("image") or place.has_keys("image_path")
        if not place.has_keys("index", "question", "answer") or not shown:
            return None
        return "rows have `index`, an image, `question` and `answer`"

    def read(self, row: Mapping[str, object], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        question = row.get("question")
        if not isinstance(question, str):
            raise UserError(f"key 'question': expected a text, got {question!r:.60}")
        if isinstance(row.get("hint"), str):
            question = f"{row['hint']}\n{question}"
        meta = {k: row[k] for k in ("category", "l2-category", "split") if row.get(k) is not None}
        stated = {"id": row.get("index"), "image": self._images(row, place), "meta": meta}
        options = [row[letter] for letter in LETTERS if row.get(letter) is not None]
        if len(options) < 2:
            stated |= {"question": question}
            return {**stated, **read_reply(row.get("answer"), question, "answer")}
        if any(row.get(letter) is None for letter in LETTERS[: len(options)]):
            raise UserError(f"key 'A': expected options without a gap, got {len(options)} of them")
        texts = multiple_choice.options_of([str(option) for option in options])
        truth = multiple_choice.choice_truth(texts, str(row.get("answer")))
        stated |= {"question": multiple_choice.with_options(question, texts)}
        chosen = {"choice": truth.choice, "options": list(texts)}
        return {**stated, **chosen, "answer": [*(truth.text or ())]}

    def _images(self, row: Mapping[str, object], place: DataPlace) -> list[Any]:
        """Return the images of a row, which may stand in another row or in files."""
        value = row.get("image") if row.get("image") is not None else row.get("image_path")
        if isinstance(value, str) and value.startswith("["):
            if not _LIST.fullmatch(value):
                raise UserError(f"key 'image': expected a list of images, got {value!r:.60}")
            value = [quoted or other for quoted, other in _TEXT.findall(value)]
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(each, str | bytes) and each for each in values):
            raise UserError(f"key 'image': expected base64 texts or paths, got {value!r:.60}")
        texts = [str(each) if str(each).isdigit() else None for each in values]
        pairs = zip(values, texts, strict=True)
        return [value if text is None else self._elsewhere(text, place) for value, text in pairs]

    def _elsewhere(self, index: str, place: DataPlace) -> Any:
        """Return the image of the row with an index: large images are written once."""
        for split in place.splits:
            rows = place.rows(split)
            guess = int(index)
            for at in (guess, guess - 1, *range(len(rows))):
                if 0 <= at < len(rows) and str(rows[at].get("index")) == index:
                    return rows[at].get("image")
        raise UserError(f"key 'image': no row has the index {index}")
