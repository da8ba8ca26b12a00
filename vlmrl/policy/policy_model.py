"""The model that is trained: its weights, its forwards, its files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from vlmrl.config import ModelConfig, OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.forward import low_memory, shared_attention
from vlmrl.forward.logprobs import Sharing, completion_logprobs, disagreement
from vlmrl.models.base import Family
from vlmrl.models.parts.frozen_towers import install
from vlmrl.policy import trainable
from vlmrl.policy.fsdp import Sharded, copy_to_cpu, whole_state
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
        self.frozen_towers = trainable.frozen_towers(self.base, family)
        if self.frozen_towers is not None:
            install(self.base, self.frozen_towers)
        distributed.same_everywhere(self.trainable)
        self.banned = torch.tensor(family.media_token_ids(processor), device=self.device)
        self._can_share = family.shared and shared_attention.install(self.base)
        self.sharing = Sharing("auto", OptimizerConfig().shared_threshold, self._can_share)
        if config.gradient_checkpointing:
            self.base.gradient_checkpointing_enable({"use_reentrant": False})
            self.base.enable_input_require_grads()
        self.base.train()
        frozen = self.frozen_towers is not None
        self.sharded = Sharded(self.base, family, self.device, frozen) if shard else None

    @property
    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that an update changes, in the model's order."""
        return [p for p in self.base.parameters() if p.requires_grad]

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

    def whole(self) -> contextlib.AbstractContextManager[None]:
        """Give every rank all weights inside; all ranks enter together."""
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
        """Return log-probs (with gradient, where enabled) and entropies of a micro-batch, [B, T] float32."""
        return self._forward(self.base, micro, self.shares(micro))

    def shares(self, micro: MicroBatch) -> bool:
        """Return whether the shared forward computes this micro-batch.

        The first time that it would, both forwards run on some of its rows; if they disagree, the
        shared one is not used again.
        """
        if self.sharing.pays(micro) and self.sharing.verified is None:
            with self._autocast():
                found = disagreement(self.base, self.family, micro, self.temperature, self.pad_id)
            self.sharing.judge(found, self.config.dtype)
        return self.sharing.pays(micro)

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
        """Run the low-memory forward of policy or reference; see `low_memory.one_by_one`."""
        return low_memory.one_by_one(
            model, self.family, micro, self.temperature, autocast=self._autocast
        )

    # ----------------------------------------------------------------------------------------- weights

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights under the HF model's own names, adapters merged in: live tensors, no copies.

        Of a sharded model they are copies on the CPU, and all ranks call together.
        """
        if self.sharded is not None:
            with self.whole(), torch.no_grad():
                return copy_to_cpu(self._merge_adapter(whole_state(self.base)))
        return self._merge_adapter(self.base.state_dict())

    def base_weights(self) -> dict[str, torch.Tensor]:
        """Return all weights as `weights` does, but of the model without its adapters."""
        if self.sharded is None:
            return trainable.without_adapters(self.base.state_dict())
        with self.whole():
            return copy_to_cpu(trainable.without_adapters(whole_state(self.base)))

    def _merge_adapter(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.adapter is not None:
            return trainable.merge_adapters(self.base, state)
        return {name: p.detach() for name, p in state.items()}

    def save(self, folder: str) -> None:
        """Write a folder that `from_pretrained` loads as it is: weights (merged), config, processor.

        All ranks call it; the main one writes.
        """
        weights = self.weights()
        if distributed.is_main():
            self.family.save(self.base, folder, weights)
            self.processor.save_pretrained(folder)

    def training_state(self) -> dict[str, torch.Tensor]:
        """Return what `save` does not write: with LoRA the adapter's weights, otherwise nothing."""
        if self.adapter is None:
            return {}
        state = self.base.state_dict() if self.sharded is None else self.sharded.state()
        return {name: p for name, p in state.items() if trainable.is_adapter(name)}

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
