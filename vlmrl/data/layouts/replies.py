"""The truth that a written reply states, under our keys: boxes, a number, an option's letter or a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vlmrl.answers import literals, parsing
from vlmrl.data.cards import multiple_choice
from vlmrl.errors import UserError

__all__ = ["read_reply"]

_ANSWER = re.compile(r"<answer>(?P<answer>.*?)</answer>", re.DOTALL)
_THOUGHT = re.compile(r"<think>(?P<thought>.*?)</think>", re.DOTALL)
_FENCE = re.compile(r"\s*```(?:json)?\s*(?P<inside>.*?)\s*```\s*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")


def read_reply(reply: Any, question: str, key: str) -> dict[str, Any]:
    """Return what a reply says is true, as keys of a typed row; `key` names it in errors.

    Only what stands in `<answer>` counts where there is one, and what stands in `<think>` is the
    `thought`. A JSON or Python list of boxes (`bbox_2d`, `bbox` or `box`, with `label`), or four bare
    numbers, are `boxes`; `None` and `[]` say that there is nothing. Otherwise a letter of options that
    the question lists is a `choice`; everything else is an `answer`, and a `number` too if it reads
    as one.

    Raises:
        UserError: the reply is empty or no text, or its letter is no option of the question.
    """
    if isinstance(reply, int | float) and not isinstance(reply, bool):
        reply = f"{reply:g}" if isinstance(reply, float) else str(reply)
    if not isinstance(reply, str) or not reply.strip():
        raise UserError(f"key {key!r}: expected an answer, got {reply!r:.60}")
    thought = _THOUGHT.search(reply)
    found = _ANSWER.search(reply)
    text = found["answer"] if found else _THOUGHT.sub("", reply)
    if fenced := _FENCE.fullmatch(text):
        text = fenced["inside"]
    text = text.strip()
    if not text:
        raise UserError(f"key {key!r}: expected an answer, got an empty one")
    ours = {"thought": thought["thought"].strip()} if thought else {}
    return {**ours, **_truth(text, question, key)}


def _truth(text: str, question: str, key: str) -> dict[str, Any]:
    if (boxes := _boxes(text)) is not None:
        labels = [label for _, label in boxes]
        stated: dict[str, Any] = {"boxes": [box for box, _ in boxes]}
        return stated | ({"box_labels": labels} if any(labels) else {})
    if parsing.says_nothing(text):
        return {"boxes": [], "none": True}
    if options := multiple_choice.asked(question):
        try:
            truth = multiple_choice.choice_truth(options, text)
        except UserError as error:
            raise UserError(f"key {key!r}: {error}") from error
        stated = {"choice": truth.choice, "options": list(options)}
        return stated | {"answer": list(truth.text or ())}
    if _NUMBER.fullmatch(text):
        return {"answer": text, "number": float(text.replace(",", ""))}
    return {"answer": text}


def _boxes(text: str) -> list[tuple[Any, str | None]] | None:
    """Return (box, label) of each box where the whole text is a list of boxes; None: it is none."""
    if not text.startswith(("[", "{")):
        return None
    values = literals.values(text)
    if len(values) != 1 or text[-1] not in "]}":
        return None
    (value,) = values
    if _is_box(value):
        return [(value, None)]
    items = value if isinstance(value, list) else [value]
    found = [_box(item) for item in items]
    return None if not found or None in found else [each for each in found if each is not None]


def _box(item: Any) -> tuple[Any, str | None] | None:
    if _is_box(item):
        return item, None
    if not isinstance(item, Mapping):
        return None
    for key in parsing.BOX_KEYS:
        if _is_box(item.get(key)):
            label = item.get("label")
            return item[key], None if label is None else str(label)
    return None


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(map(parsing.is_number, value))
