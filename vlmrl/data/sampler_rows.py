"""Columns of numbers for samplers: difficulties and the like, read once for all rows of a source."""

from __future__ import annotations

import functools
import math

import numpy as np

from vlmrl.data.files.rows import WHERE, cell, narrowed
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.samplers.base import SourceRows
from vlmrl.schema import Rewards, Rollouts

__all__ = ["known_rows", "mean_rewards"]


def known_rows(source: Source) -> SourceRows:
    """Return what samplers know of a source."""
    column = functools.partial(_read_column, source)
    return SourceRows(source.name, len(source.rows), source.weight, column)


def mean_rewards(rollouts: Rollouts, rewards: Rewards) -> list[float | None]:
    """Return each prompt's mean reward over what the policy wrote and is valid; None if that is nothing."""
    means: list[float | None] = []
    told = zip(rollouts.completions, rewards.total.tolist(), rewards.valid.tolist(), strict=True)
    for group, totals, valid in told:
        each = zip(group, totals, valid, strict=True)
        own = [total for completion, total, ok in each if ok and completion.origin == "policy"]
        means.append(sum(own) / len(own) if own else None)
    return means


def _read_column(source: Source, name: str) -> np.ndarray:
    """Return a column [rows] float32; NaN for a row that cannot be read, which is refused when drawn.

    Raises:
        UserError: a row has no finite number there; the message names it.
    """
    rows = narrowed(source.rows, [name.partition(".")[0]])
    values = np.full(len(rows), np.nan, np.float32)
    for number in range(len(rows)):
        try:
            row = rows[number]
        except UserError:
            continue
        value = cell(row, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            where = row.get(WHERE, f"{source.name} {source.split} row {number}")
            raise UserError(f"{where}: column {name!r}: expected a finite number, got {value!r}")
        values[number] = value
    return values
