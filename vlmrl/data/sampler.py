"""The contract of a sampler: which row is drawn next.

Rows are numbered through all sources, in the order of the config: row r of source s is number
`first(s) + r`. A `Sampler` draws without looking at rewards: draw number n is a function of seed and
n. An `AdaptiveSampler` learns from rewards: batch b is chosen when the rewards of batch b - lag are
known and before those of the next, whatever was decoded ahead of use; the lag is the config's. So
the rows are the same with any number of worker processes and of ranks, and after a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True, slots=True)
class SourceRows:
    """A source as samplers know it: `count` rows, and its weight relative to the other sources.

    `column` returns the values [count] float32 of a column, NaN for rows that cannot be read; it
    raises a UserError that names the row where another has no finite number there.
    """

    name: str
    count: int
    weight: float
    column: Callable[[str], np.ndarray]


@dataclass(slots=True)
class SamplerState:
    """What a sampler works with: `fixed` is made of the data, the rest is learned and in the checkpoint.

    `arrays` have one value for each row of all sources, [N].
    """

    sources: tuple[SourceRows, ...]
    seed: int
    fixed: dict[str, np.ndarray] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    weights: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    """The sources' weights from a draw on, in the order of the draws, where they change over training;
    0 for those that a stage leaves out. Empty: the sources' own."""

    @property
    def count(self) -> int:
        """Return how many rows all sources have together."""
        return sum(source.count for source in self.sources)

    @property
    def firsts(self) -> list[int]:
        """Return the number of each source's first row."""
        ends = np.cumsum([source.count for source in self.sources])
        return [0, *ends[:-1].tolist()]

    def column(self, name: str) -> np.ndarray:
        """Return a column [N] float32 of all sources.

        Raises:
            UserError: a row has no finite number there; names it.
        """
        return np.concatenate([source.column(name) for source in self.sources])


@dataclass(frozen=True, slots=True)
class SeenRewards:
    """The rewards of a batch: `rows` [n] int64, and each row's mean reward [n] float64.

    The mean is over the completions of the policy whose reward is valid; a row without any is left out.
    """

    rows: np.ndarray
    rewards: np.ndarray
    diversity: np.ndarray | None = None
    """Share of different ones among all runs of 3 tokens of a row's completions [n] float64; None where the
    sampler does not read completions."""


@dataclass(frozen=True)
class Sampler:
    """Base of samplers that do not look at rewards.

    Class variables: `follows_weights`, whether it draws by `SamplerState.weights`; `learns`,
    whether it is an `AdaptiveSampler`; `curves`, a line on each curve that only this sampler has, by its
    name.
    """

    follows_weights: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    curves: ClassVar[Mapping[str, str]] = {}

    @property
    def reads_completions(self) -> bool:
        """Return whether it learns from `SeenRewards.diversity`; all ranks then get all completions."""
        return False

    @classmethod
    def write_example(cls, folder: Path) -> Mapping[str, Any]:
        """Write what required options name into a folder; return such options, for the contract test.

        The test's rows have every column of numbers, and its sources are called s0, s1 and s2.
        """
        return {}

    def begin(self, sources: Sequence[SourceRows], seed: int) -> SamplerState:
        """Return the state before the first draw.

        Raises:
            UserError: the data lack what the sampler needs.
        """
        return SamplerState(tuple(sources), seed)

    def draws(self, state: SamplerState, number: int) -> Iterator[int]:
        """Yield the rows of draw `number` and all after it, without end; a bad row takes the next."""
        raise TypeError(f"{type(self).__name__} must define draws")

    def metrics(self, state: SamplerState, rows: np.ndarray) -> Mapping[str, float]:
        """Return curves `sampler/<name>` of a batch of rows [n] int64."""
        return {}


@dataclass(frozen=True)
class AdaptiveSampler(Sampler):
    """Base of samplers that learn from rewards."""

    learns: ClassVar[bool] = True

    def choose(self, state: SamplerState, batch: int, count: int, avoid: np.ndarray) -> np.ndarray:
        """Return up to `count` different rows [n] int64, best first; fewer if there are no more.

        A batch takes them from the front, half of them unless rows are bad. Rows in `avoid` [m] int64
        come last: those of earlier batches whose rewards are not known yet, and bad ones. Any random
        choice is a function of `state.seed` and `batch`.
        """
        raise TypeError(f"{type(self).__name__} must define choose")

    def learn(self, state: SamplerState, seen: SeenRewards) -> None:
        """Take in the rewards of a batch, in place."""
        raise TypeError(f"{type(self).__name__} must define learn")
