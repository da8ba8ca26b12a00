"""Rows that a file lists."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.data.sampler import Sampler, SamplerState, SourceRows
from vlmrl.errors import UserError
from vlmrl.parts.samplers.candidates import scatter


@dataclass(frozen=True)
class Pool(Sampler):
    """The rows that a file lists, each once an epoch, in a random order.

    A line of the file is `{"source": "geometry", "row": 17}`, other keys ignored, or a number: that of
    a row from 0, through all sources in their order.
    """

    path: str
    """The file, one row a line."""
    shuffle: bool = True
    """Take them in a new random order every epoch; false: in the order of the file."""

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write a list of rows of the contract test's sources."""
        (folder / "rows.jsonl").write_text('{"source": "s2", "row": 4, "pass_rate": 0.5}\n7\n40\n')
        return {"path": str(folder / "rows.jsonl")}

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Read the file."""
        state = SamplerState(tuple(sources), seed)
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"sampler 'pool': {self.path} cannot be read: {error}") from error
        rows = [
            _row(line, state, f"{self.path}:{number}")
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]
        if not rows:
            raise UserError(f"sampler 'pool': {self.path}: expected a row, got none")
        state.fixed = {"rows": np.array(rows, np.int64)}
        return state

    def draws(self, state: SamplerState, number: int) -> Iterator[int]:
        """Yield the rows from draw `number` on."""
        rows = state.fixed["rows"]
        epoch, offset = divmod(number, len(rows))
        for later in itertools.count(epoch):
            ties = scatter(np.arange(len(rows)), state.seed, later)
            order = np.argsort(ties, kind="stable") if self.shuffle else np.arange(len(rows))
            yield from rows[order[offset:]].tolist()
            offset = 0


def _row(line: str, state: SamplerState, where: str) -> int:
    """Return the number of the row that a line names."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: expected JSON, got {line!r}") from error
    first, count = 0, state.count
    if isinstance(row, dict):
        names = [source.name for source in state.sources]
        drawn = [source.name for source in state.sources if source.count]
        if row.get("source") not in drawn:
            raise UserError(
                f"{where}: expected a source of {', '.join(drawn)}, got {row.get('source')!r}"
            )
        number = names.index(row["source"])
        first, count, row = state.firsts[number], state.sources[number].count, row.get("row")
    if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < count:
        raise UserError(f"{where}: expected a row from 0 to {count - 1}, got {row!r}")
    return first + row
