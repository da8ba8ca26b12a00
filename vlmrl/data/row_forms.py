"""Rows of question sets as their trainers publish them, under the keys of the card `records`.

A layout is known by its keys; what has none of them is left as it is.
"""

from __future__ import annotations

import functools
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.config.schedule import moments, resolve
from vlmrl.data.files.rows import WHERE, cell
from vlmrl.errors import UserError, about_row
from vlmrl.media.access import reference
from vlmrl.schema import (
    MAX_CONFIGURATIONS,
    Criterion,
    Media,
    MediaKind,
    RowReward,
    Sample,
    Turn,
    check_criteria,
)

# --------------------------------------------------------------------------------------------------
# The verifiers that a row names for itself, in place of those of its source.
#
#     {"rewards": [{"verifier": "detection", "weight": 1.0, "options": {"threshold": 0.85}}, "format"]}
#
# Source of the idea: V-Triune's sample-level rewards, Ma et al. 2025, arXiv 2505.18129. There a row
# configures a reward server; here data chooses among the shipped verifiers and nothing else: no file,
# no server, no code.


KEYS = ("verifier", "weight", "options")
MAX_WEIGHT = 1e6
"""Largest weight of a verifier or of a row: a reward, or loss, must fit float32."""
MAX_REWARDS = 16
"""Most verifiers of one row."""


def read_rewards(value: object) -> tuple[RowReward, ...]:
    """Return the rewards of a row: a list of names and objects, or its JSON text; None: none of its own.

    Raises:
        UserError: another form, a verifier that is not shipped or asks a server, a weight that is not
            positive, or an option that the verifier refuses or that may name code or a file.
    """
    if value is None or value == "" or value == []:
        return ()
    if not isinstance(value, str):
        try:
            value = json.dumps(value, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise UserError(f"rewards: expected plain JSON values, got {value!r:.60}") from error
    elif not value.lstrip().startswith(("[", "{")):
        value = json.dumps([value])
    return _read(value)


def check_all(
    rows: Sequence[Mapping[str, object]],
    column: str,
    read: Callable[[Mapping[str, Any]], Any] | None = None,
) -> None:
    """Read the rewards of every row of a split, so that a mistake shows before training.

    `read` returns what a row states; absent: what stands in the column. A row that cannot be read at all
    is left to the loader, which counts it.

    Raises:
        UserError: a bad value, by file, row and column, or more than MAX_CONFIGURATIONS.
    """
    known: set[RowReward] = set()
    for index in range(len(rows)):
        try:
            row = rows[index]
        except UserError:
            continue
        where = str(row.get(WHERE, f"row {index}"))
        where += f": column {column!r}" if read is None else ""
        try:
            with about_row(f"column {column!r}"):
                stated = cell(row, column) if read is None else read(row)
            known.update(replace(r, weight=1.0) for r in read_rewards(stated))
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        if len(known) > MAX_CONFIGURATIONS:
            raise UserError(
                f"{where}: expected at most {MAX_CONFIGURATIONS} different verifiers with options in "
                "a split, got more"
            )


def check_applies(sample: Sample) -> None:
    """Refuse a sample with verifiers of its own if none of them applies to it.

    Raises:
        UserError: its truth has nothing that one of them needs.
    """
    made = [
        plugins.build("verifier", r.verifier, _options_at(json.loads(r.options), 0.0))
        for r in sample.rewards
    ]
    if not any(verifier.applies_to(sample) for verifier in made):
        needs = "; ".join(
            f"{reward.verifier} needs {verifier.describe_needs()}"
            for reward, verifier in zip(sample.rewards, made, strict=True)
        )
        raise UserError(f"rewards: its truth has nothing that one of them could check ({needs})")


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> tuple[RowReward, ...]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"rewards: not valid JSON: {error}") from error
    listed = value if isinstance(value, list) else [value]
    if len(listed) > MAX_REWARDS:
        raise UserError(f"rewards: expected at most {MAX_REWARDS} verifiers, got {len(listed)}")
    rewards = []
    for number, item in enumerate(listed, start=1):
        try:
            rewards.append(_reward({"verifier": item} if isinstance(item, str) else item))
        except UserError as error:
            raise UserError(f"rewards, verifier {number}: {error}") from error
    names = [reward.verifier for reward in rewards]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"rewards: verifier {twice[0]!r} is named twice")
    for reward in rewards:
        by = json.loads(reward.options).get("correct_by")
        if by is not None and by not in names:
            raise UserError(
                f"rewards: {reward.verifier}: correct_by: expected one of {names}, got {by!r}"
            )
    return tuple(rewards)


def _reward(item: object) -> RowReward:
    if not isinstance(item, Mapping):
        raise UserError(f"expected a name or an object with a verifier, got {item!r:.60}")
    for key in item:
        if key not in KEYS:
            raise UserError(f"unknown key {key!r}{plugins.nearest(str(key), list(KEYS))}")
    name, weight, options = item.get("verifier"), item.get("weight", 1.0), item.get("options") or {}
    shipped = plugins.shipped("verifier")
    if name not in shipped:
        advice = plugins.nearest(str(name), shipped)
        raise UserError(f"verifier: expected a shipped one, got {name!r:.60}{advice}")
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not 0 < weight <= MAX_WEIGHT:
        raise UserError(
            f"weight: expected a number above 0, at most {MAX_WEIGHT:g}, got {weight!r:.60}"
        )
    if not isinstance(options, Mapping):
        raise UserError(f"options: expected an object, got {options!r:.60}")
    verifier = plugins.load("verifier", name)
    if verifier.waits:
        raise UserError(f"{name!r} asks a server, which only the config may choose")
    known = plugins.options_of(verifier)
    for key in options:
        if key in known and key != "correct_by" and _may_name_code(known[key].type):
            raise UserError(
                f"{name!r}, option {key!r}: a free text, which only the config may choose"
            )
    where = f"{name!r}, option"
    for progress in sorted({m for k, v in options.items() for m in moments(v, f"{where} {k!r}")}):
        plugins.build("verifier", name, _options_at(options, progress))  # which may refuse them
    return RowReward(name, float(weight), json.dumps(options, sort_keys=True))


def _options_at(options: Mapping[str, Any], progress: float) -> dict[str, Any]:
    return {key: resolve(value, progress) for key, value in options.items()}


def _may_name_code(type_: object) -> bool:
    """Return whether an option takes any text or value: a path, an address or a verifier, perhaps."""
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        return any(map(_may_name_code, typing.get_args(type_)))
    return type_ in (str, Any) or Any in typing.get_args(type_)


# --------------------------------------------------------------------------------------------------
# The criteria of a row's own, which `judge` scores in place of the config's.
#
#     {"rubric": [{"name": "dose", "text": "It states the dose.", "weight": 5}, "It is brief."]}
#
# The keys of published rubrics are known: `title` and `description` of Rubrics as Rewards (arXiv 2507.17746),
# `criterion`, `points` and `tags` of HealthBench (arXiv 2505.08775).


MAX_CRITERIA = 64
"""Most criteria of one row."""
OTHER_KEYS = {"title": "name", "description": "text", "criterion": "text", "points": "weight"}
"""A key of a published criterion -> ours."""


def read_rubric(value: object) -> tuple[Criterion, ...]:
    """Return the criteria of a row: one text, a list of texts and objects, or its JSON text; None: no own.

    Those without a name are numbered, and so is a name that stands there a second time.

    Raises:
        UserError: another form, a key or a value that makes no sense, no weight above 0.
    """
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"rubric: not valid JSON: {error}") from error
    if not value:
        return ()
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or len(value) > MAX_CRITERIA:
        raise UserError(f"rubric: expected a list of at most {MAX_CRITERIA}, got {value!r:.60}")
    criteria: list[Criterion] = []
    for number, item in enumerate(value, start=1):
        try:
            criterion = _criterion({"text": item} if isinstance(item, str) else item)
        except UserError as error:
            raise UserError(f"rubric, criterion {number}: {error}") from error
        name = criterion.name or f"criterion {number}"
        if any(name == c.name for c in criteria):
            name = f"{name} ({number})"
        criteria.append(replace(criterion, name=name))
    try:
        check_criteria(criteria)
    except ValueError as error:
        raise UserError(f"rubric: {error}") from error
    return tuple(criteria)


def _criterion(item: object) -> Criterion:
    if not isinstance(item, Mapping):
        raise UserError(f"expected a text or an object with a text, got {item!r:.60}")
    stated = {OTHER_KEYS.get(key, key): value for key, value in item.items() if value is not None}
    stated.pop("tags", None)
    known = [each.name for each in fields(Criterion)]
    if unknown := [key for key in stated if key not in known]:
        raise UserError(f"expected the keys {', '.join(known)}, got {unknown[0]!r}")
    name, text, veto = (stated.get(k, d) for k, d in (("name", ""), ("text", ""), ("veto", False)))
    if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
        raise UserError(f"expected a text and perhaps a name, got {item!r:.60}")
    if not isinstance(veto, bool):
        raise UserError(f"veto: expected true or false, got {veto!r:.60}")
    numbers = [stated.get(key, 1.0) for key in ("weight", "max_score")]
    for key, number in zip(("weight", "max_score"), numbers, strict=True):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not abs(number) <= MAX_WEIGHT:
            raise UserError(f"{key}: expected a number up to {MAX_WEIGHT:g}, got {number!r:.60}")
    return Criterion(name.strip(), text.strip(), numbers[0], veto, numbers[1])


# --------------------------------------------------------------------------------------------------
# The turns before a question, as rows state them: under the keys `system` and `history`.
#
# {"system": "You are brief.",
#  "history": [{"role": "user", "content": "<image> What is this?", "images": ["a.jpg"]},
#              {"role": "assistant", "content": "A cat."}]}


MEDIA_KEYS: dict[str, MediaKind] = {"images": "image", "videos": "video", "audios": "audio"}
"""Keys of a turn for its media, with their kind."""
LISTS: dict[str, str] = {kind: key for key, kind in MEDIA_KEYS.items()}
"""Kind of media -> its key in a turn."""

_MARK = re.compile(r"<(image|video|audio)>")


def read_system(value: object) -> str:
    """Return the text of a system turn; None means that there is none.

    Raises:
        UserError: it is no text.
    """
    if value is not None and not isinstance(value, str):
        raise UserError(f"system: expected a text, got {value!r:.60}")
    return value or ""


def read_history(value: object, folder: str | Path) -> tuple[Turn, ...]:
    """Return the turns of a history: a list, or its JSON text; None means that there is none.

    A turn has a `role` (user or assistant), its text under `content`, and its `images`, `videos` and
    `audios`; relative paths start from `folder`. A turn's media stand where its text has the marks
    `<image>`, `<video>` and `<audio>`; without marks they come first.

    Raises:
        UserError: a turn is of another form; the message says which.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"history: not valid JSON: {error}") from error
    if not value:
        return ()
    if not isinstance(value, list):
        raise UserError(f"history: expected a list of turns, got {value!r:.60}")
    turns = []
    for number, turn in enumerate(value, start=1):
        try:
            turns.append(_turn(turn, folder))
        except UserError as error:
            raise UserError(f"history, turn {number}: {error}") from error
    return tuple(turns)


def _turn(turn: object, folder: str | Path) -> Turn:
    if not isinstance(turn, Mapping):
        raise UserError(f"expected an object with role and content, got {turn!r:.60}")
    known = ("role", "content", *MEDIA_KEYS)
    if unknown := [key for key in turn if key not in known]:
        raise UserError(f"expected the keys {', '.join(known)}, got {unknown[0]!r}")
    role, content = turn.get("role"), turn.get("content")
    if role != "user" and role != "assistant":
        where = "; a system turn stands under the key `system`" if role == "system" else ""
        raise UserError(f"role: expected user or assistant, got {role!r:.60}{where}")
    if not isinstance(content, str):
        raise UserError(f"content: expected a text, got {content!r:.60}")
    media: list[Media] = []
    for key, kind in MEDIA_KEYS.items():
        stated = turn.get(key) or []
        media += [
            reference(v, folder, kind) for v in (stated if isinstance(stated, list) else [stated])
        ]
    parts = place_media(content, media)
    if not parts:
        raise UserError("content: the turn is empty")
    return Turn(role, parts)


def place_media(text: str, media: Sequence[Media]) -> tuple[str | Media, ...]:
    """Return text and media as parts: media where the text has their marks, without marks first.

    Blank text between marks is left out; each kind's media take its marks in order.

    Raises:
        UserError: the numbers of marks and media of a kind differ.
    """
    marks = _MARK.findall(text)
    if not marks:
        return (*media, text.strip()) if text.strip() else tuple(media)
    for kind in MEDIA_KEYS.values():
        there = sum(medium.kind == kind for medium in media)
        if marks.count(kind) != there:
            raise UserError(
                f"expected a mark for each medium, got {marks.count(kind)} <{kind}> for {there}"
            )
    left = {kind: iter([m for m in media if m.kind == kind]) for kind in MEDIA_KEYS.values()}
    parts: list[str | Media] = []
    for number, piece in enumerate(_MARK.split(text)):  # text and kinds in turn
        if number % 2:
            parts.append(next(left[piece]))  # type: ignore[index]  # the mark's kind
        elif piece.strip():
            parts.append(piece.strip())
    return tuple(parts)


# --------------------------------------------------------------------------------------------------


VIDEO_R1 = frozenset({"problem_id", "problem", "solution", "data_type", "path"})
"""Video-R1, Feng et al. 2025, arXiv 2503.21776 (`Video-R1-260k.json`); also `problem_type`, `options`."""
R1_AQA = frozenset({"id", "question_text", "multi_choice", "answer", "audio_path"})
"""R1-AQA, Li et al. 2025, arXiv 2503.11197: AVQA's questions about sound; `answer` counts from 0."""
VIDEOCHAT_R1 = frozenset({"id", "video", "question", "options", "answer", "glue"})
"""VideoChat-R1, Li et al. 2025, arXiv 2504.06958, grounded questions; `glue` are spans in seconds."""

PUBLISHED = (VIDEO_R1, R1_AQA, VIDEOCHAT_R1)
"""Keys of each of these layouts."""

_ANSWER = re.compile(r"\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)


def under_our_keys(row: Mapping[str, object]) -> Mapping[str, Any]:
    """Put `question`, `answer`, `id` and the media where the card `records` looks for them.

    `options` stay only where the row is multiple choice; `glue` becomes `spans`.

    Raises:
        UserError: a value of another kind than the layout has.
    """
    if row.keys() >= VIDEO_R1:
        return _video_r1(row)
    if row.keys() >= R1_AQA:
        return _r1_aqa(row)
    if row.keys() >= VIDEOCHAT_R1:
        rest = _without(row, {"video", "glue"})
        return {**rest, "videos": [row["video"]], "spans": row["glue"]}
    return row


def _without(row: Mapping[str, object], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def _video_r1(row: Mapping[str, object]) -> dict[str, Any]:
    kinds = {"image": "images", "video": "videos"}
    if row["data_type"] not in kinds:
        raise UserError(f"key 'data_type': expected image or video, got {row['data_type']!r:.60}")
    solution = row["solution"]
    if not isinstance(solution, str) or not (answer := _ANSWER.fullmatch(solution)):
        raise UserError(f"key 'solution': expected <answer>...</answer>, got {solution!r:.60}")
    ours = {"id": row["problem_id"], "question": row["problem"], "answer": answer["answer"]}
    return {**_without(row, VIDEO_R1), **ours, kinds[row["data_type"]]: [row["path"]]}


def _r1_aqa(row: Mapping[str, object]) -> dict[str, Any]:
    options, right = row["multi_choice"], row["answer"]
    if not isinstance(options, list):
        raise UserError(f"key 'multi_choice': expected a list, got {options!r:.60}")
    if isinstance(right, bool) or not isinstance(right, int) or not 0 <= right < len(options):
        raise UserError(
            f"key 'answer': expected the place of one of {len(options)} options, got {right!r:.60}"
        )
    ours = {"id": row["id"], "question": row["question_text"], "answer": options[right]}
    return {**_without(row, R1_AQA), **ours, "options": options, "audios": [row["audio_path"]]}
