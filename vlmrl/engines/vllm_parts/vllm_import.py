"""The one way to import vLLM: after the torchvision shim, quiet, and without a call home.

Every process of ours that touches vLLM comes through here: the trainer, the server, its workers.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from types import ModuleType

import torch

from vlmrl.engines.vllm_parts import vllm_model
from vlmrl.errors import UserError
from vlmrl.system import torchvision_shim  # noqa: F401  before vLLM imports transformers

__all__ = ["import_vllm"]

MISSING = "the vllm engines need vLLM: pip install 'vlmrl[vllm]'; on a CPU, make venv-vllm"

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
    vllm_model.register_loader()
    # Warns of layers that have nothing to load; `vllm_model.finish_update` knows them from real ones.
    _quiet("vllm.model_executor.model_loader.reload.layerwise")
    _quiet("vllm.triton_utils.dispatcher")  # warns when a second engine is started
    if torch.version.cuda is None:
        # vLLM looks at a model class in a fresh Python, to keep CUDA out of this one; a fresh
        # Python has no shim, and here there is no CUDA.
        registry._run_in_subprocess = lambda look: look()
        # Warn of what we chose (seed, chunked prefill) and of what a CPU lacks, at every start.
        for part in ("v1.worker.cpu_worker", "engine.arg_utils", "config.vllm", "platforms.cpu"):
            _quiet(f"vllm.{part}")
    return vllm


def _quiet(logger: str) -> None:
    # A filter: the level is set back whenever vLLM configures its logging.
    logging.getLogger(logger).addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
