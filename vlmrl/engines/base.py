"""The contract of a rollout engine: prompts in, groups of completions out, new weights accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vlmrl.schema import Completion, Prompt, PromptBatch, Rollouts
from vlmrl.system.seeds import seed_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from vlmrl.config import ModelConfig, RolloutConfig


class ServedPolicy(Protocol):
    """The policy as an engine sees it: the model whose weights it generates with."""

    version: int
    """Updates so far; part of every completion."""
    base: Any
    """The transformers model."""
    family: Any
    """Its `models.base.Family`."""
    processor: Any
    tokenizer: Any
    adapter: Any
    """The peft model with LoRA, otherwise None."""
    config: ModelConfig
    device: torch.device
    temperature: float
    stop_ids: tuple[int, ...]
    """Token ids that end a completion."""
    pad_id: int
    banned: torch.Tensor
    """Token ids [N] that are never sampled: placeholders of media."""

    def generating(self) -> AbstractContextManager[None]:
        """Enter evaluation mode without gradient."""

    def units(
        self,
        dtype: torch.dtype | None = None,
        adapters: Literal["merged", "left out"] = "merged",
        every_name: bool = False,
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Yield all weights under the names of transformers, some at a time, floating point in `dtype`.

        Of a sharded policy all ranks ask for all of them together, and each is gone when the next one is
        asked for. Of tied weights the first name, with `every_name` all of them in one unit.
        """

    def take_part(
        self, dtype: torch.dtype | None = None, adapters: Literal["merged", "left out"] = "merged"
    ) -> None:
        """Gather with a rank that asks for these `units`, and keep nothing."""

    def weight_bytes(self) -> int:
        """Return the size of all weights as they are stored, in bytes, without adapters."""

    def training_state(self) -> dict[str, torch.Tensor]:
        """Return the adapter's weights; nothing without LoRA."""


@dataclass(frozen=True)
class Sampling:
    """How to sample `n` completions. `greedy` ignores temperature, top_p and top_k.

    `seed` makes a call reproducible. The log-probs of the completions are those of the distribution
    at `temperature`, before top_p and top_k.
    """

    n: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False
    seed: int = 0
    keys: tuple[tuple[int, ...], ...] = ()
    """Seeds of their own for the completions of each prompt, in the prompts' order: what is drawn then
    depends on nothing but a completion's key. Empty: `seed` is that of the whole call."""
    branch: bool = False
    """Whether completions of a group may share their first turns, where the config says so; else they are
    independent."""

    @classmethod
    def of(cls, draw: RolloutConfig, n: int, seed: int = 0) -> Sampling:
        """Return the sampling of `n` completions that a config's `rollout` asks for."""
        return cls(n, draw.max_tokens, draw.temperature, draw.top_p, draw.top_k, seed=seed)

    def at(self, places: Sequence[int]) -> Sampling:
        """Return the sampling of the prompts at these places of a batch, by keys of their own."""
        keys = tuple((seed_of(self.seed, position),) * self.n for position in places)
        return replace(self, keys=keys)


Finished = Callable[[int, tuple[Completion, ...]], None]
"""Called with a prompt's number in its batch and its whole group, from any thread."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; callers ask this and never test for a class."""

    exact: bool = False
    """Its log-probs equal the trainer's; then no importance correction is needed."""
    concurrent: bool = False
    """It runs as a `ConcurrentRunningEngine`."""
    keyed: bool = False
    """A draw depends on its own prompt and the seed, never on the rest of the batch."""
    placed: bool = False
    """Its draw for the prompt at a place of a batch is the one by the key of `Sampling.at`."""
    routes: bool = False
    """Its completions hold the experts that it chose, where `model.router_replay` asks for them."""
    every_rank: bool = False
    """A run of several processes can use it: each has one, and all call `start` and `sync`."""


class Engine:
    """Base of engines: a frozen dataclass whose fields are its options; `start` makes it run."""

    capabilities: Capabilities = Capabilities()
    """Set without an annotation in a subclass: no option."""

    def start(self, policy: ServedPolicy) -> RunningEngine:
        """Return the engine, ready to generate with this policy's weights; free all if that fails.

        Raises:
            UserError: the engine cannot serve this model, or what it needs is not installed.
        """
        raise TypeError(f"{type(self).__name__} must define start")

    def require_room(self, policy: ServedPolicy, prompt: Prompt, max_tokens: int) -> None:
        """Refuse a prompt that it cannot continue by this many tokens.

        Raises:
            UserError: it is too long, or has too many media; the message names the option.
        """


class RunningEngine:
    """An engine between `start` and `close`.

    The trainer is not the only one that asks. Any prompt may come, at any time, also while nothing trains:

    * the prompts of the run, `rollout.group_size` completions each, with a new seed every step;
    * the held-out prompts of an evaluation, mostly `greedy`, with `n` 1;
    * the parity probe, at the start, after the first update and now and then: two prompts of noise
      (images, or audio where the family takes no images) and one of text alone, always the same;
    * the media ablation: prompts of the run with gray images, silence, or the media of another prompt.

    So an engine must not expect to know a prompt's sample, and must encode what the prompt holds
    (`Prompt.encoded`), never what its sample names.

    `generate` returns what was sampled: `completions.make_completions` turns token ids with their
    log-probs into completions; text is never tokenized again. An engine samples none of
    `policy.banned` and ends a completion with one of `policy.stop_ids` or at `max_tokens`. The same
    prompts, sampling and weights give the same completions.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def generate(self, batch: PromptBatch, sampling: Sampling) -> Rollouts:
        """Return `sampling.n` completions for every prompt, in the prompts' order.

        Raises:
            UserError: a prompt does not fit, or the engine is broken and cannot be mended.
        """
        raise TypeError(f"{type(self).__name__} must define generate")

    def sync(self, policy: ServedPolicy) -> None:
        """Take the policy's new weights; afterwards no completion uses older ones."""
        raise TypeError(f"{type(self).__name__} must define sync")

    def rest(self) -> None:
        """Leave the trainer as much memory as possible: nothing is generated before the next `sync`."""

    def close(self) -> None:
        """Free everything; safe to call twice."""


class ConcurrentRunningEngine(RunningEngine):
    """An engine that generates in other threads while the policy trains and `sync` is called.

    A call of `sync` does not wait for calls of `generate`: completions in progress continue with the
    new weights, and `Completion.versions` says which weights sampled which tokens. With several
    processes such a call of `generate` must not wait for the other ranks.
    """

    def generate(
        self, batch: PromptBatch, sampling: Sampling, finished: Finished | None = None
    ) -> Rollouts:
        """Generate as in `RunningEngine`; `finished` is given every group as soon as it is whole."""
        raise TypeError(f"{type(self).__name__} must define generate")

    def abort(self) -> None:
        """Make every running call of `generate` raise soon; nothing is sampled after this."""
        raise TypeError(f"{type(self).__name__} must define abort")
