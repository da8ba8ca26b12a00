"""Counts what a large model's forwards keep on models of the same layers, but few of them."""

from __future__ import annotations

import contextlib
from typing import Any

from vlmrl.config import Config, ModelConfig
from vlmrl.forward.logprobs import Sharing
from vlmrl.monitoring.memory_forecast import Counter
from vlmrl.monitoring.rank_share import RankShare
from vlmrl.planning.sketch import sketch
from vlmrl.policy.policy import Policy
from vlmrl.schema import Completion, MicroBatch, Prompt

__all__ = ["ShallowCounter"]

FEW = (3, 4)
"""Layers of the language towers that are run; features of DeepStack go to the first three."""


class ShallowCounter(Counter):
    """Counts each shape of a published model's forward once.

    Each layer of the language tower keeps as much as any other: what two models of few layers keep says
    what one of many does.
    """

    def __init__(self, config: ModelConfig, layers: int) -> None:
        self._config, self._layers = config, layers
        self._policies: dict[int, Policy] = {}
        self._found: dict[Any, int] = {}
        self._activations: dict[Any, tuple[int, int]] = {}
        self._shares: dict[int, RankShare] = {}
        self._kept = contextlib.ExitStack()

    def share(self, policy: Policy, shards: int) -> RankShare:
        """See `Counter`."""
        if shards not in self._shares:
            self._shares[shards] = super().share(policy, shards)
        return self._shares[shards]

    def activations(
        self, config: Config, policy: Policy, prompt: Prompt, rows: int, whole: Completion
    ) -> tuple[int, int]:
        """See `Counter`; prompt and completion are the same at every call."""
        parts, again = config.distributed.sequence_parallel, policy.config.gradient_checkpointing
        key = (rows, parts, again, self.sharded)
        if key not in self._activations:
            found = super().activations(config, policy, prompt, rows, whole)
            self._activations[key] = found
        return self._activations[key]

    def saved(self, policy: Policy, micro: MicroBatch, sharing: Sharing) -> int:
        """See `Counter`."""
        again = policy.base.is_gradient_checkpointing
        key = (len(micro.prompts), len(micro.group), sharing.setting, again, self.sharded)
        if key not in self._found:
            if self._config.path is None or self._layers <= FEW[1]:
                self._found[key] = super().saved(policy, micro, sharing)
            else:
                less, more = (self._count(n, micro, sharing, again) for n in FEW)
                each = (more - less) // (FEW[1] - FEW[0])
                self._found[key] = more + (self._layers - FEW[1]) * each
        return self._found[key]

    def towers(self, policy: Policy, prompt: Prompt) -> int:
        """See `Counter`."""
        if "towers" not in self._found:
            known = self._config.path is not None
            self._found["towers"] = super().towers(
                self._policy(FEW[0]) if known else policy, prompt
            )
        return self._found["towers"]

    def _policy(self, layers: int) -> Policy:
        if layers not in self._policies:
            config = self._config.model_copy(update={"gradient_checkpointing": False})
            policy = self._policies[layers] = sketch(config, layers=layers)
            self._kept.enter_context(policy.seeing_once())  # frozen towers see an image once
        return self._policies[layers]

    def _count(self, layers: int, micro: MicroBatch, sharing: Sharing, again: bool) -> int:
        policy = self._policy(layers)
        if again and not policy.base.is_gradient_checkpointing:
            policy.base.gradient_checkpointing_enable({"use_reentrant": False})
            policy.base.enable_input_require_grads()
        elif not again and policy.base.is_gradient_checkpointing:
            policy.base.gradient_checkpointing_disable()
        return super().saved(policy, micro, sharing)
