"""Load a policy: a checkpoint folder, a hub name, or a small model built on the spot."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from vlmrl import plugins
from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.base import Family, family_of

MAX_HEAD = 2**27
"""Bytes of a weight file's head, which names its tensors, that `fingerprint` reads."""
SAMPLE, SAMPLES = 2**14, 64
"""Bytes that `fingerprint` reads at a time, and how often in a file."""

ALIGNMENT = 64
"""Bytes to which torch aligns what it allocates on a CPU."""


class Loaded(NamedTuple):
    """An HF model in evaluation mode, its processor, and its family."""

    model: Any
    processor: Any
    family: Family


def load_model(
    config: ModelConfig, corpus: Sequence[str] = (), seed: int = 0, as_stored: bool = False
) -> Loaded:
    """Load or build the model of a config, on the CPU in float32 (the policy narrows frozen weights).

    With `as_stored`, weights of files stay there, in their dtype, until something reads them: for a
    model that is to be sharded, of which every process reads its rows.

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
        if config.build.weights:
            from vlmrl.models import tower_weights  # few models have them

            model, processor = tower_weights.build(family, config.build, corpus, seed)
        else:
            model, processor = family.build(config.build, corpus, seed)
        if config.attention:
            with _as_user_error("model.attention"):
                model.set_attn_implementation(config.attention)
    else:
        assert config.path is not None  # the config allows exactly one of the two
        family, model, processor = _from_checkpoint(config.path, config, as_stored)
    set_pixel_budget(processor, config)
    if config.several_images is not None:
        if not family.images_in_tiles:
            raise UserError("model.several_images: this family shows each image in one way only")
        processor.image_processor.several_images = config.several_images
    family.adopt(processor, model.config)
    return Loaded(model.eval(), processor, family)


def load_processor(path: str) -> tuple[Any, Family]:
    """Load the processor of a checkpoint, and its family, without its weights; UserError as `load_model`."""
    common = {"local_files_only": _is_local(path)}
    with _as_user_error(f"model.path {path!r}"):
        config = transformers.AutoConfig.from_pretrained(path, **common)
        processor = _read_processor(path, common)
    family = family_of(config.model_type)
    family.adopt(processor, config)
    return processor, family


def fingerprint(path: str) -> str:
    """Return a hash of the weight files of a folder or of a cached hub name; empty if there are none.

    It covers their sizes, names and shapes, and a part of the numbers all over the file, so that a
    large model takes no longer than a small one.
    """
    digest = hashlib.sha256()
    files = _weight_files(path)
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as handle:
            head = int.from_bytes(handle.read(8), "little")
            digest.update(handle.read(min(head, MAX_HEAD)))
            for at in range(0, size, max(SAMPLE, size // SAMPLES)):
                handle.seek(at)
                digest.update(handle.read(SAMPLE))
    return digest.hexdigest() if files else ""


def _weight_files(path: str) -> list[Path]:
    folder = Path(path).expanduser()
    if path and not folder.is_dir():
        cached = huggingface_hub.try_to_load_from_cache(path, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else folder
    return sorted(folder.glob("*.safetensors")) if path else []


def _stored_dtype(files: Sequence[Path]) -> torch.dtype:
    """Return the widest floating dtype of weights; reading in it rounds none."""
    widest = torch.bfloat16
    for file in files:
        with safe_open(file, framework="pt") as weights:
            kinds = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
        if kinds - {"BF16"}:
            widest = torch.float32
    return widest if files else torch.float32


def _from_checkpoint(path: str, config: ModelConfig, as_stored: bool) -> tuple[Family, Any, Any]:
    where = f"model.path {path!r}"
    if local := _is_local(path):
        path = str(Path(path).expanduser())
    common = {"local_files_only": local, "trust_remote_code": config.trust_remote_code}
    with _as_user_error(where):
        stated = transformers.AutoConfig.from_pretrained(path, **common)
    family = family_of(stated.model_type)
    with _as_user_error(where):
        processor = _read_processor(path, common)
        read = functools.partial(
            family.reader().from_pretrained,
            path,
            attn_implementation=config.attention,
            use_safetensors=True,
            output_loading_info=True,
            **common,
        )
        dtype = _stored_dtype(_weight_files(path)) if as_stored else torch.float32
        model, report = cast("tuple[Any, Any]", read(dtype=dtype))
        if any(b.dtype == torch.bfloat16 for b in model.buffers()):  # a rounded constant
            model, report = cast("tuple[Any, Any]", read(dtype=torch.float32))
    # transformers fills what a checkpoint lacks with random numbers and only warns.
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"{where} lacks {len(missing)} weights, e.g. {missing[0]}")
    if not as_stored:
        for parameter in model.parameters():
            parameter.data = _align(parameter.data.contiguous())
    _forget_loading(model.config, stated)
    return family, model, processor


def _read_processor(path: str, common: dict[str, Any]) -> Any:
    """Return the processor of a checkpoint with the tokenizer that it declares.

    transformers reads Qwen3.5's as published, whose pieces small models do not have, and `tekken.json` by
    mistral-common, where that is installed, which finds no special tokens in a text.
    """
    processor = transformers.AutoProcessor.from_pretrained(path, mistral_format=False, **common)
    plain = transformers.PreTrainedTokenizerFast
    declared = get_tokenizer_config(path, **common)
    if declared.get("tokenizer_class") == plain.__name__ and type(processor.tokenizer) is not plain:
        processor.tokenizer = plain.from_pretrained(path, **common)
    for key in LOADED:
        if declared.get(key) is None:
            processor.tokenizer.init_kwargs.pop(key, None)
    return processor


LOADED = {
    *("is_local", "local_files_only", "mistral_format", "model_specific_special_tokens"),
    *("max_length", "pad_to_multiple_of"),
}
"""Keys that loading gives to a tokenizer though the config that it is from may lack them.

The last two are of a batch that was padded before the tokenizer was saved; a processor would pad audio so.
"""


def save_processor(processor: Any, folder: str) -> None:
    """Save a processor without the padding of the last batch, which a reader would take as stated."""
    if processor.tokenizer.is_fast:
        processor.tokenizer.backend_tokenizer.no_padding()
    processor.save_pretrained(folder)


def _forget_loading(config: Any, stated: Any) -> None:
    """Take back what loading adds to a config, so that a copy of a folder has the keys of the folder."""
    for name in ("", *stated.sub_configs):
        own, written = (getattr(each, name, None) if name else each for each in (config, stated))
        if own is not None and written is not None and written.dtype is None:
            own.dtype = None


def _align(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight where products on a CPU have the bits of one that was built: a copy if need be.

    A safetensors file is mapped, and its numbers begin anywhere; a product of few rows then rounds
    differently, and a run that is resumed parts from one that is not.
    """
    stays = not torch.cuda.is_available()
    return weight.clone() if stays and weight.data_ptr() % ALIGNMENT else weight


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


def set_pixel_budget(processor: object, config: ModelConfig) -> None:
    """Set the config's limits of an image's pixels on a processor; UserError if they do not fit it."""
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


def pixels_of(processor: object) -> Any:
    """Return the image size or pixel budget of a processor; None if it sees no images."""
    return getattr(getattr(processor, "image_processor", None), "size", None)
