"""A published causal language model inside a model that is built: `model.build.weights: {language: ...}`.

It brings its sizes, its weights and its tokenizer, to which the family's special tokens are added. The
projector is drawn at random, so that its output is as large as the embeddings among which it is put: with
features many times larger or smaller, a pretrained language model is deaf or blind for long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from vlmrl.errors import UserError
from vlmrl.models.base import Family
from vlmrl.schema.media import Audio, Decoded

ALIKE: Mapping[str, tuple[str, ...]] = {"qwen2": ("llama",)}
"""Text architecture of a family -> others that are the same but for the biases of queries, keys and values,
which are then zero."""
BIASES = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
OWN = {"layer_types", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id"}
"""Fields of a text config that do not follow the source: they follow others, or the tokenizer."""
HEAD = "lm_head.weight"
SECONDS, RATE = 1, 16000
"""Length and rate of the noise that a model hears where it sees nothing."""


def fields_of(source: Any, bare: Any, where: str) -> dict[str, Any]:
    """Return the fields of a source's text config that the text config of `bare` has.

    `bare` is any model of the family.

    Raises:
        UserError: the source is of another architecture.
    """
    text = bare.config.get_text_config()
    taken = (text.model_type, *ALIKE.get(text.model_type, ()))
    if source.model_type not in taken:
        raise UserError(
            f"{where}: expected a language model of the type {' or '.join(taken)}, got {source.model_type}"
        )
    fields = {*type(text).__annotations__} - OWN
    if not bare._tied_weights_keys:
        fields -= {"tie_word_embeddings"}
    return {field: getattr(source, field) for field in sorted(fields) if hasattr(source, field)}


def fill(
    model: Any,
    own: Mapping[str, torch.nn.Parameter],
    stored: Mapping[str, Any],
    before: str,
    where: str,
) -> None:
    """Give the language model, whose weights are `own`, those whose names begin with `before`.

    Rows of tokens that the source does not have begin as the mean of all. A head of its own that the
    source does not have, since it ties it, begins as the embeddings.

    Raises:
        UserError: a weight is missing, has another shape, or has no place; nothing is changed then.
    """
    shapes = {
        name.removeprefix(before): stored[name].get_slice(name).get_shape()
        for name in stored
        if name.startswith(before)
    }
    table = model.get_input_embeddings().weight
    if wrong := [*_misfits(own, shapes, table)]:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(f"{where} does not fit: {wrong[0]}{more}")
    for key, weight in own.items():
        if key not in shapes:
            weight.zero_()
            continue
        value = stored[before + key].get_tensor(before + key)
        (_fill_rows if weight is table else torch.Tensor.copy_)(weight, value)
    head = model.get_output_embeddings().weight
    if head is not table:
        name = min((n for n in stored if n.endswith(HEAD)), key=len, default="")
        _fill_rows(head, stored[name].get_tensor(name) if name else table)


def _misfits(
    own: Mapping[str, torch.Tensor], shapes: Mapping[str, list[int]], table: torch.Tensor
) -> list[str]:
    """Say which weights are missing in the source, differ in shape, or have no place here."""
    wrong = []
    for key, weight in own.items():
        here, there = [*weight.shape], shapes.get(key)
        if there is None:
            if not key.endswith(BIASES):
                wrong.append(f"{key} is missing there")
        elif there[1:] != here[1:] or (weight is not table and there != here):
            wrong.append(f"{key} is {there} there and {here} here")
    kinds = {_kind(key) for key in own} | {HEAD}
    others = (key for key in shapes if _kind(key) not in kinds and not key.endswith("inv_freq"))
    return wrong + [f"{key} {shapes[key]} has no place here" for key in others]


def _kind(key: str) -> str:
    """Return a weight's name without the number of its layer; there may be more than are taken."""
    return re.sub(r"\.\d+\.", ".", key)


def _fill_rows(table: torch.Tensor, value: torch.Tensor) -> None:
    """Copy the rows of a table of tokens [vocabulary, H]; further rows are the mean of them."""
    rows = min(len(table), len(value))
    table[:rows].copy_(value[:rows])
    table[rows:] = value.float().mean(0)


@torch.no_grad()
def scale_projector(family: Family, model: Any, processor: Any, seed: int) -> None:
    """Scale the projector's last layer: on a medium of noise its output is as large as the embeddings.

    Large means the root of the mean square.
    """
    from transformers import ProcessorMixin  # after the shim that `models.base` imports

    names = [n for n, w in model.named_parameters() if n.startswith(family.towers["projector"])]
    last = [name for name in names if model.get_parameter(name).dim() == 2][-1].rpartition(".")[0]
    layer, outputs = model.get_submodule(last), []
    handle = layer.register_forward_hook(lambda _, __, out: outputs.append(out))
    medium = _noise(family, np.random.default_rng(seed))
    kind = family.kinds[0]
    turn: list[Any] = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": "x"}]}]
    text = ProcessorMixin.apply_chat_template(processor, turn, tokenize=False)
    family.run_towers(model, [family.encode(processor, text, [medium])])
    handle.remove()
    embeddings = model.get_input_embeddings().weight
    factor = embeddings.square().mean().sqrt() / outputs[0].square().mean().sqrt()
    for weight in layer.parameters(recurse=False):
        weight.mul_(factor)


def _noise(family: Family, rng: np.random.Generator) -> Decoded:
    if "image" not in family.kinds:
        return Audio(rng.normal(0, 0.1, SECONDS * RATE).astype(np.float32), RATE)
    return Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8))
