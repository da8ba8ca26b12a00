"""The numbers of public benchmarks in an evaluation: those that `vlmrl eval --benchmark` prints.

The strict score of a row is that of the very verdict that the run's scorer gave as a reward.
"""

from __future__ import annotations

from collections.abc import Sequence

from vlmrl.benchmarking.base import BenchmarkCard
from vlmrl.benchmarking.rows import INDEX
from vlmrl.benchmarking.scoring import Figure, RowScore, score_row, sum_up
from vlmrl.data.source import Source
from vlmrl.schema import Rewards, Rollouts
from vlmrl.system import distributed

__all__ = ["sum_up_all"]


def sum_up_all(
    benchmarks: Sequence[Source], scored: Sequence[tuple[str, Rollouts, Rewards]]
) -> dict[str, Figure]:
    """Return the figures of benchmarks as `<source>/<number>`, from this rank's scored batches.

    Each batch comes with how it was drawn; the greedy ones count. With several ranks every rank gets
    the figures of all rows.
    """
    cards = {one.name: one.card for one in benchmarks if isinstance(one.card, BenchmarkCard)}
    own: list[tuple[str, RowScore]] = []
    for drawn, rollouts, rewards in scored:
        for p, prompt in enumerate(rollouts.batch.prompts):
            if drawn == "greedy" and (card := cards.get(prompt.sample.source)):
                (verdict,) = rewards.verdicts[p][0].values()  # the strict one, or the row's own
                index, completion = prompt.sample.meta[INDEX], rollouts.completions[p][0]
                row = score_row(
                    card.benchmark, card.official, index, prompt.sample, completion, verdict
                )
                own.append((prompt.sample.source, row))
    rows = [pair for share in distributed.gather(own) for pair in share] if cards else []
    figures: dict[str, Figure] = {}
    for name, card in cards.items():
        found = sorted((row for source, row in rows if source == name), key=lambda row: row.index)
        if found:
            numbers = sum_up(card.benchmark, card.official, found).figures
            figures |= {f"{name}/{number}": figure for number, figure in numbers.items()}
    return figures
