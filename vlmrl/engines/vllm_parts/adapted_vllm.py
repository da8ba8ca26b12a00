"""vLLM as we need it: imported quietly, its models given all weights strictly, logits at the temperature.

Every process of ours that touches vLLM imports it here: the trainer (engine `vllm`), a server, its workers
(engine `vllm_server`). So the torchvision shim comes first, and nothing calls home.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch

from vlmrl import DISTRIBUTION
from vlmrl.errors import UserError
from vlmrl.system import torchvision_shim  # noqa: F401  before vLLM imports transformers

LOAD_FORMAT = "vlmrl"
"""vLLM's `load_format` of a model that is given all its weights by us."""

ADAPTER = "policy"
"""Name of the one adapter that is served."""

QWEN2_AUDIO = "Qwen2AudioForConditionalGeneration"
"""The model of vLLM whose sizes `short_audio` frees."""

MISSING = (
    f"the vllm engines need vLLM: pip install '{DISTRIBUTION}[vllm]'; on a CPU, make venv-vllm"
)

_SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Not ERROR: what a weight update could not load is a warning.
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Not stdout: that is for our own results.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # Else vLLM pins this process, the trainer with it, to some of the cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def require_vllm() -> None:
    """Raise UserError unless vLLM is installed; imports nothing."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise UserError(MISSING)


def import_vllm() -> ModuleType:
    """Import the module `vllm`.

    Raises:
        UserError: it is not installed.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
        from vllm.model_executor.models import registry
    except ImportError as error:
        raise UserError(f"{MISSING} ({error})") from error
    _register_loader()
    # By name: vLLM imports its models where it runs them alone, to keep CUDA out of other processes.
    registry.ModelRegistry.register_model(QWEN2_AUDIO, f"{__package__}.short_audio:{QWEN2_AUDIO}")
    # Warns of layers that have nothing to load; `finish_update` knows them from real ones.
    _quiet("vllm.model_executor.model_loader.reload.layerwise")
    _quiet("vllm.triton_utils.dispatcher")  # warns when a second engine is started
    if torch.version.cuda is None:
        # vLLM looks at a model class in a fresh Python, to keep CUDA out of this one; a fresh
        # Python has no shim, and here there is no CUDA.
        registry._run_in_subprocess = lambda look: look()
        _mend_speculation()
        _mend_rotation()
        _mend_products()
        # Warn of what we chose (seed, chunked prefill) and of what a CPU lacks, at every start.
        for part in ("v1.worker.cpu_worker", "engine.arg_utils", "config.vllm", "platforms.cpu"):
            _quiet(f"vllm.{part}")
    return vllm


def _mend_speculation() -> None:
    """Let vLLM 0.32 verify guesses on a CPU as it does on GPUs, and start more than once."""
    from vllm.triton_utils import dispatcher
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    def expand(
        output: torch.Tensor,
        values: torch.Tensor,
        ends: torch.Tensor,
        replaced: float,
        by: float,
        *_: object,
    ) -> None:
        counts = ends.diff(prepend=ends.new_zeros(1))
        output.copy_(values.where(values != replaced, by).repeat_interleave(counts))

    # Its own writes temperatures and top-p to a copy in int64, and leaves `output` as it was allocated.
    cpu_triton_utils._expand_kernel_impl = expand
    # Its own fails where nothing was guessed.
    rejection_sampler.apply_top_k_top_p = lambda logits, k, p: (
        apply_top_k_top_p(logits, k, p) if len(logits) else logits
    )
    # It reads the attributes of all that modules hold; llvmlite (for n-grams) has some that are none.
    dispatcher.vars = lambda value: ours if isinstance(ours := value.__dict__, Mapping) else {}


def _mend_rotation() -> None:
    """Let vLLM 0.32 rotate [tokens, heads, width] on a CPU, where its kernel takes heads for tokens."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    rotate = RotaryEmbedding.forward_cpu
    if rotate.__module__ == __name__:
        return

    def flat(
        self: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if query.dim() != 3 or positions.dim() != 1:
            return rotate(self, positions, query, key)
        q, k = rotate(self, positions, query.flatten(-2), None if key is None else key.flatten(-2))
        return q.view_as(query), None if k is None else k.view_as(key)

    RotaryEmbedding.forward_cpu = flat


def _mend_products() -> None:
    """Let vLLM 0.32 multiply rows whose values do not lie side by side on a CPU, where its kernel fails.

    Such are those of one recording behind a convolution, transposed; several are copied on the way.
    """
    from vllm import _custom_ops

    multiply = _custom_ops.onednn_mm
    if multiply.__module__ == __name__:
        return

    def side_by_side(weight: Any, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return multiply(weight, rows.contiguous(), bias)

    _custom_ops.onednn_mm = side_by_side


def _quiet(logger: str) -> None:
    # A filter: the level is set back whenever vLLM configures its logging.
    logging.getLogger(logger).addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


# ---------------------------------------------------------------------------------- its models


def _register_loader() -> None:
    """Teach vLLM to make a model without weights; they come with the first update.

    Not vLLM's own format for that, which also overwrites buffers with noise.
    """
    from vllm.model_executor import model_loader

    class Unloaded(model_loader.BaseModelLoader):
        """Leaves weights as they were allocated."""

        def download_model(self, model_config: object) -> None:
            """Do nothing."""

        def load_weights(self, model: torch.nn.Module, model_config: object) -> None:
            """Do nothing."""

    model_loader._LOAD_FORMAT_TO_MODEL_LOADER[LOAD_FORMAT] = Unloaded


def abandon_update(model: Any, model_config: Any) -> None:
    """End an update that broke off, if there is one; the next must be whole.

    It has counted weights that would count again then, and end a layer too early.
    """
    from vllm.model_executor.model_loader.reload.layerwise import (
        finalize_layerwise_reload,
        get_layerwise_info,
    )

    if any(get_layerwise_info(layer).can_load() for layer in model.modules()):
        finalize_layerwise_reload(model, model_config)


def begin_update(model: Any, model_config: object) -> None:
    """Get the model ready to be given all its weights anew, whatever an earlier update left."""
    from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload

    abandon_update(model, model_config)
    # Let experts be packed anew on a CPU: vLLM 0.32 packs them only while it makes their kernel.
    for method in model.modules():
        if getattr(getattr(method, "unquantized_backend", None), "name", "") == "CPU":
            method.moe_kernel = None
    initialize_layerwise_reload(model)


def finish_update(model: Any, model_config: object) -> None:
    """Make the loaded weights the model's.

    Raises:
        RuntimeError: a layer was given none; vLLM itself only warns, and keeps the old ones.
    """
    from vllm.model_executor.model_loader.reload.layerwise import (
        finalize_layerwise_reload,
        get_layerwise_info,
        is_deferred_attention_layer,
    )

    forgotten = []
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        parameters, _ = info.restore_metadata
        # A loaded layer can load no more; buffers (rotary tables ...) are no weights, and an
        # attention layer's scales are optional.
        waiting = info.can_load() and info.load_numel == 0
        if parameters and waiting and not is_deferred_attention_layer(layer):
            forgotten.append(name)
    finalize_layerwise_reload(model, model_config)
    if forgotten:
        raise RuntimeError(f"the update held no weights of {', '.join(forgotten[:5])}")


def load_weights(worker: Any, items: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Give a worker's model all its weights, in place; its own encoder cache is emptied.

    The caller must reset the engine's prefix cache and its encoder cache.
    """
    runner = worker.model_runner
    model, config = runner.get_model(), runner.vllm_config.model_config
    begin_update(model, config)
    model.load_weights(iter(items))
    finish_update(model, config)
    runner.reset_lora_state()
    runner.reset_encoder_cache()


def set_temperature(model: torch.nn.Module, temperature: float) -> None:
    """Divide all logits by the temperature from now on.

    vLLM's raw log-probs come before its own temperature, its processed ones after bans and cuts;
    with the logits scaled and vLLM's temperature 1, the raw ones are the trainer's.
    """
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    processors = [m for m in model.modules() if isinstance(m, LogitsProcessor)]
    if len(processors) != 1:
        raise RuntimeError(
            f"{type(model).__name__} has {len(processors)} logits processors, not one"
        )
    processors[0].scale = 1.0 / temperature
