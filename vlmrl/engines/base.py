"""The contract of a rollout engine: prompts in, groups of completions out, new weights accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vlmrl.schema import PromptBatch, Rollouts

if TYPE_CHECKING:
    from vlmrl.policy import Policy


@dataclass(frozen=True)
class Sampling:
    """How to draw. `greedy` ignores temperature, top_p and top_k. `seed` makes a call reproducible.

    Log-probs that come back are those of the distribution at `temperature`, before top_p and top_k.
    """

    n: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False
    seed: int = 0


class Engine(Protocol):
    """What the trainer and the evaluator ask of an engine."""

    exact: bool
    """True if its log-probs equal the trainer's; then no importance correction is needed."""

    def start(self, policy: Policy) -> None:
        """Get ready to generate with this policy's weights."""

    def generate(self, batch: PromptBatch, sampling: Sampling) -> Rollouts:
        """`sampling.n` completions for every prompt, in the prompts' order."""

    def sync(self, policy: Policy) -> None:
        """Take the policy's new weights; afterwards no completion uses older ones."""

    def close(self) -> None:
        """Free everything; safe to call twice."""
