"""Groups of completions as arrays, for the state of strategies: what was sampled, to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vlmrl.engines.completions import Sampled
from vlmrl.schema import Completion, Prompt

NAMES = ("rows", "sizes", "finished", "lengths", "token_ids", "logprobs", "runs", "versions")


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The completions of one prompt: of row (source, row), whose media rank `home` holds."""

    row: tuple[int, int]
    home: int
    completions: tuple[Sampled, ...]


def store(prompt: Prompt, completions: Sequence[Completion]) -> StoredGroup:
    """Return what was sampled of a row's group; texts are functions of it."""
    assert prompt.place is not None
    sampled = [Sampled(c.token_ids, c.logprobs, c.finish_reason, c.versions) for c in completions]
    return StoredGroup(prompt.place, prompt.home, tuple(sampled))


def to_arrays(groups: Sequence[StoredGroup]) -> dict[str, np.ndarray]:
    """Return `NAMES` of R groups with C completions of N tokens in V runs of versions.

    rows [R, 3] (source, row, home), sizes [R], finished [C] (stopped by themselves), lengths [C],
    token_ids [N], logprobs [N], runs [C], versions [V, 2].
    """
    all_ = [c for group in groups for c in group.completions]
    rows = [(*group.row, group.home) for group in groups]
    return {
        "rows": np.array(rows, np.int64).reshape(-1, 3),
        "sizes": np.array([len(group.completions) for group in groups], np.int64),
        "finished": np.array([c.finish_reason == "stop" for c in all_], bool),
        "lengths": np.array([len(c.token_ids) for c in all_], np.int64),
        "token_ids": np.array([t for c in all_ for t in c.token_ids], np.int64),
        "logprobs": np.array([x for c in all_ for x in c.logprobs], np.float64),
        "runs": np.array([len(c.versions) for c in all_], np.int64),
        "versions": np.array([v for c in all_ for v in c.versions], np.int64).reshape(-1, 2),
    }


def from_arrays(
    arrays: Mapping[str, np.ndarray], chosen: Sequence[int] | None = None
) -> list[StoredGroup]:
    """Invert `to_arrays`, of the `chosen` groups by number (None: of all)."""
    sizes, rows = arrays["sizes"], arrays["rows"]
    group_begins = np.cumsum(sizes) - sizes
    token_begins = np.cumsum(arrays["lengths"]) - arrays["lengths"]
    run_begins = np.cumsum(arrays["runs"]) - arrays["runs"]

    def completion(number: int) -> Sampled:
        at, run = int(token_begins[number]), int(run_begins[number])
        tokens = slice(at, at + int(arrays["lengths"][number]))
        versions = arrays["versions"][run : run + int(arrays["runs"][number])].tolist()
        return Sampled(
            tuple(arrays["token_ids"][tokens].tolist()),
            tuple(arrays["logprobs"][tokens].tolist()),
            "stop" if arrays["finished"][number] else "length",
            tuple((version, count) for version, count in versions),
        )

    groups = []
    for group in range(len(sizes)) if chosen is None else chosen:
        source, row, home = rows[group].tolist()
        begin = int(group_begins[group])
        completions = tuple(map(completion, range(begin, begin + int(sizes[group]))))
        groups.append(StoredGroup((source, row), home, completions))
    return groups
