"""Verdicts between ranks: what all must know of them, as arrays.

That is scores, what does not apply, faults and kills: all that rewards, counts and the fault limit are
made of. What a verdict says beside them (`answer`, `note`, `parts`) stays with the rank that judged.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from vlmrl.schema import Completion, RemoteVerdict, Sample, Verdict
from vlmrl.system import distributed

__all__ = ["collect_rows", "exchange"]

Table = list[dict[str, Verdict]]
"""The verdicts on the completions of one prompt, each by label."""

APPLIES, SCORED, KILLS = 1, 2, 4
"""Bits of a verdict's state."""


def exchange(
    tables: Sequence[Table], labels: Sequence[Sequence[str]], homes: Sequence[int]
) -> None:
    """Fill in the verdicts of other ranks' prompts; `tables[p]` was filled on rank `homes[p]`.

    `labels[p]` are those of the verdicts on prompt p. A verdict is 9 bytes, a fault 8 more and its text,
    which is sent once.
    """
    if distributed.world() == 1:
        return
    own = [table[label] for table, label in _cells(tables, labels, homes, distributed.rank())]
    for home, arrays in enumerate(distributed.gather_arrays(_encode(own))):
        if home == distributed.rank():
            continue
        found = _decode(home, arrays)
        for table, label in _cells(tables, labels, homes, home):
            table[label] = next(found)


def collect_rows(
    groups: Sequence[Sequence[Completion]],
    samples: Sequence[Sample],
    wanted: Collection[int],
    homes: Sequence[int],
) -> tuple[list[Sequence[Completion]], list[Sample]]:
    """Return groups and samples, on the main rank the `wanted` ones with all that their homes have of them.

    That is what was written, and bytes of media that are in a row; not what tools showed.
    """
    rank, found, shown = distributed.rank(), list(groups), list(samples)
    own = {
        p: ([c.without_media() for c in groups[p]], samples[p]) for p in wanted if homes[p] == rank
    }
    for share in distributed.gather_to_main(own if rank else {}):
        for p, (group, sample) in share.items():
            found[p], shown[p] = group, sample
    return found, shown


def _cells(
    tables: Sequence[Table], labels: Sequence[Sequence[str]], homes: Sequence[int], home: int
) -> Iterator[tuple[dict[str, Verdict], str]]:
    """Yield the place of every verdict on the prompts of a rank, in one order on all ranks."""
    for table, of_prompt, at in zip(tables, labels, homes, strict=True):
        if at == home:
            yield from ((of_one, label) for of_one in table for label in of_prompt)


def _encode(verdicts: Sequence[Verdict]) -> list[np.ndarray]:
    """Return scores [N] float64, states [N] uint8, places and texts of the faults [F], and the texts."""
    texts: dict[str, int] = {}
    faults = [
        (n, texts.setdefault(v.fault, len(texts)))
        for n, v in enumerate(verdicts)
        if v.fault is not None
    ]
    return [
        np.array([v.score or 0.0 for v in verdicts], np.float64),
        np.array([_state(v) for v in verdicts], np.uint8),
        np.array([n for n, _ in faults], np.int32),
        np.array([text for _, text in faults], np.int32),
        np.frombuffer(json.dumps([*texts]).encode() if texts else b"", np.uint8),
    ]


def _state(verdict: Verdict) -> int:
    scored = SCORED if verdict.score is not None else 0
    killed = KILLS if verdict.is_kill else 0
    return (APPLIES if verdict.applies else 0) | scored | killed


def _decode(home: int, arrays: Sequence[np.ndarray]) -> Iterator[Verdict]:
    scores, states, places, numbers, spelled = arrays
    texts = json.loads(spelled.tobytes()) if len(spelled) else []
    faults = {p: texts[n] for p, n in zip(places.tolist(), numbers.tolist(), strict=True)}
    for place, (score, state) in enumerate(zip(scores.tolist(), states.tolist(), strict=True)):
        known = score if state & SCORED else None
        applies, is_kill = bool(state & APPLIES), bool(state & KILLS)
        yield RemoteVerdict(home, known, applies, faults.get(place), is_kill)
