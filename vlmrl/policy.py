"""The policy: weights, freezing, LoRA, reference, log-probs, optimizer, update."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch

from vlmrl import batching, bits, distributed, low_memory, shared_attention, tuning
from vlmrl.algorithms.base import LossInputs, Objective
from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.forward import Sharing, completion_logprobs, disagreement
from vlmrl.models.base import Family
from vlmrl.schema import MicroBatch, TrainBatch

_T = TypeVar("_T")
log = logging.getLogger("vlmrl")
WORST = "rollout/logprob_max_ratio"
"""The one number of an update that is a largest one, not a mean over tokens."""


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
            tuning.quantize(model, family, config)
        self.base = model.to(self.device)
        self.adapter = tuning.with_lora(self.base, family, config) if config.lora else None
        tuning.freeze(self.base, family, config)
        distributed.same_everywhere(self.trainable)
        self.banned = torch.tensor(family.media_token_ids(processor), device=self.device)
        self._reference: Any = None
        self._can_share = family.shared and shared_attention.install(self.base)
        self.sharing = Sharing("auto", OptimizerConfig().shared_threshold, self._can_share)
        self._micro_tokens: int | None = None
        if config.gradient_checkpointing:
            self.base.gradient_checkpointing_enable({"use_reentrant": False})
            self.base.enable_input_require_grads()
        self.base.train()

    @property
    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that an update changes."""
        return [p for p in self.base.parameters() if p.requires_grad]

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """Evaluation mode without gradient; checkpointing and dropout are off inside."""
        self.base.eval()
        try:
            with torch.no_grad(), self._autocast():
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

    def _forward(
        self, model: Any, micro: MicroBatch, shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self._autocast():
            return completion_logprobs(
                model, self.family, micro, self.temperature, self.pad_id, shared
            )

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
        if self.adapter is not None:
            return
        self._reference = copy.deepcopy(self.base).eval().requires_grad_(False)
        if distributed.from_main(file.is_file()):
            safetensors.torch.load_model(self._reference, file)
        elif distributed.is_main():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            safetensors.torch.save_model(self._reference, str(part))
            part.replace(file)

    def with_reference(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """The batches with `ref_logprobs` filled in."""
        fill = self._reference_logprobs
        return [self._fitting(b, lambda b: _filled(b, "ref_logprobs", fill)) for b in batches]

    def with_old(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """The batches with `old_logprobs` filled in; needed only when a batch gives several updates."""
        fill = self._own_logprobs
        return [self._fitting(b, lambda b: _filled(b, "old_logprobs", fill)) for b in batches]

    def _own_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        shared = self.shares(micro)
        with self.generating():
            return self._constant(self.base, micro, shared)

    def _reference_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        shared = self.shares(micro)  # with the adapter on: without it there is no gradient to check
        if self.adapter is not None:
            with self.adapter.disable_adapter(), self.generating():
                return self._constant(self.base, micro, shared)
        assert self._reference is not None, "keep_reference was not called"
        with torch.no_grad():
            return self._constant(self._reference, micro, shared)

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
        self.optimizer, self.clip_norm = optimizer, config.clip_norm
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
        for batch in batches:
            own = self._fitting(batch, lambda b: self._gradient(b, objective, progress))
            for share in distributed.gather(own):
                _add(sums, share)
            distributed.sum_gradients(self.trainable)
            norm = torch.nn.utils.clip_grad_norm_(self.trainable, self.clip_norm).item()
            norms.append(norm)
            tokens += batch.num_tokens
            if math.isfinite(norm):
                self.optimizer.step()
            else:
                skipped += 1
        self.version += 1
        whole = ("loss/total", WORST)
        means = {key: value / max(tokens, 1) for key, value in sums.items() if key not in whole}
        return {
            **means,
            WORST: sums.get(WORST, 1.0),
            "loss/total": sums.get("loss/total", 0.0) / max(len(batches), 1),
            "update/grad_norm": sum(norms) / max(len(norms), 1),
            "update/lr": lr,
            "update/tokens": float(tokens),
            "update/skipped": float(skipped),
        }

    def _fitting(self, batch: TrainBatch, work: Callable[[TrainBatch], _T]) -> _T:
        """What `work` makes of the batch; out of memory, of the batch in halved micro-batches.

        The smaller budget stays for the rest of the run.
        """
        while True:
            if self._micro_tokens is not None:
                batch = batching.recut(batch, self._micro_tokens)
            try:
                return work(batch)
            except torch.OutOfMemoryError as error:
                if all(len(micro.group) == 1 for micro in batch.micro):
                    raise UserError(
                        "out of memory with a single completion: use model.gradient_checkpointing, "
                        "model.lora, shorter completions or smaller media"
                    ) from error
            self._micro_tokens = max(batching.num_tokens(micro) for micro in batch.micro) // 2
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
            _add(sums, self._backward(micro, batch, objective, progress))
        return sums

    def _backward(
        self, micro: MicroBatch, batch: TrainBatch, objective: Objective, progress: float
    ) -> dict[str, float]:
        sums: dict[str, float] = {}
        if self.sharing.setting == "low_memory":
            for _, part, new, entropy in self.one_by_one(self.base, micro):
                _add(sums, self._loss(part, new, entropy, batch, objective, progress))
            shared = True
        else:
            shared = self.shares(micro)
            new, entropy = self._forward(self.base, micro, shared)
            _add(sums, self._loss(micro, new, entropy, batch, objective, progress))
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
        # How far the engine's log-probs are from the trainer's: 0 for an exact engine.
        sums["rollout/logprob_gap"] = gap.abs().sum().item()
        # KL(engine || trainer), Schulman's k3: http://joschu.net/blog/kl-approx.html
        sums["rollout/logprob_kl"] = (gap.exp() - 1 - gap).sum().item()
        sums[WORST] = gap.abs().max().exp().item()
        return sums

    # ----------------------------------------------------------------------------------- weights

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights under the HF model's own names, adapters merged in; live tensors, no copies."""
        if self.adapter is None:
            return {name: p.detach() for name, p in self.base.state_dict().items()}
        return tuning.merged(self.base)

    def save(self, folder: str) -> None:
        """Write a folder that `from_pretrained` loads as it is: weights (merged), config, processor."""
        self.family.save(self.base, folder, self.weights())
        self.processor.save_pretrained(folder)

    def training_state(self) -> dict[str, torch.Tensor]:
        """What `save` does not hold: with LoRA the adapter's weights, else nothing."""
        return {name: p for name, p in self.base.state_dict().items() if ".lora_" in name}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take back what `training_state` gave."""
        unexpected = self.base.load_state_dict(state, strict=False).unexpected_keys
        if unexpected:
            raise UserError(f"the checkpoint's adapter does not fit model.lora: {unexpected[0]}")

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.dtype == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """The lr of update `step` (from 0) of `total`: linear warm-up, then the schedule."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    share = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    if config.schedule == "linear":
        return config.lr * (1 - share)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * share))
    return config.lr


def adamw(
    parameters: Sequence[torch.nn.Parameter],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    name: str = "adamw",
) -> torch.optim.Optimizer:
    """AdamW, or a kind of it in `bits`, that decays matrices only (not norms, not biases)."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if name in bits.OPTIMIZERS:
        return bits.optimizer(name)(groups, lr=lr, betas=betas, eps=eps)  # type: ignore[call-arg]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def _filled(
    batch: TrainBatch, name: str, compute: Callable[[MicroBatch], torch.Tensor]
) -> TrainBatch:
    def fill(micro: MicroBatch) -> MicroBatch:
        change: dict[str, Any] = {name: compute(micro)}
        return dataclasses.replace(micro, **change)

    return dataclasses.replace(batch, micro=tuple(map(fill, batch.micro)))


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for key, value in more.items():
        before = sums.get(key, 0.0)
        sums[key] = max(before, value) if key == WORST else before + value
