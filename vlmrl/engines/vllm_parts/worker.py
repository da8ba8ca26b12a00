"""Code that runs inside a vLLM server's workers: receiving weights, a few calls from the trainer.

vLLM imports this module in every worker before it makes the weight transfer engine, so the
back-end registers itself here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.lora.request import LoRARequest

from vlmrl.engines.vllm_parts import adapted_vllm
from vlmrl.engines.vllm_parts.transfer import Meeting, receive_by_tcp


class Worker:
    """Mixed into vLLM's worker (`--worker-extension-cls`)."""

    vllm_config: Any
    model_runner: Any
    add_lora: Callable[[LoRARequest], bool]

    def set_temperature(self, temperature: float) -> None:
        """Divide all logits by the temperature, see `adapted_vllm.set_temperature`."""
        adapted_vllm.set_temperature(self.model_runner.get_model(), temperature)

    def abandon_update(self) -> None:
        """Forget an update that broke off, see `adapted_vllm.abandon_update`; vLLM's own do not."""
        self._weight_update_active = False
        adapted_vllm.abandon_update(self.model_runner.get_model(), self.vllm_config.model_config)

    def take_adapter(self, folder: str) -> None:
        """Replace the adapter that requests name, also of those that are being answered."""
        self.add_lora(LoRARequest(adapted_vllm.ADAPTER, 1, folder, load_inplace=True))

    def look_at(self, folder: str) -> dict[str, bool]:
        """Return whether this folder is here, and whether requests may name files in it."""
        allowed = self.vllm_config.model_config.allowed_local_media_path
        path = Path(folder).resolve()
        may = bool(allowed) and path.is_relative_to(Path(allowed).resolve())
        return {"here": path.is_dir(), "allowed": may}

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
            "quantization": model.quantization,
            "kv_cache_dtype": self.vllm_config.cache_config.cache_dtype,
            "speculative_tokens": self.vllm_config.num_speculative_tokens,
        }


@dataclass
class Init(WeightTransferInitInfo):
    """Nothing: every update says by itself where its weights are."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Safetensors files, or the tensors that the trainer sends at the meeting, in order."""

    paths: Sequence[str] = ()
    meeting: dict[str, Any] | None = None
    names: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    shapes: Sequence[Sequence[int]] = ()
    digests: Sequence[str] = ()
    tied: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further names of a weight that comes once."""


class WorkerTransfer(WeightTransferEngine):
    """Back-end `vlmrl`: all weights of the model, by file or by tcp, loaded strictly."""

    init_info_cls = Init
    update_info_cls = Update

    def init_transfer_engine(self, init_info: Init) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        """Get ready for all weights."""
        adapted_vllm.begin_update(self.model, self.model_config)

    def receive_weights(self, update_info: Update) -> None:
        """Load the weights of the update."""
        sent = self._sent(update_info) if update_info.meeting else _from_files(update_info.paths)
        tied = update_info.tied
        with closing(sent):  # the workers behind this one wait for it no longer
            self.model.load_weights(
                (each, weight) for name, weight in sent for each in (name, *tied.get(name, ()))
            )

    def finish_weight_update(self) -> None:
        """Make them the model's; some missing is an error."""
        adapted_vllm.finish_update(self.model, self.model_config)

    def shutdown(self) -> None:
        """Do nothing: no connection outlives its update."""

    def _sent(self, update: Update) -> Generator[tuple[str, torch.Tensor], None, None]:
        assert update.meeting is not None
        meeting = Meeting(**update.meeting)
        listed = update.names, update.dtypes, update.shapes, update.digests
        with closing(receive_by_tcp(meeting, *listed)) as received:
            for name, tensor in received:
                yield name, tensor.to(self.device)


def _from_files(paths: Sequence[str]) -> Generator[tuple[str, torch.Tensor], None, None]:
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no dictionary
                yield name, file.get_tensor(name)


WeightTransferEngineFactory.register_engine("vlmrl", WorkerTransfer)
