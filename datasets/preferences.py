"""Read pairs of answers and ask which one is better, to train and to measure a model that judges.

In a config:

    card: preferences
    options: {path: data/preferences}
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl.data import demonstrations
from vlmrl.data.card import Card
from vlmrl.data.files.hub_download import folder_of, locate
from vlmrl.data.files.opening import open_rows, splits
from vlmrl.data.files.rows import WHERE
from vlmrl.data.row_forms import LISTS, place_media
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.parts.layouts.row_forms import media_columns, read_turns
from vlmrl.plugins import nearest
from vlmrl.schema import Demo, Media, MediaKind, Sample, Truth

# --------------------------------------------------------------------------------------------------
# Pairs of answers of which one is better, as published preference sets state them.
#
# A form is known by its keys. Where an answer is a list of turns, its last turn is the answer; where no
# key states the question, it is what both lists of turns begin with.


KEYS = ("id", "question", "better", "worse", "first", "second", "preferred", "margin", *LISTS)
"""What a column can hold: the better and the worse answer, or two and which one is preferred."""
QUESTIONS = ("question", "prompt", "query", "problem")
"""Keys of the question beside `chosen` and `rejected`, the first that a row has being taken."""
FIRST, SECOND = ("1", "a", "first"), ("2", "b", "second")
REWARD_BENCH = {
    "question": "Text",
    "image": "Image",
    "first": "Output1",
    "second": "Output2",
    "preferred": "Better",
}
"""Our key -> column of Multimodal RewardBench (Yasunaga et al. 2025, arXiv 2502.14191)."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class PreferencePair:
    """A question, with a mark such as `<image>` where a medium belongs, its media and two answers."""

    question: str
    media: Mapping[str, list[Any]]
    """Kind -> values that `vlmrl.media.access.reference` takes."""
    better: str
    worse: str
    margin: float = field(default=0.0, kw_only=True)
    """By how much the better one is better, as its annotators say."""


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse a map of columns that names no whole pair.

    Raises:
        ValueError: an unknown key, or neither better and worse nor first, second and preferred.
    """
    for key in columns:
        if key not in KEYS:
            raise ValueError(f"columns has no key {key!r}{nearest(key, list(KEYS))}")
    mapped = {key for key in columns if key in KEYS[2:7]}
    if columns and mapped not in ({*KEYS[2:4]}, {*KEYS[4:7]}):
        raise ValueError(
            "columns: expected better and worse, or first, second and preferred, got "
            f"{', '.join(sorted(mapped)) or 'none of them'}"
        )


def read_pair(row: Row, columns: Mapping[str, str]) -> PreferencePair:
    """Return the pair of a row, by a map from our keys to its columns or, without one, by its form.

    Raises:
        UserError: a column is missing or of another kind, no form is known, or the answers are equal.
    """
    if columns:
        pair = _mapped(row, columns)
    else:
        known = (read for keys, read in FORMS.items() if all(row.get(k) is not None for k in keys))
        read = next(known, None)
        if read is None:
            forms = "; ".join(" and ".join(keys) for keys in FORMS)
            raise UserError(f"no pair of answers: expected the keys {forms}, or `columns`")
        pair = read(row)
    margin = row.get(columns.get("margin", "margin"))
    if margin is not None:
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin < inf:
            raise UserError(f"margin: expected a number from 0 on, got {margin!r:.60}")
        pair = replace(pair, margin=float(margin))
    if pair.better.strip() == pair.worse.strip():
        raise UserError(f"expected two different answers, got {pair.better!r:.60} twice")
    return pair


def _mapped(row: Row, columns: Mapping[str, str]) -> PreferencePair:
    values = {key: row.get(column) for key, column in columns.items()}
    media = media_columns({key: values[key] for key in LISTS if key in values})
    question = _text(values.get("question", ""), columns.get("question", "question"))
    if "better" in columns:
        answers = [_text(values[key], columns[key]) for key in ("better", "worse")]
        return PreferencePair(question, media, *answers)
    answers = [_text(values[key], columns[key]) for key in ("first", "second")]
    preferred = str(values["preferred"]).strip().lower()
    known = [(*FIRST, columns["first"].lower()), (*SECOND, columns["second"].lower())]
    if not any(preferred in names for names in known):
        raise UserError(
            f"column {columns['preferred']!r}: expected 1 or 2, A or B, first or second, or a column's "
            f"name, got {values['preferred']!r:.60}"
        )
    return PreferencePair(question, media, *(answers if preferred in known[0] else answers[::-1]))


def _chosen_and_rejected(row: Row) -> PreferencePair:
    """Read TRL's preference rows, RLAIF-V's, MM-RLHF's and LLaMA-Factory's."""
    better, worse = (_reply(row[key], key) for key in ("chosen", "rejected"))
    media = media_columns(row)
    asked = next((key for key in (*QUESTIONS, "conversations") if row.get(key) is not None), None)
    if asked is None:
        return PreferencePair(*_question(row["chosen"], media, "chosen"), better, worse)
    if isinstance(row[asked], str):
        return PreferencePair(row[asked], media, better, worse)
    return PreferencePair(*_question(row[asked], media, asked), better, worse)


def _swift(row: Row) -> PreferencePair:
    """Read ms-swift's rows: messages that end with the better answer, and the rejected one."""
    question, media = _question(row["messages"], media_columns(row), "messages")
    worse = _text(row["rejected_response"], "rejected_response")
    return PreferencePair(question, media, _reply(row["messages"], "messages"), worse)


def _ranked(row: Row) -> PreferencePair:
    """Read VL-RewardBench's rows (Li et al. 2024, arXiv 2411.17451): 0 is the rank of the better one."""
    ranks, answers = row["human_ranking"], row["response"]
    if [*ranks] not in ([0, 1], [1, 0]) or len(answers) != 2:
        raise UserError(f"key 'human_ranking': expected [0, 1] or [1, 0], got {ranks!r:.60}")
    texts = [_text(answer, "response") for answer in answers]
    ordered = texts if ranks[0] == 0 else texts[::-1]
    return PreferencePair(_text(row.get("query"), "query"), media_columns(row), *ordered)


FORMS: Mapping[tuple[str, ...], Callable[[Row], PreferencePair]] = {
    ("chosen", "rejected"): _chosen_and_rejected,
    ("messages", "rejected_response"): _swift,
    ("response", "human_ranking"): _ranked,
    ("Output1", "Output2", "Better"): lambda row: _mapped(row, REWARD_BENCH),
}
"""Keys that a row has -> what reads it."""


def _question(
    turns: Any, media: Mapping[str, list[Any]], key: str
) -> tuple[str, Mapping[str, list[Any]]]:
    """Return the question that turns ask, a conversation as one text, and its media by kind."""
    first = turns[0] if isinstance(turns, list) and turns else {}
    names = ("from", "value") if "from" in first else ("role", "content")
    ours, _ = read_turns(turns, media, key, *names)
    if "turns" in ours:
        raise UserError(f"key {key!r}: expected a question and answers, got calls of tools")
    kept = {kind: list(ours[kind]) for kind in LISTS if ours.get(kind)}
    history = ours["history"] or []
    if not history and not ours["system"]:
        return ours["question"], kept
    for kind, several in LISTS.items():
        earlier = [value for turn in history for value in turn.get(several, [])]
        if earlier:
            kept[kind] = earlier + kept.get(kind, [])
    lines = [f"system: {ours['system']}"] if ours["system"] else []
    lines += [f"{turn['role']}: {turn['content']}" for turn in history]
    return "\n".join([*lines, f"user: {ours['question']}"]), kept


def _reply(value: Any, key: str) -> str:
    """Return an answer: a text, a turn, or the last of a list of turns."""
    last = value[-1] if isinstance(value, list) and value else value
    if isinstance(last, Mapping):
        last = last.get("content", last.get("value"))
    if isinstance(last, list):  # parts of a chat API
        texts = [part.get("text") for part in last if isinstance(part, Mapping)]
        last = "".join(text for text in texts if isinstance(text, str))
    return _text(last, key)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"key {key!r}: expected a text, got {value!r:.60}")
    return value


# --------------------------------------------------------------------------------------------------


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
    name). Empty: known by the keys. `margin`, there or a key of that name: by how much the better answer
    is better."""
    answers: Literal["shown", "apart"] = "shown"
    """shown: the prompt asks which of both is better. apart: the prompt is the question alone, and the
    better answer its truth and demonstration, for `sft.objective: preferences`."""
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
        parts, demo = self._parts(pair, right), Demo(text=right)
        if self.answers == "apart":
            better, worse = pair.better.strip(), pair.worse.strip()
            parts = tuple(self._asked(pair))
            demo = Demo(text=better, rejected=worse, margin=pair.margin)
        where = str(row.get(WHERE, ""))
        return Sample(
            id=where if name is None else str(name),
            source=source,
            parts=parts,
            truth=Truth(text=(str(demo.text),)),
            demo=demo,
            meta={"where": where},
        )

    def splits_there(self) -> tuple[str, ...]:
        """Return the splits of the path."""
        return splits(locate(self.path))

    def media_root(self) -> str:
        """Return `root`, or the folder of the data."""
        return folder_of(self.path) if self.root is None else self.root

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

    def _asked(self, pair: PreferencePair) -> list[str | Media]:
        """Return the question; its media stand where it says, and first where it does not."""
        media = [
            reference(value, self.media_root(), kind)
            for kind in KINDS
            for value in pair.media.get(kind, ())
        ]
        try:
            return list(place_media(pair.question, media))
        except UserError as error:
            raise UserError(f"the question: {error}") from error

    def _parts(self, pair: PreferencePair, right: str) -> tuple[str | Media, ...]:
        """Return the prompt that shows both answers."""
        asked = self._asked(pair)
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
