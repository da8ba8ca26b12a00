"""The length of a completion, and which completions of a group count as correct."""

from __future__ import annotations

from collections.abc import Sequence

from vlmrl.schema import Completion


def num_tokens(completion: Completion) -> int:
    """Tokens of a completion; its words where no token ids are known (scoring from a file)."""
    return len(completion.token_ids) or len(completion.text.split())


def correct(rewards: Sequence[float | None], above: float) -> list[bool]:
    """Whether each reward exceeds `above`; a masked one (None) does not."""
    return [reward is not None and reward > above for reward in rewards]
