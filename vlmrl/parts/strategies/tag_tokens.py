"""Which tokens of a completion stand in which tag, for algorithms that credit tags of their own.

A completion's tags are known by characters (`Parsed.spans`); a prefix of its tokens is decoded to find
after how many of them a mark is whole. Source: HumanOmniV2, Yang et al. 2025, arXiv 2506.21277, which
looks for token ids of the marks instead, and so misses marks that are tokenised in another way.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.answers import templates
from vlmrl.schema import Completion, Rewards, Rollouts, Template
from vlmrl.training.strategy import BatchDraw, RunParts, Strategy


@dataclass(frozen=True)
class TagTokens(Strategy):
    """The tokens of every tag, for the algorithm `span_grpo`. Example: TagTokens()."""

    reads_completions: ClassVar[bool] = True

    def expand(
        self, rollouts: Rollouts, rewards: Rewards, draw: BatchDraw, run: RunParts
    ) -> tuple[Rollouts, Rewards]:
        """Note with each completion of a single turn which of its tokens stand in which tag."""
        stop_ids = frozenset(run.policy.stop_ids)
        decode: Callable[[Sequence[int]], str] = run.policy.tokenizer.decode
        groups = [
            tuple(find(c, prompt.sample.template, stop_ids, decode) for c in group)
            for prompt, group in zip(rollouts.batch.prompts, rollouts.completions, strict=True)
        ]
        return replace(rollouts, completions=tuple(groups)), rewards


def find(
    completion: Completion,
    chosen: str | Template,
    stop_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
) -> Completion:
    """Return the completion with the range of tokens of each tag; one of several turns as it is.

    A token that holds the end of a mark and what follows belongs to the tag.
    """
    ids = completion.token_ids
    if completion.segments or not completion.parsed.spans:
        return completion

    ranges = {}
    for tag in templates.template(chosen).tags:
        if tag.name not in completion.parsed.spans:
            continue
        start, end = completion.parsed.spans[tag.name]
        opened = max(0, completion.text.rfind(tag.open, 0, start))
        ranges[tag.name] = token_range(ids, stop_ids, decode, opened, end + len(tag.close))
    return replace(completion, tag_tokens=ranges)


def token_range(
    ids: Sequence[int],
    stop_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
    start: int,
    end: int,
) -> tuple[int, int]:
    """Return the range of the tokens that hold any of the characters from `start` to `end` of their text."""

    def length(count: int) -> int:
        return len(decode([token for token in ids[:count] if token not in stop_ids]))

    counts = range(len(ids) + 1)
    first = bisect.bisect_right(counts, start, key=length) - 1
    last = bisect.bisect_left(counts, end, key=length)
    return first, min(last, len(ids))
