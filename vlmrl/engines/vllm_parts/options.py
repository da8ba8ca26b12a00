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
from vlmrl.models.cache_sizes import recurs
from vlmrl.models.loading import save_processor
from vlmrl.schema import Prompt
from vlmrl.schema.media import Audio, Video
from vlmrl.system.files import writing

if TYPE_CHECKING:
    from vlmrl.engines.base import ServedPolicy

GIB = 2**30
FP8 = "fp8_per_tensor"
"""vLLM's name for weights that it rounds while it loads them, with a scale for each."""
Weights = Mapping[str, torch.Tensor]
BATCHED_TOKENS = 8192
"""Tokens that one forward of vLLM takes at most, on a CPU; on a GPU it is vLLM's choice."""


def holds_state(text: Any) -> bool:
    """Return whether layers of a language model of this config hold any state: also that of a convolution."""
    return recurs(text) or "conv" in (getattr(text, "layer_types", None) or ())


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
    quantization: Literal["fp8"] | None = None
    """fp8: weights and inputs of linear layers have 8 bits, weights rounded anew at each sync. On GPUs only.
    The log-probs are then not the trainer's, and the recipe's `correction` weighs by what they are."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """Type of the key-value cache. auto: that of the activations. fp8: 8 bits, and other log-probs, too."""
    speculative_tokens: int = 0
    """Most tokens guessed at a time, as they followed the last ones where these stood before, in the prompt
    or the completion. The model checks all guesses at once, so the draw is its own. 0: none."""
    ngram_max: int = 4
    """Most last tokens that must have stood before for a guess; the longest match is taken."""
    ngram_min: int = 2
    """Fewest of them."""
    lora: Literal["merged", "adapter"] = "merged"
    """Form in which a LoRA policy is sent: merged into full weights, or as an adapter."""
    max_restarts: int = 2
    """Restarts in a row of a broken engine before the run stops; at least 0."""
    generate_timeout_s: float = 1800.0
    """Seconds for one call of generate."""

    def __post_init__(self) -> None:
        if self.speculative_tokens < 0 or not 1 <= self.ngram_min <= self.ngram_max:
            raise ValueError(
                "expected speculative_tokens of at least 0 and 1 <= ngram_min <= ngram_max, got "
                f"{self.speculative_tokens}, {self.ngram_min} and {self.ngram_max}"
            )

    def check(self, policy: ServedPolicy) -> None:
        """Raise UserError if vLLM cannot serve the model with these options."""
        if policy.family.unserved:
            raise UserError(f"vLLM: {policy.family.unserved}; use engine: hf")
        states = policy.device.type == "cpu" and recurs(policy.base.config.get_text_config())
        if states and self.dtype_name(policy) != "bfloat16":
            raise UserError(
                "engine option dtype: vLLM computes gated delta-nets on a CPU in bfloat16 alone, got "
                f"{self.dtype_name(policy)}; set it to bfloat16, or use engine: hf"
            )
        if self.max_videos and policy.family.unserved_videos:
            why = policy.family.unserved_videos
            raise UserError(f"engine option max_videos: {why}; use engine: hf")
        if (most := policy.family.served_videos) is not None and self.max_videos > most:
            raise UserError(
                f"engine option max_videos: vLLM takes at most {most} video of a prompt of this family, "
                f"got {self.max_videos}; use engine: hf"
            )
        self._check_quantization(policy)
        self._check_guesses(policy)
        self._check_adapter(policy)

    def _check_quantization(self, policy: ServedPolicy) -> None:
        if self.quantization is None:
            return
        if policy.device.type != "cuda":
            raise UserError("engine option quantization: vLLM has fp8 on GPUs only; leave it out")
        if self.dtype_name(policy) == "float32":
            raise UserError(
                "engine option quantization: expected dtype bfloat16 or float16 with fp8, got float32"
            )

    def _check_guesses(self, policy: ServedPolicy) -> None:
        cpu = policy.device.type == "cpu"
        wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
        for what, excludes in (
            ("model.router_replay", policy.config.router_replay),
            (
                "layers that hold a state on a CPU, which vLLM computes wrongly then",
                cpu and holds_state(policy.base.config.get_text_config()),
            ),
            ("a CPU without AVX-512, where vLLM computes batches wrongly then", cpu and not wide),
        ):
            if self.speculative_tokens and excludes:
                raise UserError(
                    f"engine option speculative_tokens: expected 0 with {what}, got "
                    f"{self.speculative_tokens}"
                )

    def _check_adapter(self, policy: ServedPolicy) -> None:
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
        if lora.dora:
            raise UserError("engine option lora: vLLM takes no adapter of DoRA; use 'merged'")
        if lora.full:
            raise UserError(
                "engine option lora: 'adapter' sends adapters alone, and model.lora.full trains the "
                f"weights of {lora.full}; use 'merged'"
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
            if holds_state(policy.base.config.get_text_config()):
                arguments["enable_prefix_caching"] = False  # states are cached of pieces alone
            arguments["max_num_batched_tokens"] = max(BATCHED_TOKENS, self.length_limit(policy))
            arguments["kv_cache_memory_bytes"] = GIB
        if policy.config.router_replay:
            if policy.device.type == "cpu":
                arguments["enforce_eager"] = True  # compiled, routers cannot be watched
            else:
                arguments["enable_return_routed_experts"] = True
        if self.quantization is not None:
            arguments["quantization"] = FP8
        if self.kv_cache_dtype != "auto":
            arguments["kv_cache_dtype"] = self.kv_cache_dtype
        if self.speculative_tokens:
            arguments["speculative_config"] = {
                "method": "ngram",
                "num_speculative_tokens": self.speculative_tokens,
                "prompt_lookup_max": self.ngram_max,
                "prompt_lookup_min": self.ngram_min,
            }
        if self.kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(self.kv_cache_gib * GIB)
        if self.block_size is not None:
            arguments["block_size"] = self.block_size
        if self.lora == "adapter":
            assert policy.config.lora is not None
            arguments |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 2}
            ranks = policy.config.lora.ranks
            rank, served = (
                ranks.get("language", policy.config.lora.rank),
                (8, 16, 32, 64, 128, 256, 320, 512),
            )
            arguments["max_lora_rank"] = next((r for r in served if r >= rank), rank)
        return arguments

    def shortcuts(self) -> dict[str, object]:
        """Return what the worker of a server says of its own options that make it faster."""
        return {
            "quantization": FP8 if self.quantization else None,
            "kv_cache_dtype": self.kv_cache_dtype,
            "speculative_tokens": self.speculative_tokens,
        }

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
        save_processor(policy.processor, folder)


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
