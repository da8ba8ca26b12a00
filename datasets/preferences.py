"""Read pairs of answers and ask which one is better, to train and to measure a model that judges.

In a config:

    card: preferences
    options: {path: data/preferences}
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl.data.cards import demonstrations
from vlmrl.data.cards.card import Card
from vlmrl.data.cards.conversation import place_media
from vlmrl.data.cards.preference_pairs import PreferencePair, check_columns, read_pair
from vlmrl.data.files.hub_download import locate
from vlmrl.data.files.opening import open_rows
from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.schema import Demo, Media, MediaKind, Sample, Truth

PROMPT = (
    "Two answers to one question follow. Compare them: which one is better? There is no tie. "
    "Answer 1 or 2.\n\n"
    "Question:\n{question}\n\nAnswer 1:\n{first}\n\nAnswer 2:\n{second}"
)
FIELDS = ("question", "first", "second")
KINDS: tuple[MediaKind, ...] = ("image", "video", "audio")
_FIELD = re.compile(r"\{(question|first|second)\}")


@dataclass(frozen=True)
class Preferences(Card):
    """Which of two answers is better? The truth is `1` or `2`.

    Known by their keys, which need no `columns`: `chosen` and `rejected` beside `question`, `prompt`,
    `query`, `problem` or `conversations` (TRL, RLAIF-V, MM-RLHF, LLaMA-Factory), or with the question
    as their own first turns; `messages` and `rejected_response` (ms-swift); `query`, `response` and
    `human_ranking` (VL-RewardBench); `Text`, `Output1`, `Output2` and `Better` (Multimodal
    RewardBench). Equal answers and ties are bad rows.
    """

    origin: ClassVar[str] = "a preference set of yours, or a published one"
    licence: ClassVar[str] = "see the data's own page"
    verifiers: ClassVar[tuple[str, ...]] = ("exact", "format")

    path: str
    """A file or folder, or `hf://datasets/owner/name` of the Hugging Face hub."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our key -> your column: `question`; `image`, `video`, `audio` (one or a list); `id`; and `better` and
    `worse`, or `first`, `second` and `preferred` (1 or 2, A or B, first or second, or that column's
    name). Empty: known by the keys."""
    order: Literal["drawn", "better_first", "better_second"] = "drawn"
    """Which answer is shown as the first. drawn: either, by `seed` and the row's texts, so that the place
    says nothing. The other two, each in a source of its own, measure how much the place counts."""
    seed: int = 0
    """Seed of the order."""
    prompt: str = PROMPT
    """What is asked, with `{question}`, `{first}` and `{second}`."""
    root: str | None = None
    """Folder of relative media paths; absent: that of the data."""

    def __post_init__(self) -> None:
        check_columns(self.columns)
        if sorted(_FIELD.findall(self.prompt)) != sorted(FIELDS):
            raise ValueError("prompt: expected {question}, {first} and {second}, each once")

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a split, a pair each."""
        return open_rows(locate(self.path), split)

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one pair into a question."""
        pair = read_pair(row, self.columns)
        name = row.get(self.columns.get("id", "id"))
        right = "1" if self._shows_better_first(pair) else "2"
        where = str(row.get(WHERE, ""))
        return Sample(
            id=where if name is None else str(name),
            source=source,
            parts=self._parts(pair, right),
            truth=Truth(text=(right,)),
            demo=Demo(text=right),
            meta={"where": where},
        )

    def media_root(self) -> str:
        """Return `root`, or the folder of the data."""
        if self.root is not None:
            return self.root
        path = locate(self.path)
        return str(path if path.is_dir() else path.parent)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the first medium, if it is a path, else the question: its pairs stay together."""
        pair = read_pair(row, self.columns)
        values = [value for kind in KINDS for value in pair.media.get(kind, ())]
        return values[0] if values and isinstance(values[0], str) else pair.question

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        return demonstrations.corpus(self, self.rows("train"))

    def _shows_better_first(self, pair: PreferencePair) -> bool:
        if self.order != "drawn":
            return self.order == "better_first"
        texts = json.dumps([self.seed, pair.question, pair.better, pair.worse])
        return random.Random(texts).random() < 0.5

    def _parts(self, pair: PreferencePair, right: str) -> tuple[str | Media, ...]:
        """Return the prompt; the question's media stand where it says, and first where it does not."""
        media = [
            reference(value, self.media_root(), kind)
            for kind in KINDS
            for value in pair.media.get(kind, ())
        ]
        try:
            asked = list(place_media(pair.question, media))
        except UserError as error:
            raise UserError(f"the question: {error}") from error
        leading = 0
        while leading < len(asked) and isinstance(asked[leading], Media):
            leading += 1
        shown = (pair.better, pair.worse) if right == "1" else (pair.worse, pair.better)
        texts = {"first": shown[0].strip(), "second": shown[1].strip()}
        pieces: list[str | Media] = asked[:leading]
        for number, piece in enumerate(_FIELD.split(self.prompt)):  # text and names in turn
            written = asked[leading:] if piece == "question" else [texts.get(piece, piece)]
            for part in written if number % 2 else [piece]:
                if pieces and isinstance(pieces[-1], str) and isinstance(part, str):
                    pieces[-1] += part
                else:
                    pieces.append(part)
        return tuple(pieces)

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write two pairs as TRL has them; return the options that read them."""
        rows = [
            {"prompt": f"What is {n} and {n}?", "chosen": f"{2 * n}", "rejected": f"{2 * n + 1}"}
            for n in (1, 2)
        ]
        file = folder / "train.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return {"path": str(folder)}
