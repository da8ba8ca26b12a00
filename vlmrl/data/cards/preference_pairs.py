"""Pairs of answers of which one is better, as published preference sets state them.

A form is known by its keys. Where an answer is a list of turns, its last turn is the answer; where no
key states the question, it is what both lists of turns begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlmrl.data.layouts.conversations import read_turns
from vlmrl.data.layouts.media_columns import COLUMNS, media_columns
from vlmrl.errors import UserError
from vlmrl.plugins import nearest

__all__ = ["KEYS", "PreferencePair", "check_columns", "read_pair"]

KEYS = ("id", "question", "better", "worse", "first", "second", "preferred", *COLUMNS)
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


def check_columns(columns: Mapping[str, str]) -> None:
    """Refuse a map of columns that names no whole pair.

    Raises:
        ValueError: an unknown key, or neither better and worse nor first, second and preferred.
    """
    for key in columns:
        if key not in KEYS:
            raise ValueError(f"columns has no key {key!r}{nearest(key, list(KEYS))}")
    given = {key for key in columns if key in KEYS[2:7]}
    if columns and given not in ({*KEYS[2:4]}, {*KEYS[4:7]}):
        raise ValueError(
            "columns: expected better and worse, or first, second and preferred, got "
            f"{', '.join(sorted(given)) or 'none of them'}"
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
    if pair.better.strip() == pair.worse.strip():
        raise UserError(f"expected two different answers, got {pair.better!r:.60} twice")
    return pair


def _mapped(row: Row, columns: Mapping[str, str]) -> PreferencePair:
    values = {key: row.get(column) for key, column in columns.items()}
    media = media_columns({key: values[key] for key in COLUMNS if key in values})
    question = _text(values.get("question", ""), columns.get("question", "question"))
    if "better" in columns:
        answers = [_text(values[key], columns[key]) for key in ("better", "worse")]
        return PreferencePair(question, media, *answers)
    answers = [_text(values[key], columns[key]) for key in ("first", "second")]
    said = str(values["preferred"]).strip().lower()
    known = [(*FIRST, columns["first"].lower()), (*SECOND, columns["second"].lower())]
    if not any(said in names for names in known):
        raise UserError(
            f"column {columns['preferred']!r}: expected 1 or 2, A or B, first or second, or a column's "
            f"name, got {values['preferred']!r:.60}"
        )
    return PreferencePair(question, media, *(answers if said in known[0] else answers[::-1]))


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
    found = {kind: list(ours[kind]) for kind in COLUMNS if ours.get(kind)}
    history = ours["history"] or []
    if not history and not ours["system"]:
        return ours["question"], found
    for kind, (several, _) in COLUMNS.items():
        earlier = [value for turn in history for value in turn.get(several, [])]
        if earlier:
            found[kind] = earlier + found.get(kind, [])
    lines = [f"system: {ours['system']}"] if ours["system"] else []
    lines += [f"{turn['role']}: {turn['content']}" for turn in history]
    return "\n".join([*lines, f"user: {ours['question']}"]), found


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
