"""The policy: weights, freezing, LoRA, reference, log-probs, optimizer, update."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from vlmrl.algorithms.base import LossInputs, Objective
from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.forward import low_memory, packing, shared_attention
from vlmrl.forward.logprobs import Sharing, completion_logprobs, disagreement
from vlmrl.models.base import Family
from vlmrl.policy import trainable
from vlmrl.policy.fsdp import Sharded, copied, whole_state
from vlmrl.policy.loss_metrics import add, averages, engine_gap
from vlmrl.policy.reference import Reference
from vlmrl.schema import MicroBatch, TrainBatch
from vlmrl.system import distributed

_T = TypeVar("_T")
log = logging.getLogger("vlmrl")


class Policy:
    """The trained model and its optimizer.

    With `dtype: bfloat16` trainable weights stay float32 (a step of 1e-6 vanishes in bfloat16) and the
    forward runs under autocast; frozen weights are stored in bfloat16.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        family: Family,
        config: ModelConfig,
        temperature: float = 1.0,
        shard: bool = False,
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.family, self.processor, self.config = family, processor, config
        self.tokenizer = processor.tokenizer
        self.temperature = temperature
        self.version = 0
        self.stop_ids = family.stop_token_ids(processor)
        self.pad_id = self.tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = self.stop_ids[0]
        if config.quantization:
            trainable.quantize(model, family, config)
        # What is to be sharded reaches the device in slices: the whole may not fit.
        self.base = model if shard else model.to(self.device)
        self.adapter = trainable.with_lora(self.base, family, config) if config.lora else None
        trainable.freeze(self.base, family, config)
        distributed.same_everywhere(self.trainable)
        self.banned = torch.tensor(family.media_token_ids(processor), device=self.device)
        self._reference: Reference | None = None
        self._can_share = family.shared and shared_attention.install(self.base)
        self.sharing = Sharing("auto", OptimizerConfig().shared_threshold, self._can_share)
        self._micro_tokens: int | None = None
        if config.gradient_checkpointing:
            self.base.gradient_checkpointing_enable({"use_reentrant": False})
            self.base.enable_input_require_grads()
        self.base.train()
        self.sharded = Sharded(self.base, family, self.device) if shard else None

    @property
    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that an update changes."""
        return [p for p in self.base.parameters() if p.requires_grad]

    @property
    def named(self) -> dict[str, torch.nn.Parameter]:
        """The same by their names."""
        return {name: p for name, p in self.base.named_parameters() if p.requires_grad}

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """Evaluation mode without gradient; checkpointing and dropout are off inside.

        A sharded model is whole inside.
        """
        with self.whole(), self._evaluating(), self._autocast():
            yield

    def whole(self) -> contextlib.AbstractContextManager[None]:
        """Inside, every rank has all weights; all ranks enter it together."""
        return contextlib.nullcontext() if self.sharded is None else self.sharded.whole()

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.base.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.base.train()

    def logprobs(self, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs (with gradient, where enabled) and entropies of a micro-batch, [B, T] float32."""
        return self._forward(self.base, micro, self.shares(micro))

    def shares(self, micro: MicroBatch) -> bool:
        """Whether the shared forward computes this micro-batch.

        The first time that it would, both forwards are run on some of its rows; if they do not
        agree, the shared one is not used again.
        """
        if self.sharing.pays(micro) and self.sharing.verified is None:
            with self._autocast():
                found = disagreement(self.base, self.family, micro, self.temperature, self.pad_id)
            self.sharing.judge(found, self.config.dtype)
        return self.sharing.pays(micro)

    def _together(self, batches: Sequence[TrainBatch]) -> Sequence[TrainBatch]:
        """The batches as all ranks can go through them side by side; nothing changes for one rank.

        Whether to share prompts is decided for all, and where weights are sharded all get the same
        number of micro-batches.
        """
        if distributed.world() > 1 and self.sharing.verified is None:
            paying = [m for batch in batches for m in batch.micro if self.sharing.pays(m)]
            if distributed.any_rank(bool(paying)):
                with self.whole():
                    if paying:
                        self.shares(paying[0])
                verdicts = distributed.gather(self.sharing.verified)
                self.sharing.verified = all(verdict is not False for verdict in verdicts)
        return packing.evened(batches) if self.sharded else batches

    def _forward(
        self, model: Any, micro: MicroBatch, shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def work() -> tuple[torch.Tensor, torch.Tensor]:
            with self._autocast():
                return completion_logprobs(
                    model, self.family, micro, self.temperature, self.pad_id, shared
                )

        return work() if self.sharded is None else self.sharded.run(work)

    def one_by_one(
        self, model: Any, micro: MicroBatch
    ) -> Iterator[tuple[int, MicroBatch, torch.Tensor, torch.Tensor]]:
        """The low-memory forward of policy or reference."""
        return low_memory.one_by_one(
            model, self.family, micro, self.temperature, autocast=self._autocast
        )

    # ------------------------------------------------------------------------- reference and old

    def keep_reference(self, file: Path) -> None:
        """Make today's weights the reference and keep them in `file`; if that exists, it is the reference.

        With LoRA the reference is the model without its adapter, and nothing is kept.
        """
        if self.adapter is None:
            self._reference = Reference(self.base, self.sharded, file)

    def with_reference(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """The batches with `ref_logprobs` filled in."""
        fill = self._reference_logprobs
        batches = self._together(batches)
        return [
            self._fitting(b, lambda b: packing.filled(b, "ref_logprobs", fill)) for b in batches
        ]

    def with_old(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """The batches with `old_logprobs` filled in; needed only when a batch gives several updates."""
        fill = self._own_logprobs
        batches = self._together(batches)
        return [
            self._fitting(b, lambda b: packing.filled(b, "old_logprobs", fill)) for b in batches
        ]

    def _own_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        shared = self.shares(micro)
        with self._evaluating():
            return self._constant(self.base, micro, shared)

    def _reference_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        shared = self.shares(micro)  # with the adapter on: without it there is no gradient to check
        if self.adapter is not None:
            with self.adapter.disable_adapter(), self._evaluating():
                return self._constant(self.base, micro, shared)
        assert self._reference is not None, "keep_reference was not called"
        with self._evaluating(), self._reference.model() as model:
            return self._constant(model, micro, shared)

    def _constant(self, model: Any, micro: MicroBatch, shared: bool) -> torch.Tensor:
        """Log-probs [B, T] without gradient."""
        if self.sharing.setting != "low_memory":
            return self._forward(model, micro, shared)[0]
        out = torch.zeros(micro.mask.shape, device=self.device)
        for row, _, logprobs, _ in self.one_by_one(model, micro):
            out[row] = logprobs[0]
        return out

    # ------------------------------------------------------------------------------------ update

    def use_optimizer(self, optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> None:
        """Train with this optimizer from now on."""
        self.optimizer, self.max_grad_norm = optimizer, config.max_grad_norm
        if config.shared_forward in ("on", "low_memory") and not self._can_share:
            raise UserError(
                f"optimizer.shared_forward: {config.shared_forward}, but this model family or its "
                f"attention ({self.base.config.get_text_config()._attn_implementation}) cannot; "
                "use auto"
            )
        if config.shared_forward == "low_memory" and self.config.gradient_checkpointing:
            raise UserError(
                "optimizer.shared_forward: low_memory does not go with model.gradient_checkpointing"
            )
        if config.shared_forward == "low_memory" and self.sharded:
            raise UserError(
                "optimizer.shared_forward: low_memory does not go with distributed.strategy: fsdp2"
            )
        self.sharing = Sharing(config.shared_forward, config.shared_threshold, self._can_share)

    def update(
        self, batches: Sequence[TrainBatch], objective: Objective, lr: float, progress: float
    ) -> dict[str, float]:
        """One optimizer step per batch; returns metrics averaged over the loss tokens.

        A gradient that is not finite is not applied: it is counted as `update/skipped`.
        """
        sums: dict[str, float] = {}
        norms, skipped, tokens = [], 0, 0
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for batch in self._together(batches):
            own = self._fitting(batch, lambda b: self._gradient(b, objective, progress))
            for share in distributed.gather(own):
                add(sums, share)
            norm = self._clipped()
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

    def _clipped(self) -> float:
        """Sum the gradients over all ranks and video them; the norm that they had."""
        if self.sharded:  # the backward summed them
            self.sharded.forget_unused()
        else:
            distributed.sum_gradients(self.trainable)
        norm: Any = torch.nn.utils.clip_grad_norm_(self.trainable, self.max_grad_norm)
        return (norm.full_tensor() if self.sharded else norm).item()

    def _fitting(self, batch: TrainBatch, work: Callable[[TrainBatch], _T]) -> _T:
        """What `work` makes of the batch; out of memory, of the batch in halved micro-batches.

        The smaller budget stays for the rest of the run.
        """
        while True:
            if self._micro_tokens is not None:
                batch = packing.recut(batch, self._micro_tokens)
            try:
                return work(batch)
            except torch.OutOfMemoryError as error:
                if self.sharded:
                    raise UserError(
                        "out of memory: with distributed.strategy fsdp2 no rank can cut its "
                        "micro-batches alone; lower optimizer.micro_batch_tokens"
                    ) from error
                if all(len(micro.group) == 1 for micro in batch.micro):
                    raise UserError(
                        "out of memory with a single completion: use model.gradient_checkpointing, "
                        "model.lora, shorter completions or smaller media"
                    ) from error
            self._micro_tokens = max(packing.num_tokens(micro) for micro in batch.micro) // 2
            log.warning(
                "out of memory: the step is done again with micro-batches of at most %d tokens",
                self._micro_tokens,
            )
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _gradient(
        self, batch: TrainBatch, objective: Objective, progress: float
    ) -> dict[str, float]:
        """Fill the gradients from all micro-batches of one update; sums over its loss tokens."""
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
                add(sums, self._loss(part, new, entropy, batch, objective, progress))
            shared = True
        else:
            shared = self.shares(micro)
            new, entropy = self._forward(self.base, micro, shared)
            add(sums, self._loss(micro, new, entropy, batch, objective, progress))
        sums["update/shared"] = float(micro.mask.sum()) * shared
        return sums

    def _loss(
        self,
        micro: MicroBatch,
        new: torch.Tensor,
        entropy: torch.Tensor,
        batch: TrainBatch,
        objective: Objective,
        progress: float,
    ) -> dict[str, float]:
        """The loss and its backward; sums over the loss tokens."""
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

    # ----------------------------------------------------------------------------------- weights

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights under the HF model's own names, adapters merged in; live tensors, no copies.

        Of a sharded model copies on the CPU; all ranks ask together.
        """
        if self.sharded is not None:
            with self.whole(), torch.no_grad():
                return copied(self._merged(whole_state(self.base)))
        return self._merged(self.base.state_dict())

    def _merged(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.adapter is not None:
            return trainable.merged(self.base, state)
        return {name: p.detach() for name, p in state.items()}

    def save(self, folder: str) -> None:
        """Write a folder that `from_pretrained` loads as it is: weights (merged), config, processor.

        All ranks call it, the main one writes.
        """
        weights = self.weights()
        if distributed.is_main():
            self.family.save(self.base, folder, weights)
            self.processor.save_pretrained(folder)

    def training_state(self) -> dict[str, torch.Tensor]:
        """What `save` does not hold: with LoRA the adapter's weights, else nothing."""
        if self.adapter is None:
            return {}
        state = self.base.state_dict() if self.sharded is None else self.sharded.state()
        return {name: p for name, p in state.items() if ".lora_" in name}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take back what `training_state` gave."""
        if self.sharded is not None:
            unexpected = sorted(self.sharded.load(state))
        else:
            unexpected = self.base.load_state_dict(state, strict=False).unexpected_keys
        if unexpected:
            raise UserError(f"the checkpoint's adapter does not fit model.lora: {unexpected[0]}")

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.dtype == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()
