"""The policy: a model with its reference, its optimizer and its update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vlmrl.algorithms.base import LossInputs, Objective
from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.forward import packing
from vlmrl.forward.logprobs import Sharing
from vlmrl.models.base import Family
from vlmrl.policy.loss_metrics import add, averages, engine_gap
from vlmrl.policy.memory_retry import MemoryRetry
from vlmrl.policy.policy_model import PolicyModel
from vlmrl.policy.reference import Reference
from vlmrl.schema import MicroBatch, TrainBatch
from vlmrl.system import distributed

__all__ = ["Policy"]


class Policy(PolicyModel):
    """The trained model, its reference and its optimizer."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        family: Family,
        config: ModelConfig,
        temperature: float = 1.0,
        shard: bool = False,
    ) -> None:
        super().__init__(model, processor, family, config, temperature, shard)
        self._reference: Reference | None = None
        self._retry = MemoryRetry(sharded=shard)

    # ------------------------------------------------------------------------------- reference and old

    def keep_reference(self, folder: Path, source: Path | None = None) -> None:
        """Make the current weights the reference and write them to `folder`.

        With `source`, a folder that an earlier call has written, take the weights from there.

        Raises:
            UserError: `source` is missing or damaged or of another model; the disk is full.
        """
        self._reference = Reference(self)
        if source is not None:
            self._reference.load(source)
        if source != folder:
            self._reference.save(folder)

    def with_reference(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """Return the batches with `ref_logprobs` filled in."""
        fill = self._reference_logprobs
        batches = self._align_ranks(batches)
        return [
            self._retry.run(b, lambda b: packing.fill(b, "ref_logprobs", fill)) for b in batches
        ]

    def with_old(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """Return the batches with `old_logprobs` filled in: needed only for several updates per batch."""
        fill = self._own_logprobs
        batches = self._align_ranks(batches)
        return [
            self._retry.run(b, lambda b: packing.fill(b, "old_logprobs", fill)) for b in batches
        ]

    def _own_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        shared = self.shares(micro)
        with self._evaluating():
            return self._detached_logprobs(self.base, micro, shared)

    def _reference_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        shared = self.shares(micro)  # with the policy's own weights
        assert self._reference is not None, "keep_reference was not called"
        with self._evaluating(), self._reference.model() as model:
            return self._detached_logprobs(model, micro, shared)

    def _detached_logprobs(self, model: Any, micro: MicroBatch, shared: bool) -> torch.Tensor:
        """Return log-probs [B, T] without gradient."""
        if self.sharing.setting != "low_memory":
            return self._forward(model, micro, shared)[0]
        out = torch.zeros(micro.mask.shape, device=self.device)
        for row, _, logprobs, _ in self.one_by_one(model, micro):
            out[row] = logprobs[0]
        return out

    # ------------------------------------------------------------------------------------------ update

    def use_optimizer(self, optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> None:
        """Train with this optimizer from now on.

        Raises:
            UserError: `config.shared_forward` asks for what this model cannot do.
        """
        self.optimizer, self.max_grad_norm = optimizer, config.max_grad_norm
        if config.shared_forward in ("on", "low_memory") and not self._can_share:
            raise UserError(
                f"optimizer.shared_forward: {config.shared_forward}, but this model family or its "
                f"attention ({self.base.config.get_text_config()._attn_implementation}) does not "
                "support it; use auto"
            )
        if config.shared_forward == "low_memory" and self.config.gradient_checkpointing:
            raise UserError(
                "optimizer.shared_forward: low_memory excludes model.gradient_checkpointing"
            )
        if config.shared_forward == "low_memory" and self.sharded:
            raise UserError(
                "optimizer.shared_forward: low_memory excludes distributed.strategy: fsdp2"
            )
        self.sharing = Sharing(config.shared_forward, config.shared_threshold, self._can_share)

    def update(
        self, batches: Sequence[TrainBatch], objective: Objective, lr: float, progress: float
    ) -> dict[str, float]:
        """Take one optimizer step per batch; return metrics averaged over the loss tokens.

        A gradient that is not finite is not applied and is counted in `update/skipped`.
        """
        sums: dict[str, float] = {}
        norms, skipped, tokens = [], 0, 0
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for batch in self._align_ranks(batches):
            own = self._retry.run(
                batch, lambda b: self._accumulate_gradients(b, objective, progress)
            )
            for share in distributed.gather(own):
                add(sums, share)
            norm = self._clip_gradients()
            norms.append(norm)
            tokens += batch.num_tokens
            if math.isfinite(norm):
                self.optimizer.step()
            else:
                skipped += 1
        self.version += 1
        return {
            **averages(sums, tokens, len(batches)),
            "update/grad_norm": sum(norms) / max(len(norms), 1),
            "update/lr": lr,
            "update/tokens": float(tokens),
            "update/skipped": float(skipped),
        }

    def _clip_gradients(self) -> float:
        """Sum the gradients over all ranks and clip them; return the norm before clipping."""
        if self.sharded:  # the backward summed them
            self.sharded.forget_unused()
        else:
            distributed.sum_gradients(self.trainable)
        norm: Any = torch.nn.utils.clip_grad_norm_(self.trainable, self.max_grad_norm)
        return (norm.full_tensor() if self.sharded else norm).item()

    def _align_ranks(self, batches: Sequence[TrainBatch]) -> Sequence[TrainBatch]:
        """Return the batches so that all ranks can process them in step; unchanged for one rank.

        Whether to share prompts is decided for all ranks at once, and where weights are sharded all
        get the same number of micro-batches.
        """
        if distributed.world() > 1 and self.sharing.verified is None:
            paying = [m for batch in batches for m in batch.micro if self.sharing.pays(m)]
            if distributed.any_rank(bool(paying)):
                with self.whole():
                    if paying:
                        self.shares(paying[0])
                verdicts = distributed.gather(self.sharing.verified)
                self.sharing.verified = all(verdict is not False for verdict in verdicts)
        return packing.even_out(batches) if self.sharded else batches

    def _accumulate_gradients(
        self, batch: TrainBatch, objective: Objective, progress: float
    ) -> dict[str, float]:
        """Accumulate the gradients of all micro-batches of one update; return sums over its loss tokens."""
        sums: dict[str, float] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for micro in batch.micro:
            add(sums, self._backward(micro, batch, objective, progress))
        return sums

    def _backward(
        self, micro: MicroBatch, batch: TrainBatch, objective: Objective, progress: float
    ) -> dict[str, float]:
        sums: dict[str, float] = {}
        if self.sharing.setting == "low_memory":
            for _, part, new, entropy in self.one_by_one(self.base, micro):
                add(sums, self._backward_loss(part, new, entropy, batch, objective, progress))
            shared = True
        else:
            shared = self.shares(micro)
            new, entropy = self._forward(self.base, micro, shared)
            add(sums, self._backward_loss(micro, new, entropy, batch, objective, progress))
        sums["update/shared"] = float(micro.mask.sum()) * shared
        return sums

    def _backward_loss(
        self,
        micro: MicroBatch,
        new: torch.Tensor,
        entropy: torch.Tensor,
        batch: TrainBatch,
        objective: Objective,
        progress: float,
    ) -> dict[str, float]:
        """Compute the loss and run its backward; return sums over the loss tokens."""
        mask = micro.mask.to(self.device)
        sampling = micro.sampling_logprobs.to(self.device)
        old = micro.old_logprobs if micro.old_logprobs is not None else new.detach()
        out = objective.loss(
            LossInputs(
                new=new,
                old=old,
                sampling=sampling,
                ref=micro.ref_logprobs,
                advantages=micro.advantages.to(self.device),
                mask=mask,
                weights=micro.weights.to(self.device),
                num_tokens=batch.num_tokens,
                num_rollouts=batch.num_rollouts,
                max_tokens=batch.max_tokens,
                progress=progress,
            )
        )
        out.loss.backward()
        gap = (old - sampling)[mask]
        sums = {key: float(value) for key, value in out.metrics.items()}
        sums["loss/total"] = out.loss.item()
        sums["rollout/entropy"] = entropy[mask].sum().item()
        return {**sums, **engine_gap(gap)}
