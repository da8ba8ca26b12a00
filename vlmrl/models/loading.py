"""Load a policy: a checkpoint folder, a hub name, or a small model built on the spot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from vlmrl import plugins
from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.base import Family, family_of


class Loaded(NamedTuple):
    """An HF model in evaluation mode, its processor, and its family."""

    model: Any
    processor: Any
    family: Family


def load_model(config: ModelConfig, corpus: Sequence[str] = (), seed: int = 0) -> Loaded:
    """Load or build the model of a config, on the CPU in float32 (the policy narrows frozen weights).

    `corpus` and `seed` are used only for a model that is built (tokenizer, initial weights). The
    pixel budget of the config is set on the processor, so that it is saved with the model. A local
    folder is read without any network access, and its weights only from safetensors.

    Raises:
        UserError: The folder does not exist, a file in it is missing or broken, no family serves
            the model type, the weights do not fill the model, or the pixel budget or the attention
            is impossible.
    """
    transformers.utils.logging.disable_progress_bar()  # ours say more
    if config.build is not None:
        family = plugins.build("family", config.build.family)
        model, processor = family.build(config.build, corpus, seed)
        if config.attention:
            with _as_user_error("model.attention"):
                model.set_attn_implementation(config.attention)
    else:
        assert config.path is not None  # the config allows exactly one of the two
        family, model, processor = _from_checkpoint(config.path, config)
    _set_pixel_budget(processor, config)
    family.adopt(processor, model.config)
    return Loaded(model.eval(), processor, family)


def load_processor(path: str) -> tuple[Any, Family]:
    """Load the processor of a checkpoint, and its family, without its weights.

    Raises:
        UserError: as for `load_model`.
    """
    common = {"local_files_only": _is_local(path)}
    with _as_user_error(f"model.path {path!r}"):
        config = transformers.AutoConfig.from_pretrained(path, **common)
        processor = transformers.AutoProcessor.from_pretrained(path, **common)
    family = family_of(config.model_type)
    family.adopt(processor, config)
    return processor, family


def _from_checkpoint(path: str, config: ModelConfig) -> tuple[Family, Any, Any]:
    where = f"model.path {path!r}"
    if local := _is_local(path):
        path = str(Path(path).expanduser())
    common = {"local_files_only": local, "trust_remote_code": config.trust_remote_code}
    with _as_user_error(where):
        model_type = transformers.AutoConfig.from_pretrained(path, **common).model_type
    family = family_of(model_type)
    with _as_user_error(where):
        processor = transformers.AutoProcessor.from_pretrained(path, **common)
        loaded: Any = family.reader().from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation=config.attention,
            use_safetensors=True,
            output_loading_info=True,
            **common,
        )
    model, report = loaded
    # transformers fills what a checkpoint lacks with random numbers and only warns.
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"{where} lacks {len(missing)} weights, e.g. {missing[0]}")
    return family, model, processor


def _is_local(path: str) -> bool:
    """Return whether `path` is a local folder rather than a hub name such as `Qwen/Qwen3-VL-2B`."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"model.path {path!r} is not a checkpoint folder: it has no config.json"
            )
        return True
    # `runs/x/checkpoints/step-5`, or `runs/x` where there is a folder `runs`, is not a hub name.
    hub_name = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", path)
    if not hub_name or ("/" in path and folder.parent.is_dir()):
        raise UserError(f"model.path {path!r}: no such folder")
    return False


_UNUSABLE = (OSError, ValueError, ImportError, RuntimeError, SafetensorError, StrictDataclassError)
"""What transformers raises for files that are missing, broken or inconsistent."""


@contextmanager
def _as_user_error(where: str) -> Iterator[None]:
    """Turn what transformers says about a user's mistake into one line."""
    try:
        yield
    except _UNUSABLE as error:
        text = " ".join(str(error).split())
        raise UserError(f"{where} cannot be used: {text[:400]}") from error


def _set_pixel_budget(processor: Any, config: ModelConfig) -> None:
    if config.min_pixels is None and config.max_pixels is None:
        return
    image_processor = getattr(processor, "image_processor", None)
    if image_processor is None:
        raise UserError("model.min_pixels, model.max_pixels: this family sees no images")
    if not (image_processor.size.get("shortest_edge") and image_processor.size.get("longest_edge")):
        raise UserError(
            "model.min_pixels, model.max_pixels: this family has no pixel budget; its processor "
            "turns every image into tiles of a fixed size"
        )
    least = config.min_pixels or image_processor.size["shortest_edge"]
    most = config.max_pixels or image_processor.size["longest_edge"]
    if least > most:
        raise UserError(
            f"model.min_pixels {least} exceeds model.max_pixels {most}; "
            "a limit that the config does not set is the checkpoint's own"
        )
    image_processor.size = type(image_processor.size)(shortest_edge=least, longest_edge=most)
