"""Where rollouts branch: at turns in which the policy grew unsure of what it had just been shown.

Source: Dong et al. 2025, "Agentic Reinforced Policy Optimization" (ARPO), arXiv 2507.19849, section 3.1.
Of a group, `initial` rollouts begin at the prompt. A turn of theirs that follows an observation is
branched off with probability `chance + per_entropy * rise`, where the rise is the entropy of its first
tokens less that of the first turn's, over the log of the vocabulary. What no turn takes begins at the prompt.
Tokens that rollouts share belong to each of them, with its own advantage (the paper's soft setting).

Differs: the entropy of a token is estimated by its -log p, of which it is the mean, because engines return
nothing else; there it is a sum over the ten likeliest tokens. Their code branches off behind the turn that it
looks at. Branches do not branch again, and are drawn when the initial rollouts have ended: they depend on
nothing but their own group, whichever rollout ends first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.schema import Segment
from vlmrl.system.seeds import uniform

__all__ = ["Branching", "choose_turns", "rise"]


@dataclass(frozen=True, slots=True)
class Branching:
    """How many rollouts of a group begin at the prompt, and how the others branch off them."""

    initial: int
    chance: float = 0.5
    per_entropy: float = 0.2
    tokens: int = 20


def choose_turns(
    branching: Branching,
    rollouts: Sequence[Sequence[Segment]],
    count: int,
    vocabulary: int,
    key: Sequence[int],
) -> list[tuple[int, int]]:
    """Return up to `count` places (rollout, turn) to branch off, each once, earlier turns first.

    `rollouts` are the policy's turns of those that began at the prompt. A place is drawn by `key`, its
    rollout and its turn alone.
    """
    found: list[tuple[int, int]] = []
    for turn in range(1, max(map(len, rollouts), default=0)):
        for number, turns in enumerate(rollouts):
            if len(found) == count:
                return found
            if turn < len(turns):
                higher = rise(turns, turn, branching.tokens, vocabulary)
                chance = branching.chance + branching.per_entropy * higher
                drawn = uniform(f"branch {[*key, number, turn]}")
                found += [(number, turn)] if drawn < chance else []
    return found


def rise(turns: Sequence[Segment], turn: int, tokens: int, vocabulary: int) -> float:
    """Return the entropy of a turn's first tokens, summed, less the first turn's, over log(vocabulary)."""
    first, now = (-math.fsum(turns[i].logprobs[:tokens]) for i in (0, turn))
    return (now - first) / math.log(vocabulary)
