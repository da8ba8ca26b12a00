"""The model that is trained: its weights, its forwards, its files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from vlmrl.attention import dispatch
from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.forward import low_memory, router_replay
from vlmrl.forward.expert_precision import install_experts
from vlmrl.forward.finite import norm_of
from vlmrl.forward.logprobs import (
    Sharing,
    completion_logprobs,
    disagreement,
    few_rows,
    without_dropout,
)
from vlmrl.forward.sequence_parallel import Split, find_split
from vlmrl.models.base import Family
from vlmrl.models.loading import fingerprint
from vlmrl.models.parts.frozen_towers import install
from vlmrl.policy import trainable
from vlmrl.policy.fsdp import Sharded
from vlmrl.policy.weights import files, units
from vlmrl.policy.weights.units import Unit
from vlmrl.schema import MicroBatch
from vlmrl.system import distributed


class PolicyModel:
    """A model with its processor, freezing and adapters; `Policy` adds the reference and the update.

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
        if config.router_replay:
            trainable.require_experts(model, family)
        self.stop_ids = family.stop_token_ids(processor)
        self.pad_id = self.tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = self.stop_ids[0]
        if config.quantization:
            trainable.quantize(model, family, config)
        # What is to be sharded reaches the device in slices: the whole may not fit.
        # A model that is there is not moved, unless it gets its 4-bit weights by that.
        there = model.device.type == self.device.type and not config.quantization
        self.base = model if shard or there else model.to(self.device)
        self.adapter = trainable.with_lora(self.base, family, config) if config.lora else None
        trainable.freeze(self.base, family, config)
        if config.dtype == "bfloat16" and not shard:  # else every rank does so with its slices
            for parameter in filter(torch.Tensor.is_floating_point, self.base.parameters()):
                parameter.data = trainable.narrow(parameter, config)
        self.frozen_towers = trainable.frozen_towers(self.base, family)
        if self.frozen_towers is not None:
            install(self.base, self.frozen_towers)
        trainable.keep_features(self.frozen_towers, config)
        distributed.same_everywhere(self._may_differ(shard))
        self.banned = torch.tensor(family.media_token_ids(processor), device=self.device)
        self._can_share = family.shared and dispatch.install(self.base)
        if config.dtype == "bfloat16":
            install_experts(self.base)
        self.sharing = Sharing("auto", OptimizerConfig().shared_threshold, self._can_share)
        self.split = find_split(self.base, self._can_share)
        if config.gradient_checkpointing:
            given = {"context_fn": router_replay.again} if config.router_replay else {}
            self.base.gradient_checkpointing_enable({"use_reentrant": False, **given})
        if config.gradient_checkpointing or shard:
            # A rank with text only would sum the first layer's gradients in another order than the rest.
            self.base.enable_input_require_grads()
        self.base.train()
        frozen = self.frozen_towers is not None
        self.sharded = Sharded(self.base, family, config, self.device, frozen) if shard else None

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
    def in_step(self) -> str | None:
        """The key of the config by which no rank can run a forward alone, if there is one."""
        if self.sharded is not None:
            return "distributed.strategy fsdp2"
        return None if self.split is None else "distributed.sequence_parallel"

    @property
    def named(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by their names."""
        return {name: p for name, p in self.base.named_parameters() if p.requires_grad}

    def seeing_once(self) -> contextlib.AbstractContextManager[None]:
        """Run frozen towers once per medium inside: rollout, passes and update share what they find."""
        return (
            contextlib.nullcontext() if self.frozen_towers is None else self.frozen_towers.keeping()
        )

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

    def logprobs(self, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs (with gradient, where enabled) and entropies of a micro-batch, [B, T] float32."""
        return self._forward(self.base, micro, self.shares(micro), together=False)

    def shares(self, micro: MicroBatch, split: Split | None = None) -> bool:
        """Return whether the shared forward computes this micro-batch.

        The first time that it would, both forwards run on some of its rows, by all ranks of `split`
        together; if they disagree, the shared one is not used again.
        """
        if self.sharing.pays(micro) and self.sharing.verified is None:
            with self._autocast():
                found = disagreement(
                    self.base, self.family, micro, self.temperature, self.pad_id, split
                )
            self.sharing.decide(found, self.config.dtype)
        return self.sharing.pays(micro)

    def _verify_together(self, micro: MicroBatch) -> None:
        """Judge the shared forward by this micro-batch of each rank, as `shares` does; weights stay sliced.

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
        off = norm_of(other[n] - g for n, g in plain.items()) / norm_of(plain.values())
        self.sharing.decide((max(distributed.gather(gap)), off.item()), self.config.dtype)

    def _forward(
        self, model: Any, micro: MicroBatch, shared: bool, together: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a forward; `together`: the ranks that share tokens all call it with this micro-batch."""
        split = self.split if together else None

        def work() -> tuple[torch.Tensor, torch.Tensor]:
            with self._autocast():
                return completion_logprobs(
                    model, self.family, micro, self.temperature, self.pad_id, shared, split
                )

        return work() if self.sharded is None else self.sharded.run(work)

    def one_by_one(
        self, model: Any, micro: MicroBatch
    ) -> Iterator[tuple[int, MicroBatch, torch.Tensor, torch.Tensor]]:
        """Run the low-memory forward of policy or reference; see `low_memory.one_by_one`."""
        return low_memory.one_by_one(
            model, self.family, micro, self.temperature, autocast=self._autocast
        )

    # ----------------------------------------------------------------------------------------- weights

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
        found = units.units_of(self.base, self.family)
        if self.adapter is None:
            whole = units.gather(found, dtype)
        elif adapters == "merged":
            whole = units.merge(found, self.base, dtype)
        else:
            whole = units.gather(units.without_adapters(found), dtype)
        return units.with_tied_names(whole, self.base) if every_name else whole

    def take_part(
        self, dtype: torch.dtype | None = None, adapters: Literal["merged", "left out"] = "merged"
    ) -> None:
        """Gather with the main rank, which asks for these `units`, and keep nothing.

        Unless sharded, and where the main rank is of another replica, do nothing.
        """
        if self.sharded is not None and 0 in distributed.sharding_ranks():
            units.take_part(self.units(dtype, adapters))

    def weight_bytes(self) -> int:
        """Return the size of all weights as stored, under all of their names; nothing is gathered."""
        return units.count_bytes(self.base)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights under all of the HF model's own names, adapters merged in.

        They are live tensors, no copies; of a sharded model copies on the CPU, and all ranks call together.
        """
        parts = self.units()
        parts = parts if self.sharded is None else map(units.copy_to_cpu, parts)
        found = {name: weight for part in parts for name, weight in part.items()}
        tied = units.find_tied_names(self.base)
        return found | {name: found[first] for name, first in tied.items()}

    def save(self, folder: str) -> None:
        """Write a folder that `from_pretrained` loads as it is: weights (merged), config, processor.

        All ranks call it. The main one writes; of a sharded model's weights each rank a part.
        """
        if self.sharded is None:
            if distributed.is_main():
                self.family.save(self.base, folder, self.weights())
                self.processor.save_pretrained(folder)
            return
        self.save_frame(folder)
        written = distributed.gather(len(files.write_parts(Path(folder), self.parts())))
        if distributed.is_main():
            files.name_parts(Path(folder), sum(written))
        distributed.barrier()

    def save_frame(self, folder: str) -> None:
        """Write what `save` writes but the weights; the main rank does."""
        if distributed.is_main():
            self.family.save(self.base, folder, {})
            (Path(folder) / files.NAME).unlink(missing_ok=True)
            self.processor.save_pretrained(folder)

    def parts(self) -> Iterator[tuple[int, Unit]]:
        """Yield the parts of the weights that this rank writes, as files hold them, see `deal_parts`.

        They are copies on the CPU. All ranks ask together.
        """
        for number, part in files.deal_parts(self.units(), self.weight_bytes()):
            yield number, self.family.published(self.base, part)

    def training_state(self) -> dict[str, torch.Tensor]:
        """Return what `save` does not write: with LoRA the adapter's weights, otherwise nothing.

        Of a sharded model they are copies on the CPU, and all ranks call together.
        """
        if self.adapter is None:
            return {}
        if self.sharded is not None:
            self.sharded.rest()
        state = self.base.state_dict()
        adapter = {name: p for name, p in state.items() if trainable.is_adapter(name)}
        if self.sharded is None:
            return adapter
        return units.copy_to_cpu(next(units.gather([adapter])))

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore what `training_state` returned.

        Raises:
            UserError: the adapter does not fit `model.lora`.
        """
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
