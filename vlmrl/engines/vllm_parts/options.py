"""Options that the vLLM engines share, and the arguments of vLLM that they stand for."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import safetensors.torch
import torch

from vlmrl.engines.base import Capabilities, Engine
from vlmrl.engines.vllm_parts.adapted_vllm import LOAD_FORMAT
from vlmrl.errors import UserError
from vlmrl.schema import Prompt
from vlmrl.schema.media import Audio, Video
from vlmrl.system.files import writing

if TYPE_CHECKING:
    from vlmrl.engines.base import ServedPolicy

GIB = 2**30
Weights = Mapping[str, torch.Tensor]
BATCHED_TOKENS = 8192
"""Tokens that one forward of vLLM takes at most, on a CPU; on a GPU it is vLLM's choice."""


@dataclass(frozen=True)
class VllmOptions(Engine):
    """Base of the vLLM engines; the fields are options."""

    capabilities = Capabilities(placed=True, routes=True, every_rank=True)

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations. auto: that of `model.dtype`."""
    max_model_len: int = 8192
    """Longest prompt with its completion, in tokens."""
    max_images: int = 16
    """Most images of one prompt; vLLM sets memory aside for them."""
    max_audios: int = 4
    """Most audio files of one prompt; vLLM sets memory aside for them."""
    max_videos: int = 0
    """Most videos of one prompt; vLLM sets memory aside for them."""
    max_num_seqs: int = 256
    """Completions generated at the same time."""
    gpu_memory_utilization: float = 0.4
    """Share of each GPU's memory that vLLM may take."""
    kv_cache_gib: float | None = None
    """Size of the key-value cache in GiB. Absent: what that share leaves; on a CPU 1."""
    block_size: int | None = None
    """Tokens of one cache block. Absent: vLLM's choice."""
    enforce_eager: bool = False
    """Run without CUDA graphs."""
    lora: Literal["merged", "adapter"] = "merged"
    """Form in which a LoRA policy is sent: merged into full weights, or as an adapter."""
    max_restarts: int = 2
    """Restarts in a row of a broken engine before the run stops; at least 0."""
    generate_timeout_s: float = 1800.0
    """Seconds for one call of generate."""

    def check(self, policy: ServedPolicy) -> None:
        """Raise UserError if vLLM cannot serve the model, or its adapters as adapters."""
        if policy.family.unserved:
            raise UserError(f"vLLM: {policy.family.unserved}; use engine: hf")
        if self.max_videos and policy.family.unserved_videos:
            why = policy.family.unserved_videos
            raise UserError(f"engine option max_videos: {why}; use engine: hf")
        if (most := policy.family.served_videos) is not None and self.max_videos > most:
            raise UserError(
                f"engine option max_videos: vLLM takes at most {most} video of a prompt of this family, "
                f"got {self.max_videos}; use engine: hf"
            )
        lora = policy.config.lora
        if self.lora != "adapter":
            return
        if lora is None:
            raise UserError("engine option lora: 'adapter' needs model.lora")
        if set(lora.towers) != {"language"}:
            raise UserError(
                "engine option lora: 'adapter' serves the language tower only, and "
                f"model.lora.towers is {lora.towers}; use 'merged'"
            )

    def length_limit(self, policy: ServedPolicy) -> int:
        """`max_model_len`, or the model's own limit if that is lower."""
        return min(self.max_model_len, policy.base.config.get_text_config().max_position_embeddings)

    def require_room(self, policy: ServedPolicy, prompt: Prompt, max_tokens: int) -> None:
        """Refuse a prompt as `Engine.require_room` says; vLLM would cut its completions short."""
        if why := policy.family.unserved_prompt(policy.processor, len(prompt.images)):
            raise UserError(f"sample {prompt.sample.id!r}: {why}")
        name, own, limit = prompt.sample.id, len(prompt.encoded.ids), self.length_limit(policy)
        if own + max_tokens > limit:
            raise UserError(
                f"sample {name!r}: {own} prompt tokens and {max_tokens} new ones exceed the engine's "
                f"max_model_len ({limit})"
            )
        media = {
            "max_images": (len(prompt.images), self.max_images),
            "max_audios": (sum(isinstance(m, Audio) for m in prompt.media), self.max_audios),
            "max_videos": (sum(isinstance(m, Video) for m in prompt.media), self.max_videos),
        }
        for option, (count, most) in media.items():
            if count > most:
                raise UserError(
                    f"sample {name!r}: {count} {option[4:]} exceed the engine's {option} ({most})"
                )

    def dtype_name(self, policy: ServedPolicy) -> str:
        """Name of torch's dtype in which the engine computes."""
        return policy.config.dtype if self.dtype == "auto" else self.dtype

    def arguments(self, policy: ServedPolicy, folder: str) -> dict[str, Any]:
        """Keyword arguments of `vllm.LLM` for the model whose files but the weights are in `folder`."""
        by_kind = {"image": self.max_images, "audio": self.max_audios, "video": self.max_videos}
        limits = {kind: most for kind, most in by_kind.items() if kind in policy.family.kinds}
        arguments = {
            "model": folder,
            "load_format": LOAD_FORMAT,
            "dtype": self.dtype_name(policy),
            "max_model_len": self.length_limit(policy),
            "max_num_seqs": self.max_num_seqs,
            "limit_mm_per_prompt": {"video": 0, **limits} if "image" in limits else limits,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enforce_eager": self.enforce_eager,
            "logprobs_mode": "raw_logprobs",
            "generation_config": "vllm",  # no sampling defaults from the checkpoint
            "trust_remote_code": policy.config.trust_remote_code,
            "seed": 0,
            "use_tqdm_on_load": False,
        }
        if policy.device.type == "cpu":
            # vLLM dies of a seeded request whose prompt is prefilled in pieces: "CPU Generator does
            # not use offset".
            arguments["enable_chunked_prefill"] = False
            arguments["max_num_batched_tokens"] = max(BATCHED_TOKENS, self.length_limit(policy))
            arguments["kv_cache_memory_bytes"] = GIB
        if policy.config.router_replay:
            if policy.device.type == "cpu":
                arguments["enforce_eager"] = True  # compiled, routers cannot be watched
            else:
                arguments["enable_return_routed_experts"] = True
        if self.kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(self.kv_cache_gib * GIB)
        if self.block_size is not None:
            arguments["block_size"] = self.block_size
        if self.lora == "adapter":
            assert policy.config.lora is not None
            arguments |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 2}
            rank, served = policy.config.lora.rank, (8, 16, 32, 64, 128, 256, 320, 512)
            arguments["max_lora_rank"] = next((r for r in served if r >= rank), rank)
        return arguments

    def lacks_weights(self, first: bool) -> bool:
        """Return whether a sync brings full weights; `first`: vLLM has none yet."""
        return first or self.lora == "merged"

    def form(self, policy: ServedPolicy) -> dict[str, Any]:
        """Return in which form vLLM takes the weights, as arguments of `ServedPolicy.units`."""
        adapters = "merged" if self.lora == "merged" else "left out"
        return {"dtype": getattr(torch, self.dtype_name(policy)), "adapters": adapters}

    def units(self, policy: ServedPolicy) -> Iterator[Weights]:
        """Yield all weights unit by unit, under vLLM's names and in its dtype, see `ServedPolicy.units`."""
        units = policy.units(**self.form(policy), every_name=True)
        return map(policy.family.export_names, units)

    def memory(self, policy: ServedPolicy, capacity: int) -> tuple[int, int]:
        """Bytes of the policy's device, which has `capacity`: always taken, and while generating."""
        if policy.device.type == "cuda":
            return round(self.gpu_memory_utilization * capacity), 0
        return policy.weight_bytes() + int((self.kv_cache_gib or 1.0) * GIB), 0


def save_model_files(policy: ServedPolicy, folder: str) -> None:
    """Write what vLLM reads of the policy's model before any weights come."""
    with writing(Path(folder)):
        policy.family.export_config(policy.base, folder)
        policy.processor.save_pretrained(folder)


def model_files(policy: ServedPolicy, folder: Path) -> dict[str, bytes]:
    """Return the same by name, for servers elsewhere; they are written to `folder`, too."""
    save_model_files(policy, str(folder))
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def save_adapter(policy: ServedPolicy, state: Weights, folder: str | Path) -> None:
    """Write the adapter of a LoRA policy, its weights (`training_state`) under vLLM's names."""
    assert policy.adapter is not None
    file = Path(folder) / "adapter_model.safetensors"
    weights = {name.replace(".default.", "."): p for name, p in state.items()}
    named = {
        f"base_model.model.{name}": p.detach().to("cpu").contiguous()
        for name, p in policy.family.export_names(weights).items()
    }
    with writing(file):
        policy.adapter.peft_config["default"].save_pretrained(str(folder))
        safetensors.torch.save_file(named, file)


def scratch(needed: int) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for `needed` bytes, in memory if they fit there; it goes with the process."""
    memory = Path("/dev/shm")
    fits = memory.is_dir() and shutil.disk_usage(memory).free > 2 * needed
    return tempfile.TemporaryDirectory(prefix="vlmrl-", dir=memory if fits else None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Undo what vLLM does to this process while it starts: it sets seeds and fixes threads."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
