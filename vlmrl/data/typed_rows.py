"""A row under our keys becomes a sample: what the cards `table` and `auto` share.

A typed row is a dictionary with some of `KEYS`. Coordinates are in its `box_space`, boxes in its
`box_format`; media are values that `vlmrl.media.access.reference` takes. Keys that are missing or
None say nothing.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlmrl.answers.parsing import is_number, letter_of
from vlmrl.data import demonstrations, multiple_choice, row_forms
from vlmrl.data.annotations import check_inside, note_points
from vlmrl.errors import UserError
from vlmrl.media.access import Access, access_given, reference
from vlmrl.media.decode import measure_image
from vlmrl.schema import Demo, Frame, Media, MediaKind, Sample, Truth
from vlmrl.truths import json_form
from vlmrl.truths.base import kinds

MEDIA: dict[str, MediaKind] = {"image": "image", "video": "video", "audio": "audio"}
"""Keys of media, in the order in which they stand before a question without marks."""
PLAIN = {
    "id": "a name that no other row has; without it, where the row stands",
    **{name: f"one {name} or a list of them: paths, bytes, base64 texts" for name in MEDIA},
    "image_index": "which of several images the places are in, from 0",
    "question": "a text; `<image>`, `<video>` or `<audio>` in it says where a medium belongs",
    "system": "text of the system turn",
    "history": "turns before the question: a list of {role, content, images}",
    "answer": "a text or a list of accepted texts",
    "turns": "calls before a demonstration's answer and what they returned: a list of messages",
    "thought": "what a demonstration thinks, for the cold start",
    "box_labels": "a label for each of `boxes`, or one for all",
    "width": "pixels of the first image",
    "height": "pixels of the first image",
    "box_space": "space of all places: pixel, norm1000 or norm1",
    "box_format": "order of the numbers of a box: xyxy or xywh",
    "weight": "factor of the sample's loss",
    "rewards": "verifiers of this row: a list of names or of {verifier, weight, options}",
    "rubric": "criteria of this row for `judge`: a list of texts or of {name, text, weight, veto, max_score}",
    "meta": "other values, for the report",
}
"""Keys that are no kind of truth, and what stands under them."""
KEYS = (*PLAIN, *(name for name in kinds() if name not in ("text", "track")))
COLUMNS = tuple(key for key in KEYS if key not in ("box_space", "box_format", "meta"))
"""Keys that a column of a table can hold."""
TAG = re.compile(r"<([A-Za-z_][A-Za-z0-9_-]*)>")
"""A key for what a demonstration writes in a tag of its template: `<info>`."""
PLACES = tuple(name for name, kind in kinds().items() if kind.placed)


@dataclass(frozen=True)
class Typing:
    """How typed rows of one source become samples.

    `names` maps our keys to what the data call them, for errors. `loose` is the largest share of the
    image by which each side of a demonstration's box is pushed outwards, drawn with `seed`. With
    `list_options` a question that does not show its options lists them.
    """

    source: str
    folder: str
    names: Mapping[str, str] = field(default_factory=dict)
    loose: float = 0.0
    seed: int = 0
    list_options: bool = True

    def column(self, key: str) -> str:
        """Return how an error names one of our keys."""
        return f"column {self.names[key]!r}" if key in self.names else f"`{key}`"


def to_sample(row: Mapping[str, object], where: str, typing: Typing) -> Sample:
    """Return the sample of a typed row that stands at `where`.

    Raises:
        UserError: a key that is none of `KEYS`, a value of the wrong kind, or nothing that is true;
            the message names the column.
    """
    for key in row:
        if key not in KEYS and not TAG.fullmatch(key):
            raise UserError(f"a typed row has no key {key!r}; there are: {', '.join(KEYS)}")
    media = media_of(row, typing.folder)
    history = row_forms.read_history(row.get("history"), typing.folder)
    earlier = (turn.media for turn in reversed(history) if turn.media)
    latest = tuple(media) or next(earlier, ())
    truth = _truth(row, latest, typing)
    right = truth.choice or next(iter(truth.labels or ()), None)
    if typing.list_options and truth.options and right and isinstance(row["question"], str):
        shown = multiple_choice.with_shown_options(row["question"], truth.options, right)
        row = {**row, "question": shown}
    rng = random.Random(f"{typing.seed} {where}")
    demo = demonstrations.demonstration(truth, (0.0, typing.loose / 2, typing.loose), rng)
    if demo is not None:
        tags = {match[1]: row[key] for key in row if (match := TAG.fullmatch(key))}
        contents = {tag: str(text) for tag, text in tags.items() if text is not None}
        demo = replace(demo, thought=str(_get(row, "thought", demo.thought)), contents=contents)
    if row.get("turns") is not None:
        # Few rows have any: a plain run need not load what reads them.
        from vlmrl.data.tool_turns import read_tool_turns

        demo = replace(demo or Demo(), turns=read_tool_turns(row["turns"], typing.folder))
    stated = [(row[key], key) for key in ("width", "height") if row.get(key) is not None]
    size = tuple(int(to_number(*each)) for each in stated)  # a table of texts has them as texts
    return Sample(
        id=str(_get(row, "id", where)),
        source=typing.source,
        parts=_parts(row, media, typing),
        truth=truth,
        demo=demo,
        weight=_weight(row),
        meta={
            **_get(row, "meta", {}),
            "where": where,
            "size": size if len(size) == 2 else None,
        },
        system=row_forms.read_system(row.get("system")),
        history=history,
        rewards=row_forms.read_rewards(row.get("rewards")),
        rubric=row_forms.read_rubric(row.get("rubric")),
    )


def media_of(row: Mapping[str, object], folder: str) -> list[Media]:
    """Return the media of a typed row: images, videos, audios; nothing is opened.

    Raises:
        UserError: a value is no medium.
    """
    media = []
    for key, kind in MEDIA.items():
        value = _get(row, key, [])
        media += [
            reference(v, folder, kind) for v in (value if isinstance(value, list) else [value])
        ]
    return media


def _get(row: Mapping[str, object], key: str, default: object) -> Any:
    value = row.get(key)
    return default if value is None else value


def _parts(
    row: Mapping[str, object], media: list[Media], typing: Typing
) -> tuple[str | Media, ...]:
    question = _get(row, "question", "")
    if not isinstance(question, str):
        raise UserError(f"{typing.column('question')}: expected a text, got {question!r:.60}")
    try:
        parts = row_forms.place_media(question, media)
    except UserError as error:
        raise UserError(f"{typing.column('question')}: {error}") from error
    if not any(isinstance(part, str) for part in parts):
        raise UserError(f"{typing.column('question')}: the question is empty")
    return parts


def _truth(row: Mapping[str, object], media: Sequence[Media], typing: Typing) -> Truth:
    # JSON's own true and false, 1 and 0, or these words as text
    flags = {"true": True, "false": False, "1": True, "0": False}
    none = flags.get(str(stated := _get(row, "none", False)).strip().lower())
    if none is None:
        raise UserError(f"none: expected true or false, got {stated!r:.60}")
    about = _about(row, media, typing)
    values: dict[str, Any] = {}
    for key, value in row.items():
        name = "text" if key == "answer" else key
        if value is None or key == "none" or (key not in kinds() and key != "answer"):
            continue
        if none and (value == "" or value == []):
            continue  # the usual way to leave out the answer of an unanswerable question
        try:
            frame = _frame(row, media[about:], typing) if key in PLACES else Frame()
            cell = _boxes(row, value, frame, typing) if key == "boxes" else _typed(key, value)
            if key == "points":
                note_points(cell, frame)
            values[name] = json_form.read({name: cell}, frame).value(name)
        except UserError as error:
            raise UserError(f"{typing.column(key)}: {error}") from error
    choice, options = values.get("choice"), values.get("options")
    if choice is not None and options and letter_of(choice, options) is None:
        raise UserError(
            f"{typing.column('choice')}: expected the letter or the text of one of {len(options)} "
            f"options, got {choice!r:.60}"
        )
    if not values and not none and not row.get("rubric"):
        raise UserError("no answer: no column says what is true")
    nothing = all(kinds()[name].listed and value == () for name, value in values.items())
    return Truth.of({**values, "none": none or nothing}, about)


def _about(row: Mapping[str, object], media: Sequence[Media], typing: Typing) -> int:
    """Return which of the images (or videos) the places of a row are in."""
    stated = _get(row, "image_index", 0)
    if isinstance(stated, str) and stated.strip().isdecimal():
        stated = int(stated)
    about = json_form.read_image(stated, typing.column("image_index"))
    count = sum(medium.kind != "audio" for medium in media)
    if about >= max(1, count):
        raise UserError(
            f"{typing.column('image_index')}: expected an index below {count}, the number of images, "
            f"got {about}"
        )
    return about


def _frame(row: Mapping[str, Any], media: Sequence[Media], typing: Typing) -> Frame:
    """Return the frame of the first of these media in the row's space, its size the row's or header's."""
    space = row.get("box_space")
    if space is None:
        raise UserError("no space is known for coordinates; state box_space (it is never guessed)")
    if space != "pixel":
        return Frame(space=space)
    if row.get("width") is not None and row.get("height") is not None:
        width, height = (to_number(row[key], key) for key in ("width", "height"))
    elif media and media[0].url is None:
        width, height = measure_image(media[0], access_given(Access(typing.folder)))
    else:
        raise UserError(
            "coordinates in pixels need an image at hand, or columns `width` and `height`"
        )
    return Frame(int(width), int(height), space="pixel")


def _boxes(row: Mapping[str, object], value: object, frame: Frame, typing: Typing) -> list[Any]:
    boxes = _typed("boxes", value)
    if boxes and not isinstance(boxes[0], list | Mapping):
        boxes = [boxes]  # one box, bare
    labels = _typed("box_labels", _get(row, "box_labels", [None] * len(boxes)))
    if len(labels) != len(boxes):
        raise UserError(
            f"{typing.column('box_labels')}: expected {len(boxes)} labels, got {len(labels)}"
        )
    if row.get("box_format") == "xywh":
        boxes = [[x, y, x + w, y + h] for x, y, w, h in boxes]
    check_inside(boxes, frame)
    return [{"box": box, "label": name} for box, name in zip(boxes, labels, strict=True)]


def _typed(key: str, value: object) -> Any:
    """Return a cell's value: lists may come as JSON text or as one bare item, numbers as text."""
    if key == "answer" or key == "choice":
        return str(value) if isinstance(value, int | float) else value
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise UserError(f"not valid JSON: {error}") from error
    if key == "number":
        return to_number(value, key)
    if key == "labels" and isinstance(value, str):
        return [name.strip() for name in value.split(",")]  # as an answer is split
    if key in ("options", "box_labels") and isinstance(value, str):
        return [value]
    if key == "points" and isinstance(value, list) and value[1:] and is_number(value[0]):
        return [value]  # one point, bare
    return value


def _weight(row: Mapping[str, object]) -> float:
    weight = to_number(_get(row, "weight", 1.0), "weight")
    if abs(weight) > row_forms.MAX_WEIGHT:
        raise UserError(f"weight: expected at most {row_forms.MAX_WEIGHT:g}, got {weight:g}")
    return weight


def to_number(value: Any, key: str) -> float:
    """Return a number, which may be written as a text.

    Raises:
        UserError: it is no finite number; the message begins with `key`.
    """
    try:
        number = float(value)
        if not math.isfinite(number):
            raise ValueError("not finite")
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{key}: expected a finite number, got {value!r:.60}") from error
    return number
