"""Rewards that fail now and then, and that look at a whole batch; they run in threads, without workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from helpers import scores
from vlmrl.schema import Completion, Sample, Verdict
from vlmrl.scoring.verifier import BatchVerifier, Verifier


@dataclass(frozen=True)
class Varied(Verifier):
    """A reward in [0, 1) that hardly any two completions have in common, or 0 and 1 where `sparse`."""

    waits: ClassVar[bool] = True
    sparse: bool = False

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        score = (scores.sparse if self.sparse else scores.varied)(completion)
        return Verdict(score, {"of": score}, answer=completion.text, note="graded")


@dataclass(frozen=True)
class Shaky(Verifier):
    """1, or a fault of one of two kinds."""

    waits: ClassVar[bool] = True

    def __call__(self, completion: Completion, sample: Sample) -> Verdict:
        total = sum(completion.token_ids)
        if total % 7 == 0:
            raise ValueError(f"cannot grade kind {total % 2}")
        return Verdict(1.0)


@dataclass(frozen=True)
class Commonness(BatchVerifier):
    """Share of the batch's completions that begin as this one does."""

    waits: ClassVar[bool] = True

    def judge(
        self, groups: Sequence[Sequence[Completion]], samples: Sequence[Sample]
    ) -> list[list[Verdict]]:
        """Count first tokens over all groups."""
        firsts = [c.token_ids[0] for group in groups for c in group]
        return [
            [Verdict(firsts.count(c.token_ids[0]) / len(firsts), note=c.text) for c in group]
            for group in groups
        ]


@dataclass(frozen=True)
class Detail(BatchVerifier):
    """Share of the batch's images that have no more bytes than this one."""

    waits: ClassVar[bool] = True

    def judge(
        self, groups: Sequence[Sequence[Completion]], samples: Sequence[Sample]
    ) -> list[list[Verdict]]:
        """Look into the rows for the images."""
        sizes = [len(sample.media[0].data or b"") for sample in samples]
        scores = [sum(other <= size for other in sizes) / len(sizes) for size in sizes]
        return [[Verdict(score)] * len(group) for score, group in zip(scores, groups, strict=True)]
