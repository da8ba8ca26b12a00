"""The contract of a rollout engine: prompts in, groups of completions out, new weights accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vlmrl.errors import UserError
from vlmrl.schema import Completion, PromptBatch, Rollouts

if TYPE_CHECKING:
    from vlmrl.config import RolloutConfig
    from vlmrl.policy.policy import Policy


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

    @classmethod
    def of(cls, draw: RolloutConfig, n: int, seed: int = 0) -> Sampling:
        """`n` completions as a config's `rollout` wants them drawn."""
        return cls(n, draw.max_tokens, draw.temperature, draw.top_p, draw.top_k, seed=seed)


Finished = Callable[[int, tuple[Completion, ...]], None]
"""Takes a prompt's number in its batch and its whole group; may be called from any thread."""


class Engine(Protocol):
    """What the trainer and the evaluator ask of an engine."""

    exact: bool
    """True if its log-probs equal the trainer's; then no importance correction is needed."""
    concurrent: bool
    """True if it is a `ConcurrentEngine`."""
    every_rank: bool
    """True if a run of several processes can use it: each has one, and all call `start` and `sync`."""

    def start(self, policy: Policy) -> None:
        """Get ready to generate with this policy's weights."""

    def generate(self, batch: PromptBatch, sampling: Sampling) -> Rollouts:
        """`sampling.n` completions for every prompt, in the prompts' order."""

    def sync(self, policy: Policy) -> None:
        """Take the policy's new weights; afterwards no completion uses older ones."""

    def close(self) -> None:
        """Free everything; safe to call twice."""


class ConcurrentEngine(Engine, Protocol):
    """An engine that generates in other threads while the policy trains and `sync` is called.

    A call of `sync` waits for no call of `generate`: what is being written goes on with the new
    weights, and `Completion.versions` says which tokens are by which.
    """

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        """As in `Engine`; `finished` is given every group as soon as it is whole."""

    def abort(self) -> None:
        """Make every call of `generate` that is running raise soon; nothing is drawn after this."""


def require_concurrent(engine: Any, name: str, staleness: int) -> None:
    """Refuse an engine (or its class) that cannot run ahead of the trainer, if it is to.

    Raises:
        UserError: `staleness` is positive and the engine is no `ConcurrentEngine`.
    """
    if staleness > 0 and not getattr(engine, "concurrent", False):
        raise UserError(
            f"rollout.max_staleness is {staleness}, but engine {name!r} cannot generate while the "
            "policy trains: use engine vllm_server, or rollout.max_staleness 0"
        )
