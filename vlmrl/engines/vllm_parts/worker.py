"""Code that runs inside a vLLM server's workers: receiving weights, a few calls from the trainer.

vLLM imports this module in every worker before it makes the weight transfer engine, so the
back-end registers itself here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from vlmrl.engines.vllm_parts import gloo, vllm_model


class Worker:
    """Mixed into vLLM's worker (`--worker-extension-cls`)."""

    vllm_config: Any
    model_runner: Any

    def set_temperature(self, temperature: float) -> None:
        """Divide all logits by the temperature, see `_model.set_temperature`."""
        vllm_model.set_temperature(self.model_runner.get_model(), temperature)

    def abandon_update(self) -> None:
        """Forget an update that broke off, see `_model.abandon_update`; vLLM's own do not."""
        self._weight_update_active = False
        vllm_model.abandon_update(self.model_runner.get_model(), self.vllm_config.model_config)

    def describe(self) -> dict[str, Any]:
        """Return what the trainer compares with its own model before it trusts this server."""
        model = self.vllm_config.model_config
        text = model.hf_config.get_text_config()
        config = getattr(model.hf_config, "thinker_config", model.hf_config)  # of Qwen2.5-Omni
        return {
            "model_type": config.model_type,
            "hidden_size": text.hidden_size,
            "num_hidden_layers": text.num_hidden_layers,
            "vocab_size": text.vocab_size,
            "max_model_len": model.max_model_len,
            "logprobs_mode": str(model.logprobs_mode),
            "dtype": str(model.dtype).removeprefix("torch."),
            "transfer": self.vllm_config.weight_transfer_config.backend,
        }


@dataclass
class Meeting(WeightTransferInitInfo):
    """Where the trainer waits for a gloo group of `world_size`; no address: weights come by file."""

    address: str | None = None
    port: int = 0
    world_size: int = 1
    timeout: float = 0.0


@dataclass
class Update(WeightTransferUpdateInfo):
    """A safetensors file, or the tensors that will be broadcast, in order."""

    path: str | None = None
    names: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    shapes: Sequence[Sequence[int]] = ()


class Transfer(WeightTransferEngine):
    """Back-end `vlmrl`: all weights of the model, by file or by gloo, loaded strictly."""

    init_info_cls = Meeting
    update_info_cls = Update
    _group: Any = None

    def init_transfer_engine(self, init_info: Meeting) -> None:
        """Meet the trainer, which is rank 0."""
        if init_info.address is not None:
            self._group = gloo.join(
                init_info.address,
                init_info.port,
                1 + self.parallel_config.rank,
                init_info.world_size,
                init_info.timeout,
            )

    def start_weight_update(self) -> None:
        """Get ready for all weights."""
        vllm_model.begin_update(self.model, self.model_config)

    def receive_weights(self, update_info: Update) -> None:
        """Load the weights of the update."""
        received = self._broadcast(update_info)
        if update_info.path is not None:
            received = _from_file(update_info.path)
        self.model.load_weights(received)

    def finish_weight_update(self) -> None:
        """Make them the model's; some missing is an error."""
        vllm_model.finish_update(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None

    def _broadcast(self, update: Update) -> Iterator[tuple[str, torch.Tensor]]:
        listed = zip(update.names, update.dtypes, update.shapes, strict=True)
        for name, dtype, shape in listed:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            gloo.broadcast(self._group, tensor)
            yield name, tensor.to(self.device)


def _from_file(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no dictionary
            yield name, file.get_tensor(name)


WeightTransferEngineFactory.register_engine("vlmrl", Transfer)
