"""Columns of numbers for samplers: difficulties and the like, read once for all rows of a source."""

from __future__ import annotations

import functools

import numpy as np

from vlmrl.data.files.rows import WHERE, narrowed, number
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
    """Return the mean reward of each prompt of a row, over what the policy wrote and is valid.

    None if that is nothing.
    """
    means: list[float | None] = []
    told = zip(rollouts.completions, rewards.total.tolist(), rewards.valid.tolist(), strict=True)
    for prompt, (group, totals, valid) in zip(rollouts.batch.prompts, told, strict=True):
        if prompt.place is None:
            continue
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
    for position in range(len(rows)):
        try:
            row = rows[position]
        except UserError:
            continue
        try:
            values[position] = number(row, name)
        except UserError as error:
            where = row.get(WHERE, f"{source.name} {source.split} row {position}")
            raise UserError(f"{where}: {error}") from error
    return values
