"""The policy: a model with its forwards, its reference, its update and its files.

Whatever is not finite is never applied and never saved; ranks that work in step decide alike.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from vlmrl.algorithms.base import LossInputs, Objective, Pass
from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.data.prompt import mask_media
from vlmrl.errors import NotFinite, UserError
from vlmrl.forward import experts, finite, packing
from vlmrl.forward.experts import install_experts
from vlmrl.forward.logprobs import (
    Sharing,
    completion_logprobs,
    disagreement,
    few_rows,
    keep_float32,
    without_dropout,
)
from vlmrl.models import attention, value_head
from vlmrl.models.base import Family
from vlmrl.models.cache_sizes import recurs
from vlmrl.models.frozen_towers import install
from vlmrl.models.loading import fingerprint, save_processor
from vlmrl.policy import trainable, weights
from vlmrl.policy.gradient_sums import sum_gradients
from vlmrl.policy.loss_metrics import add, averages, engine_gap
from vlmrl.policy.weights import Unit
from vlmrl.schema import ORIGINS, MicroBatch, TrainBatch
from vlmrl.system import distributed

if TYPE_CHECKING:
    from vlmrl.forward.sequence_parallel import Split
    from vlmrl.policy.fsdp import Sharded
    from vlmrl.policy.reference import Reference

MAX_REFUSED = 10
"""So many updates in a row whose gradients are not finite end the run."""

_T = TypeVar("_T")
log = logging.getLogger("vlmrl")


class Policy:
    """The trained model with its processor and adapters, its reference and its optimizer.

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
        head: torch.Tensor | None = None,
    ) -> None:
        """Make the policy of a loaded model; with a `head` [1, H] it is a reward model that trains."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.family, self.processor, self.config = family, processor, config
        self.tokenizer = processor.tokenizer
        self.temperature = temperature
        self.version = 0
        self.stop_ids = family.stop_token_ids(processor)
        self.pad_id = self.tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = self.stop_ids[0]
        self.banned = torch.tensor(family.media_token_ids(processor), device=self.device)
        self._prepare_weights(model, shard, head)
        self._prepare_forward(shard)
        frozen = self.frozen_towers is not None
        self.sharded: Sharded | None = None
        if shard:
            from vlmrl.policy.fsdp import Sharded  # a plain run is not sharded

            self.sharded = Sharded(self.base, family, config, self.device, frozen)
        self.reference: Reference | None = None
        self.refused = ""
        """What was not finite in the last update, so that it was not applied."""
        self.observe: Callable[[MicroBatch, torch.Tensor], object] | None = None
        """What is shown each micro-batch of an update with the log-probs before it [B, T]; None: nothing."""
        self._refused_in_a_row = 0
        self._probe: MicroBatch | None = None
        self._micro_tokens: int | None = None
        """The budget of a micro-batch since the device was out of memory; None: it never was."""

    def _prepare_weights(self, model: Any, shard: bool, head: torch.Tensor | None) -> None:
        """Quantize, adapt, freeze and narrow the weights, and see that ranks hold the same."""
        family, config = self.family, self.config
        if config.router_replay:
            trainable.require_experts(model, family)
        if config.quantization:
            trainable.quantize(model, family, config)
        # What is to be sharded reaches the device in slices: the whole may not fit.
        # A model that is there is not moved, unless it gets its 4-bit weights by that.
        there = model.device.type == self.device.type and not config.quantization
        self.base = model if shard or there else model.to(self.device)
        self.adapter = trainable.with_lora(self.base, family, config) if config.lora else None
        trainable.freeze(self.base, family, config)
        if head is not None:
            own = value_head.TrainedHead(head)
            setattr(self.base, value_head.NAME, own if shard else own.to(self.device))
        if config.dtype == "bfloat16" and not shard:  # else every rank does so with its slices
            for parameter in filter(torch.Tensor.is_floating_point, self.base.parameters()):
                parameter.data = trainable.narrow(parameter, config)
        self.frozen_towers = trainable.frozen_towers(self.base, family)
        if self.frozen_towers is not None:
            install(self.base, self.frozen_towers)
        trainable.keep_features(self.frozen_towers, config)
        distributed.same_everywhere(self._may_differ(shard))

    def _find_split(self) -> Split | None:
        """Return the ranks with which this one shares the tokens of its rows; None: with none."""
        if len(distributed.sequence_ranks()) == 1:
            return None
        from vlmrl.forward.sequence_parallel import find_split

        return find_split(self.base, self._can_share)

    def _prepare_forward(self, shard: bool) -> None:
        """Install in the model what the forwards need: shared prompts, split tokens, checkpointing."""
        config = self.config
        self._can_share = self.family.shared and attention.install(self.base)
        if self._can_share and recurs(self.base.config.get_text_config()):
            from vlmrl.models import delta_net  # few models have such layers

            delta_net.install(self.base)
        if config.dtype == "bfloat16":
            install_experts(self.base)
        if config.float32_head:
            keep_float32(self.base.get_output_embeddings())
        self.sharing = Sharing("auto", OptimizerConfig().shared_threshold, self._can_share)
        self.split = self._find_split()
        if config.gradient_checkpointing:
            replayed = {"context_fn": experts.again} if config.router_replay else {}
            self.checkpoint_layers(**replayed)
        if config.gradient_checkpointing or shard:
            # A rank with text only would sum the first layer's gradients in another order than the rest.
            self.base.enable_input_require_grads()
        self.base.train()

    @property
    def checkpoints_layers(self) -> bool:
        """Whether a backward pass computes layers again instead of keeping their activations."""
        return any(
            getattr(module, "gradient_checkpointing", False) for module in self.base.modules()
        )

    def checkpoint_layers(self, on: bool = True, /, **options: object) -> None:
        """Compute layers again in the backward pass, by options of `torch.utils.checkpoint`, or keep all."""
        # transformers calls it activation checkpointing from 5.23 on, and warns of the older name.
        new = hasattr(self.base, "activation_checkpointing_enable")
        how = "activation" if new else "gradient"
        if on:
            getattr(self.base, f"{how}_checkpointing_enable")({"use_reentrant": False, **options})
        else:
            getattr(self.base, f"{how}_checkpointing_disable")()

    def _may_differ(self, shard: bool) -> list[torch.nn.Parameter]:
        """Return the trainable weights that ranks have not read from the same files.

        Raises:
            UserError: the files differ, and no rank is to hold what others have read.
        """
        if distributed.world() == 1:
            return []
        files = distributed.gather(fingerprint(self.base.name_or_path))
        if not files[0] or len(set(files)) > 1:
            if shard and any(files):
                raise UserError(
                    f"model.path: {self.base.name_or_path} holds other weights for some processes than "
                    "for others; give all machines the same files"
                )
            return self.trainable
        return [p for name, p in self.named.items() if trainable.is_adapter(name)]

    @property
    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that an update changes, in the model's order."""
        return [p for p in self.base.parameters() if p.requires_grad]

    @property
    def named(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by their names."""
        return {name: p for name, p in self.base.named_parameters() if p.requires_grad}

    @contextlib.contextmanager
    def training_only(self, towers: Sequence[str]) -> Iterator[None]:
        """Let only the weights of these towers train inside, of those that do; all ranks enter together.

        Raises:
            UserError: no weight of one of the towers trains.
        """
        of = {name: trainable.tower_of(name, self.family) for name in self.named}
        for tower in towers:
            if tower not in of.values():
                raise UserError(
                    f"sft.align.towers: expected towers that train, of {sorted(set(of.values()))}, "
                    f"got {tower!r}"
                )
        others = {name for name, tower in of.items() if tower not in towers}
        self._let_train(others, False)
        try:
            yield
        finally:
            self._let_train(others, True)

    def _let_train(self, names: Collection[str], trains: bool) -> None:
        """Let gradients be computed of the weights of these names, or not; what they have is dropped."""
        for model in [self.base] if self.sharded is None else self.sharded.each_form():
            for name, parameter in model.named_parameters():
                if name in names:
                    parameter.requires_grad_(trains)
                    parameter.grad = None

    @property
    def in_step(self) -> str | None:
        """Config key that forces ranks to run forwards together, or None."""
        if self.sharded is not None:
            return "distributed.strategy fsdp2"
        return None if self.split is None else "distributed.sequence_parallel"

    # ------------------------------------------------------------------------------------------- forwards

    def seeing_once(self) -> contextlib.AbstractContextManager[None]:
        """Run frozen towers once per medium inside: rollout, passes and update share what they find."""
        towers = self.frozen_towers
        return contextlib.nullcontext() if towers is None else towers.keeping()

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """Enter evaluation mode without gradient: checkpointing and dropout are off.

        Inside, a sharded model is whole.
        """
        with self.whole(), self._evaluating(), self._autocast():
            yield

    def whole(self, needed: bool = True) -> contextlib.AbstractContextManager[None]:
        """Give every rank all weights inside, if they are `needed`; all ranks enter together."""
        if self.sharded is None or not needed:
            return contextlib.nullcontext()
        return self.sharded.whole()

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.base.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.base.train()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.dtype == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def logprobs(self, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs (with gradient, where enabled) and entropies of a micro-batch, [B, T] float32."""
        return self._forward(self.base, micro, self.uses_shared_forward(micro), together=False)

    def uses_shared_forward(self, micro: MicroBatch, split: Split | None = None) -> bool:
        """Return whether the shared forward computes this micro-batch.

        The first time that it would, both forwards run on some of its rows, by all ranks of `split`
        together; if they disagree, the shared one is not used again.
        """
        if self.sharing.pays(micro) and self.sharing.verified is None:
            inputs = self.base, self.family, micro, self.temperature, self.pad_id, split
            with self._autocast():
                gaps = disagreement(*inputs)
            self.sharing.decide(gaps, self.config.dtype)
        return self.sharing.pays(micro)

    def _verify_together(self, micro: MicroBatch) -> None:
        """Verify the shared forward on a micro-batch of each rank; weights stay sliced.

        Ranks where it would not pay run the plain forward twice, since all run the same layers. The
        gradients are of all weights and ranks together.
        """
        few, signs = few_rows(micro)
        scored, gradients = [], []
        # Those of the last update, perhaps of the cold start's, are still there.
        for parameter in self.trainable:
            parameter.grad = None
        with torch.enable_grad(), without_dropout(self.base):
            for shared in (False, self.sharing.pays(micro)):
                out = self._forward(self.base, few, shared)[0][few.mask.to(self.device)]
                (out * signs.to(self.device)).sum().backward()
                scored.append(out.detach())
                gradients.append({n: p.grad for n, p in self.named.items() if p.grad is not None})
                for parameter in self.trainable:
                    parameter.grad = None
        assert self.sharded is not None
        self.sharded.forget_unused()
        plain, other = gradients
        gap = (scored[1] - scored[0]).abs().mean().item() if len(scored[0]) else 0.0
        difference = finite.norm_of(other[n] - g for n, g in plain.items())
        off = (difference / finite.norm_of(plain.values())).item()
        self.sharing.decide((max(distributed.gather(gap)), off), self.config.dtype)

    def _forward(
        self,
        model: object,
        micro: MicroBatch,
        shared: bool,
        together: bool = True,
        entropy_gradient: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a forward; `together`: the ranks that share tokens all call it with this micro-batch."""
        split = self.split if together else None

        def work() -> tuple[torch.Tensor, torch.Tensor]:
            with self._autocast():
                return completion_logprobs(
                    model,
                    self.family,
                    micro,
                    self.temperature,
                    self.pad_id,
                    shared,
                    split,
                    entropy_gradient,
                )

        return work() if self.sharded is None else self.sharded.run(work)

    def _detached(
        self, model: object, micro: MicroBatch, shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropies [B, T] without gradient, on the CPU."""
        if self.sharing.setting != "low_memory":
            logprobs, entropies = self._forward(model, micro, shared)
            return logprobs.cpu(), entropies.cpu()
        both = torch.zeros(2, *micro.mask.shape)
        for row, _, logprobs, entropies in self.one_by_one(model, micro):
            both[:, row] = torch.stack([logprobs[0], entropies[0]]).cpu()
        return both[0], both[1]

    def one_by_one(
        self, model: object, micro: MicroBatch, entropy_gradient: bool = False
    ) -> Iterator[tuple[int, MicroBatch, torch.Tensor, torch.Tensor]]:
        """Run the low-memory forward of policy or reference; see `low_memory.one_by_one`."""
        from vlmrl.forward import low_memory  # only where it is asked for

        return low_memory.one_by_one(
            model, self.family, micro, self.temperature, self._autocast, entropy_gradient
        )

    # -------------------------------------------------------------------------- forwards before an update

    def keep_reference(self, folder: Path, source: Path | None = None) -> None:
        """Make the current weights the reference and write them to `folder`.

        With `source`, a folder that an earlier call has written, take the weights from there.

        Raises:
            UserError: `source` is missing or damaged or of another model; the disk is full.
        """
        from vlmrl.policy.reference import Reference  # a plain run has none

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
            shared = self.uses_shared_forward(micro)  # with the policy's own weights
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

    def _own(self, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        shared = self.uses_shared_forward(micro)
        with self._evaluating():
            return self._detached(self.base, micro, shared)

    def _fill(
        self,
        batches: Sequence[TrainBatch],
        compute: Callable[[MicroBatch], Mapping[str, torch.Tensor]],
    ) -> list[TrainBatch]:
        batches = self._align_ranks(batches)
        return [self._halving(b, lambda b: packing.fill(b, compute)) for b in batches]

    # --------------------------------------------------------------------------------------------- update

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
            own = self._halving(batch, lambda b: self._accumulate_gradients(b, objective, progress))
            # Ranks that share tokens have equal sums: one of them counts.
            by_rank = distributed.gather(own if distributed.speaks_for_sequence() else {})
            for sums_of_rank in by_rank:
                add(sums, sums_of_rank)
            norms.append(norm := self._clip_gradients())
            tokens += batch.num_tokens
            if math.isfinite(norm):
                self.optimizer.step()
                self._refused_in_a_row = 0
            else:
                skipped += 1
                self._refuse(by_rank)
        self._require_finite_weights()
        self.version += 1
        return {
            **averages(sums, tokens, len(batches)),
            "update/grad_norm": sum(norms) / max(len(norms), 1),
            "update/lr": lr,
            "update/tokens": float(tokens),
            "update/skipped": float(skipped),
        }

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
                    self.uses_shared_forward(paying[0], self.split)
                verdicts = distributed.gather(self.sharing.verified)
                self.sharing.verified = all(verdict is not False for verdict in verdicts)
        return batches

    def _halving(self, batch: TrainBatch, work: Callable[[TrainBatch], _T]) -> _T:
        """Return what `work` makes of the batch; out of memory, try again in halved micro-batches.

        The smaller budget stays for the rest of the run.

        Raises:
            UserError: even a single completion does not fit, or the ranks work in step.
        """
        while True:
            if self._micro_tokens is not None:
                batch = packing.recut(batch, self._micro_tokens)
            try:
                return work(batch)
            except torch.OutOfMemoryError as error:
                if self.in_step:
                    raise UserError(
                        f"out of memory: with {self.in_step} no rank can cut its micro-batches "
                        "alone; lower optimizer.micro_batch_tokens"
                    ) from error
                if all(len(micro.group) == 1 for micro in batch.micro):
                    raise UserError(
                        "out of memory with a single completion: use model.gradient_checkpointing, "
                        "model.lora, shorter completions or smaller media"
                    ) from error
            self._micro_tokens = max(packing.num_tokens(micro) for micro in batch.micro) // 2
            log.warning(
                "out of memory: the step is repeated with micro-batches of at most %d tokens",
                self._micro_tokens,
            )
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _accumulate_gradients(
        self, batch: TrainBatch, objective: Objective, progress: float
    ) -> dict[str, float]:
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
            rows = self.one_by_one(self.base, micro, objective.entropy_gradient)
            for _, part, new, entropy in rows:
                add(sums, self._backward_loss(part, new, entropy, batch, objective, progress))
            shared = True
        else:
            shared = self.uses_shared_forward(micro)
            new, entropy = self._forward(
                self.base, micro, shared, entropy_gradient=objective.entropy_gradient
            )
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
        mask = micro.mask.to(self.device)
        extra = {name: value.to(self.device) for name, value in micro.extra.items()}
        old = new.detach() if micro.old_logprobs is None else micro.old_logprobs.to(self.device)
        if self.observe is not None:
            self.observe(micro, old)
        sampling = micro.sampling_logprobs.to(self.device)
        if "origin" in extra:  # what the policy did not sample has no importance weight
            own = (extra["origin"] == 0) | (extra["origin"] == ORIGINS.index("replay"))
            sampling = torch.where(own, sampling, old)
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
                entropy=entropy if objective.entropy_gradient else None,
            )
        )
        if out.loss.requires_grad:  # of texts alone it does not where only a projector trains
            out.loss.backward()
        gap = (old - sampling)[mask]
        sums = {key: float(value) for key, value in out.metrics.items()}
        sums["loss/total"] = out.loss.item()
        sums["rollout/entropy"] = entropy[mask].sum().item()
        turns = micro.turns
        return {**sums, **engine_gap(gap, None if turns is None else turns.to(self.device)[mask])}

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

    def _refuse(self, by_rank: Sequence[Mapping[str, float]]) -> None:
        known = {"rollout/entropy": "the policy's log-probs", "loss/total": "the loss"}
        wrong = [w for k, w in known.items() if not all(math.isfinite(s[k]) for s in by_rank if s)]
        gradients = {name: p.grad for name, p in self.named.items() if p.grad is not None}
        name = finite.first_not_finite(gradients)
        self.refused = " and ".join([*wrong, f"the gradient (first: {name})"]) + " not finite"
        self._refused_in_a_row += 1
        if self._refused_in_a_row == MAX_REFUSED:
            raise NotFinite(f"{self.refused}, in {MAX_REFUSED} updates in a row")

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

    def _require_finite_weights(self) -> None:
        norm = finite.norm_of(self.trainable).item()
        if distributed.any_rank(not math.isfinite(norm)):
            name = finite.first_not_finite(self.named)
            raise NotFinite(
                f"the weights have diverged: their norm is {norm} (first: {name}); lower the learning "
                "rate and resume, the checkpoints before are kept"
            )

    # ---------------------------------------------------------------------------------- weights and files

    def units(
        self,
        dtype: torch.dtype | None = None,
        adapters: Literal["merged", "left out"] = "merged",
        every_name: bool = False,
    ) -> Iterator[Unit]:
        """Yield all weights under the HF model's own names, some at a time.

        Of tied weights the first name, with `every_name` all of them in one unit. Floating point weights
        come in `dtype` if that is given. Of a sharded model all ranks ask for all of them together, and
        each is gone when the next one is asked for; otherwise they are live.
        """
        if self.sharded is not None:
            self.sharded.rest()
        parts = weights.units_of(self.base, self.family)
        if self.adapter is None:
            whole = weights.gather(parts, dtype)
        elif adapters == "merged":
            whole = weights.merge(parts, self.base, dtype)
        else:
            whole = weights.gather(weights.without_adapters(parts), dtype)
        return weights.with_tied_names(whole, self.base) if every_name else whole

    def take_part(
        self, dtype: torch.dtype | None = None, adapters: Literal["merged", "left out"] = "merged"
    ) -> None:
        """Gather with the main rank, which asks for these `units`, and keep nothing.

        Unless sharded, and where the main rank is of another replica, do nothing.
        """
        if self.sharded is not None and 0 in distributed.sharding_ranks():
            weights.take_part(self.units(dtype, adapters))

    def weight_bytes(self) -> int:
        """Return the size of all weights as stored, under all of their names; nothing is gathered."""
        return weights.count_bytes(self.base)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights under all of the HF model's own names, adapters merged in.

        They are live tensors, no copies; of a sharded model copies on the CPU, and all ranks call together.
        """
        parts = self.units()
        parts = parts if self.sharded is None else map(weights.copy_to_cpu, parts)
        named = {name: weight for part in parts for name, weight in part.items()}
        tied = weights.find_tied_names(self.base)
        return named | {name: named[first] for name, first in tied.items()}

    def save(self, folder: str) -> None:
        """Write a folder that `from_pretrained` loads as it is: weights (merged), config, processor.

        All ranks call it. The main one writes; of a sharded model's weights each rank a part.
        """
        if self.sharded is None:
            if distributed.is_main():
                self.family.save(self.base, folder, self.weights())
                save_processor(self.processor, folder)
            return
        self.save_frame(folder)
        written = distributed.gather(len(weights.write_parts(Path(folder), self.parts())))
        if distributed.is_main():
            weights.name_parts(Path(folder), sum(written))
        distributed.barrier()

    def save_frame(self, folder: str) -> None:
        """Write what `save` writes but the weights; the main rank does."""
        if distributed.is_main():
            self.family.save(self.base, folder, {})
            (Path(folder) / weights.NAME).unlink(missing_ok=True)
            save_processor(self.processor, folder)

    def parts(self) -> Iterator[tuple[int, Unit]]:
        """Yield the parts of the weights that this rank writes, as files hold them, see `deal_parts`.

        They are copies on the CPU. All ranks ask together.
        """
        for number, part in weights.deal_parts(self.units(), self.weight_bytes()):
            yield number, self.family.published(self.base, part)

    def training_state(self) -> dict[str, torch.Tensor]:
        """Return what LoRA trains, the adapter's weights and those of `lora.full`; without it nothing.

        Of a sharded model they are copies on the CPU, and all ranks call together.
        """
        if self.adapter is None:
            return {}
        if self.sharded is not None:
            self.sharded.rest()
        adapter = {
            name: parameter.detach()
            for name, parameter in self.base.named_parameters()
            if trainable.is_kept_apart(name, self.family, self.config)
        }
        if self.sharded is None:
            return adapter
        return weights.copy_to_cpu(next(weights.gather([adapter])))

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore what `training_state` returned.

        Raises:
            UserError: the adapter does not fit `model.lora`.
        """
        if self.sharded is None:
            unexpected = self.base.load_state_dict(state, strict=False).unexpected_keys
        else:
            unexpected = sorted(self.sharded.load(state))
        if unexpected:
            raise UserError(f"the checkpoint's adapter does not fit model.lora: {unexpected[0]}")
