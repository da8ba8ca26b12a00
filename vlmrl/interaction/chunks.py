"""A completion in chunks: each one's prompt is the question and the end of what was written before.

Source: Aghajohari et al. 2025, "The Markovian Thinker" (Delethink), arXiv 2510.06557, algorithm 1. With C
tokens in the first chunk, m carried over and at most I chunks, a later chunk has C - m tokens of its own, and
all of them together C + (I - 1)(C - m). As in its code, the first tokens of the completion stay among the m.

A thought of 22 tokens with C = 12, m = 6, two of them its first ones; what is carried over is in brackets:

    chunk 0    question  a b c d e f g h i j k l
    chunk 1    question (a b i j k l) m n o p q r
    chunk 2    question (a b o p q r) s t u v
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlmrl.engines.base import ServedPolicy
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.interaction.trail import Trail
from vlmrl.schema import Completion, FinishReason, Suffix


@dataclass(frozen=True, slots=True)
class Chunking:
    """How many chunks a completion may have, and what each hands to the next one."""

    count: int
    """Most chunks of a completion, I."""
    carry: int
    """Tokens that a later chunk begins with, m."""
    head: int = 0
    """How many of them are the first ones of the completion; the others are the last ones."""

    def goes_on(self, chunks: int, max_tokens: int) -> bool:
        """Return whether a completion that fills `chunks` of them, the first of `max_tokens`, has another."""
        return chunks < self.count and max_tokens > self.carry

    def kept(self, seen: Sequence[int]) -> tuple[int, ...]:
        """Return what the next chunk begins with, of all ids that follow the question in this one."""
        tail = self.carry - self.head
        return (*seen[: self.head], *seen[len(seen) - tail :])


def join(policy: ServedPolicy, trail: Trail, reason: FinishReason) -> Completion:
    """Return a trail in chunks as one completion, whose text is that of all tokens in their order."""
    assert trail.encoded is not None
    own = [segment for segment in trail.segments if segment.of_policy]
    written = Sampled(
        tuple(i for segment in own for i in segment.token_ids),
        tuple(lp for segment in own for lp in segment.logprobs),
        reason,
        tuple(run for segment in own for run in segment.versions),
    )
    ((whole,),) = make_completions(policy, [trail.prompt], [[written]])
    chunks = (*trail.chunks, Suffix(trail.encoded, trail.turns))
    return replace(whole, segments=trail.segments, chunks=chunks)
