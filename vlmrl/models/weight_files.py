"""Weight files of other formats than safetensors, as tensors by name."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import transformers

from vlmrl.system import torchvision_shim  # noqa: F401  before transformers reads a model

_CT2_TYPES: Mapping[int, str] = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
CT2_VERSION = 6


def read_gguf(file: IO[bytes]) -> dict[str, torch.Tensor]:
    """Return the weights of a causal language model by transformers' names, scaled back to float32.

    A head that is tied is left out. Needs the package gguf.

    Raises:
        ValueError: transformers cannot read its architecture.
    """
    with _in_folder(file) as where:
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def gguf_tokenizer(file: IO[bytes]) -> Any:
    """Return the tokenizer of a language model, with its chat template; as `read_gguf`."""
    with _in_folder(file) as where:
        return transformers.AutoTokenizer.from_pretrained(**where)


@contextmanager
def _in_folder(file: IO[bytes]) -> Iterator[dict[str, str]]:
    """Yield how transformers is told where a copy of this file lies."""
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        with Path(folder, "model.gguf").open("wb") as copy:
            shutil.copyfileobj(file, copy)
        yield {"pretrained_model_name_or_path": folder, "gguf_file": "model.gguf"}


def read_ctranslate2(data: bytes) -> dict[str, torch.Tensor]:
    """Return the variables of a file of CTranslate2 by name; a quantized one is not scaled back.

    After a head (version, name and revision of the model) each variable is its name, its shape, its
    type, the number of its bytes and these; all numbers are little-endian.

    Raises:
        ValueError: it is of another version, ends too early, or has a type that torch has not.
    """
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if size > len(data) - at:
            raise ValueError(f"the file ends after {len(data)} bytes, within a variable")
        at += size
        return data[at - size : at]

    def number(form: str) -> int:
        value: int = struct.unpack(f"<{form}", take(struct.calcsize(form)))[0]
        return value

    def text() -> str:
        return take(number("H")).rstrip(b"\0").decode()

    if (version := number("I")) != CT2_VERSION:
        raise ValueError(f"expected version {CT2_VERSION} of CTranslate2's format, got {version}")
    text()  # the kind of model, such as WhisperSpec
    number("I")  # its revision
    tensors = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind = number("B")
        content = take(number("I"))
        if kind not in _CT2_TYPES:
            raise ValueError(f"variable {name!r} has the unknown type {kind}")
        array = np.frombuffer(content, _CT2_TYPES[kind]).reshape(shape)
        tensors[name] = torch.from_numpy(array.copy())
    return tensors
