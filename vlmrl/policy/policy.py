"""The policy: a model with its reference, its optimizer and its update."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vlmrl.algorithms.base import LossInputs, Objective, Pass
from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.data.masked_media import mask_media
from vlmrl.errors import NotFinite, UserError
from vlmrl.forward import finite, packing
from vlmrl.forward.logprobs import Sharing
from vlmrl.models.base import Family
from vlmrl.policy.loss_metrics import add, averages, engine_gap
from vlmrl.policy.memory_retry import MemoryRetry
from vlmrl.policy.policy_model import PolicyModel
from vlmrl.policy.reference import Reference
from vlmrl.policy.weights.gradient_sums import sum_gradients
from vlmrl.schema import MicroBatch, TrainBatch
from vlmrl.system import distributed

__all__ = ["Policy"]

MAX_REFUSED = 10
"""So many updates in a row whose gradients are not finite end the run."""


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
        self.reference: Reference | None = None
        self.refused = ""
        """What was not finite in the last update, so that it was not applied."""
        self.observe: Callable[[MicroBatch, torch.Tensor], object] | None = None
        """What is shown each micro-batch of an update with the log-probs before it [B, T]; None: nothing."""
        self._refused_in_a_row = 0
        self._probe: MicroBatch | None = None
        self._retry = MemoryRetry(self.in_step)

    # ------------------------------------------------------------------------- forwards before an update

    def keep_reference(self, folder: Path, source: Path | None = None) -> None:
        """Make the current weights the reference and write them to `folder`.

        With `source`, a folder that an earlier call has written, take the weights from there.

        Raises:
            UserError: `source` is missing or damaged or of another model; the disk is full.
        """
        self.reference = Reference(self)
        if source is not None:
            self.reference.load(source)
        if source != folder:
            self.reference.save(folder)

    def run_passes(
        self, batches: Sequence[TrainBatch], passes: Collection[Pass], seed: int
    ) -> list[TrainBatch]:
        """Return the batches with what these forwards find; `seed` is that of `with_masked_media`."""
        batches = list(batches)
        if "reference" in passes:
            batches = self.with_reference(batches)
        if "old" in passes or "entropy" in passes:
            batches = self.with_old(batches, entropy="entropy" in passes)
        if "masked_media" in passes:
            batches = self.with_masked_media(batches, seed)
        return batches

    def with_reference(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """Return the batches with `ref_logprobs` filled in."""

        def compute(micro: MicroBatch) -> Mapping[str, torch.Tensor]:
            shared = self.shares(micro)  # with the policy's own weights
            assert self.reference is not None, "keep_reference was not called"
            with self._evaluating(), self.reference.model() as model:
                return {"ref_logprobs": self._detached(model, micro.rerouted, shared)[0]}

        return self._fill(batches, compute)

    def with_old(self, batches: Sequence[TrainBatch], entropy: bool = False) -> list[TrainBatch]:
        """Return the batches with `old_logprobs` filled in; with `entropy` that is filled in, too.

        Several updates per batch need them, and algorithms that look at the whole batch before.
        """

        def compute(micro: MicroBatch) -> Mapping[str, torch.Tensor]:
            logprobs, entropies = self._own(micro)
            return {"old_logprobs": logprobs, **({"entropy": entropies} if entropy else {})}

        return self._fill(batches, compute)

    def with_masked_media(self, batches: Sequence[TrainBatch], seed: int) -> list[TrainBatch]:
        """Return the batches with `masked_media` filled in: log-probs where `mask_media` hid most of it."""

        def compute(micro: MicroBatch) -> Mapping[str, torch.Tensor]:
            prompts = [mask_media(p, self.family, self.processor, seed) for p in micro.prompts]
            return {"masked_media": self._own(replace(micro.rerouted, prompts=tuple(prompts)))[0]}

        return self._fill(batches, compute)

    def _fill(
        self,
        batches: Sequence[TrainBatch],
        compute: Callable[[MicroBatch], Mapping[str, torch.Tensor]],
    ) -> list[TrainBatch]:
        batches = self._align_ranks(batches)
        return [self._retry.run(b, lambda b: packing.fill(b, compute)) for b in batches]

    def _own(self, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        shared = self.shares(micro)
        with self._evaluating():
            return self._detached(self.base, micro, shared)

    def _detached(
        self, model: Any, micro: MicroBatch, shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropies [B, T] without gradient, on the CPU."""
        if self.sharing.setting != "low_memory":
            logprobs, entropies = self._forward(model, micro, shared)
            return logprobs.cpu(), entropies.cpu()
        found = torch.zeros(2, *micro.mask.shape)
        for row, _, logprobs, entropies in self.one_by_one(model, micro):
            found[:, row] = torch.stack([logprobs[0], entropies[0]]).cpu()
        return found[0], found[1]

    # ------------------------------------------------------------------------------------------ update

    def use_optimizer(self, optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> None:
        """Train with this optimizer from now on.

        Raises:
            UserError: `config.shared_forward` asks for what this model cannot do.
        """
        self.optimizer, self.max_grad_norm = optimizer, config.max_grad_norm
        self._lr_factors: Mapping[Any, float] = config.lr_factors
        if config.shared_forward in ("on", "low_memory") and not self._can_share:
            raise UserError(
                f"optimizer.shared_forward: {config.shared_forward}, but this model family or its "
                f"attention ({self.base.config.get_text_config()._attn_implementation}) does not "
                "support it; use auto"
            )
        excluded = {
            "model.gradient_checkpointing": self.config.gradient_checkpointing,
            "distributed.strategy: fsdp2": self.sharded,
            "distributed.sequence_parallel: its completions run behind the whole prompt": self.split,
        }
        if config.shared_forward == "low_memory" and any(excluded.values()):
            key = next(key for key, used in excluded.items() if used)
            raise UserError(f"optimizer.shared_forward: low_memory excludes {key}")
        self.sharing = Sharing(config.shared_forward, config.shared_threshold, self._can_share)

    def update(
        self, batches: Sequence[TrainBatch], objective: Objective, lr: float, progress: float
    ) -> dict[str, float]:
        """Take one optimizer step per batch; return metrics averaged over the loss tokens.

        A gradient that is not finite is not applied, is counted in `update/skipped`, and `refused`
        says what it is.

        Raises:
            NotFinite: a weight is not finite afterwards, or no gradient was for `MAX_REFUSED` updates.
        """
        sums: dict[str, float] = {}
        self.refused = ""
        norms, skipped, tokens = [], 0, 0
        for group in self.optimizer.param_groups:
            group["lr"] = lr * self._lr_factors.get(group.get("tower"), 1.0)
        for batch in self._align_ranks(batches):
            own = self._retry.run(
                batch, lambda b: self._accumulate_gradients(b, objective, progress)
            )
            shares = distributed.gather(own if distributed.speaks_for_sequence() else {})
            for share in shares:
                add(sums, share)
            norms.append(norm := self._clip_gradients())
            tokens += batch.num_tokens
            if math.isfinite(norm):
                self.optimizer.step()
                self._refused_in_a_row = 0
            else:
                skipped += 1
                self._refuse(shares)
        self._require_finite_weights()
        self.version += 1
        return {
            **averages(sums, tokens, len(batches)),
            "update/grad_norm": sum(norms) / max(len(norms), 1),
            "update/lr": lr,
            "update/tokens": float(tokens),
            "update/skipped": float(skipped),
        }

    def _clip_gradients(self) -> float:
        """Sum the gradients over all ranks and clip them, if they are finite; return the norm before."""
        trainable = self.trainable
        if self.sharded:  # the backward summed them
            self.sharded.forget_unused()
        else:
            sum_gradients(trainable)
        norm = finite.norm_of(p.grad for p in trainable if p.grad is not None)
        distributed.same_everywhere([norm])  # each replica adds it up in an order of its own
        if torch.isfinite(norm):
            torch.nn.utils.clip_grads_with_norm_(trainable, self.max_grad_norm, norm)
        return norm.item()

    def _refuse(self, shares: Sequence[Mapping[str, float]]) -> None:
        """Say what is not finite in an update that is not applied."""
        known = {"rollout/entropy": "the policy's log-probs", "loss/total": "the loss"}
        wrong = [w for k, w in known.items() if not all(math.isfinite(s[k]) for s in shares if s)]
        gradients = {name: p.grad for name, p in self.named.items() if p.grad is not None}
        name = finite.first_not_finite(gradients)
        self.refused = " and ".join([*wrong, f"the gradient (first: {name})"]) + " not finite"
        self._refused_in_a_row += 1
        if self._refused_in_a_row == MAX_REFUSED:
            raise NotFinite(f"{self.refused}, in {MAX_REFUSED} updates in a row")

    def _require_finite_weights(self) -> None:
        norm = finite.norm_of(self.trainable).item()
        if distributed.any_rank(not math.isfinite(norm)):
            name = finite.first_not_finite(self.named)
            raise NotFinite(
                f"the weights have diverged: their norm is {norm} (first: {name}); lower the learning "
                "rate and resume, the checkpoints before are kept"
            )

    def require_finite(self) -> None:
        """Look for weights that are not finite, or whose log-probs on the last update's data are not.

        All ranks call it. Nothing that fails is to be saved.

        Raises:
            NotFinite: the message names the first weight.
        """
        self._require_finite_weights()
        finite_here = True
        if self._probe is not None:
            with self._evaluating():
                logprobs, _ = self._forward(self.base, self._probe, shared=False)
            finite_here = bool(torch.isfinite(logprobs).all())
        if distributed.any_rank(not finite_here):
            raise NotFinite(
                "the weights have diverged: the policy's log-probs are not finite; lower the learning "
                "rate and resume, the checkpoints before are kept"
            )

    def _align_ranks(self, batches: Sequence[TrainBatch]) -> Sequence[TrainBatch]:
        """Return the batches so that all ranks can process them in step; unchanged for one rank.

        Whether to share prompts is decided once for all; sharded ones get equally many micro-batches.
        """
        batches = packing.even_out(batches) if self.sharded else batches
        if distributed.world() > 1 and self.sharing.verified is None:
            micros = [m for batch in batches for m in batch.micro]
            paying = [m for m in micros if self.sharing.pays(m)]
            if distributed.any_rank(bool(paying)):
                if self.sharded:
                    self._verify_together((paying or micros)[0])
                elif paying:
                    self.shares(paying[0], self.split)
                verdicts = distributed.gather(self.sharing.verified)
                self.sharing.verified = all(verdict is not False for verdict in verdicts)
        return batches

    def _accumulate_gradients(
        self, batch: TrainBatch, objective: Objective, progress: float
    ) -> dict[str, float]:
        """Accumulate the gradients of all micro-batches of one update; return sums over its loss tokens."""
        sums: dict[str, float] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for number, micro in enumerate(batch.micro, start=1):
            if self.sharded:
                self.sharded.sum_over_replicas(now=number == len(batch.micro))
            add(sums, self._backward(micro, batch, objective, progress))
        if batch.micro:
            first = torch.arange(len(batch.micro[-1].group))[:1]
            self._probe = packing.rows_of(batch.micro[-1], first)
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
        extra = {name: value.to(self.device) for name, value in micro.extra.items()}
        old = new.detach() if micro.old_logprobs is None else micro.old_logprobs.to(self.device)
        if self.observe is not None:
            self.observe(micro, old)
        sampling = micro.sampling_logprobs.to(self.device)
        if "origin" in extra:  # what the policy did not sample has no importance weight
            sampling = torch.where(extra["origin"] == 0, sampling, old)
        out = objective.loss(
            LossInputs(
                new=new,
                old=old,
                sampling=sampling,
                ref=None if micro.ref_logprobs is None else micro.ref_logprobs.to(self.device),
                advantages=micro.advantages.to(self.device),
                mask=mask,
                weights=micro.weights.to(self.device),
                num_tokens=batch.num_tokens,
                num_rollouts=batch.num_rollouts,
                max_tokens=batch.max_tokens,
                progress=progress,
                extra=extra,
            )
        )
        out.loss.backward()
        gap = (old - sampling)[mask]
        sums = {key: float(value) for key, value in out.metrics.items()}
        sums["loss/total"] = out.loss.item()
        sums["rollout/entropy"] = entropy[mask].sum().item()
        turns = micro.turns
        return {**sums, **engine_gap(gap, None if turns is None else turns.to(self.device)[mask])}
