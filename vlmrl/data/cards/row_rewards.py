"""The verifiers that a row names for itself, in place of those of its source.

    {"rewards": [{"verifier": "detection", "weight": 1.0, "options": {"threshold": 0.85}}, "format"]}

Source of the idea: V-Triune's sample-level rewards, Ma et al. 2025, arXiv 2505.18129. There a row
configures a reward server; here data chooses among the shipped verifiers and nothing else: no file,
no server, no code.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlmrl import plugins
from vlmrl.data.files.rows import WHERE, cell
from vlmrl.errors import UserError
from vlmrl.schema import RowReward, Sample

__all__ = ["MAX_CONFIGURATIONS", "check_all", "check_applies", "read_rewards"]

KEYS = ("verifier", "weight", "options")
MAX_WEIGHT = 1e6
"""Largest weight of one verifier: a reward must fit float32."""
MAX_REWARDS = 16
"""Most verifiers of one row."""
MAX_CONFIGURATIONS = 64
"""Most distinct pairs of verifier and options that the rows of one split may name."""


def read_rewards(value: Any) -> tuple[RowReward, ...]:
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
    rows: Sequence[Mapping[str, Any]],
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
    """Refuse a sample of whose own verifiers none can speak.

    Raises:
        UserError: its truth has nothing that one of them needs.
    """
    if not sample.rewards:
        return
    made = [plugins.build("verifier", r.verifier, json.loads(r.options)) for r in sample.rewards]
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


def _reward(item: Any) -> RowReward:
    if not isinstance(item, Mapping):
        raise UserError(f"expected a name or an object with a verifier, got {item!r:.60}")
    for key in item:
        if key not in KEYS:
            raise UserError(f"unknown key {key!r}{plugins.nearest(str(key), list(KEYS))}")
    name, weight, options = item.get("verifier"), item.get("weight", 1.0), item.get("options") or {}
    shipped = plugins.names("verifier")
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
    _check_options(name, options)
    return RowReward(name, float(weight), json.dumps(options, sort_keys=True))


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what data must not choose, then whatever the verifier itself refuses."""
    verifier = plugins.load("verifier", name)
    if verifier.waits:
        raise UserError(f"{name!r} asks a server, which only the config may choose")
    known = plugins.options_of(verifier)
    for key, value in options.items():
        if key in known and key != "correct_by" and _may_name_code(known[key].type):
            raise UserError(
                f"{name!r}, option {key!r}: a free text, which only the config may choose"
            )
        if isinstance(value, Mapping) and set(value) == {"schedule"}:
            raise UserError(f"{name!r}, option {key!r}: a schedule belongs in the config")
    plugins.build("verifier", name, options)


def _may_name_code(type_: Any) -> bool:
    """Return whether an option takes any text or value: a path, an address or a verifier, perhaps."""
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        return any(map(_may_name_code, typing.get_args(type_)))
    return type_ in (str, Any) or Any in typing.get_args(type_)
