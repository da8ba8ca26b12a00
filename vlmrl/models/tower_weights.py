"""Weights of published models for the towers of a model that is built: `model.build.weights`.

The tower takes the sizes of its source; what the config itself sets (fewer layers, another length or
side) comes before them. Weights are found by the tower's own names, whatever stands before these in
the source: the encoder of a Whisper, the tower of a whole VLM.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from safetensors import safe_open
from torch._subclasses.fake_tensor import FakeTensor
from transformers import CONFIG_MAPPING

from vlmrl import plugins
from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.models import dinov2, language_weights
from vlmrl.models.base import Family
from vlmrl.models.weight_part import WeightPart
from vlmrl.system.files import read_json

SIZES: Mapping[str, tuple[str, ...]] = {
    "audio": (
        "d_model",
        "encoder_layers",
        "encoder_attention_heads",
        "encoder_ffn_dim",
        "num_mel_bins",
        "activation_function",
        "scale_embedding",
    ),
    "vision": (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "image_size",
        "patch_size",
        "hidden_act",
        "layer_norm_eps",
    ),
}
"""Fields of a tower's config that follow its source. The seconds of sound are the config's own choice."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files of which a model folder with a tokenizer has one."""
POSITIONS = "embed_positions.weight"
"""Table [positions, width] of which a shorter tower takes the beginning."""
SQUARE_POSITIONS = "embeddings.position_embeddings"
"""Table of DINOv2 that is resized to the tower's own image."""


def open_part(name: str) -> WeightPart | None:
    """Return the named part; None: it is a folder or a hub name."""
    if name in plugins.names("weight"):
        part: WeightPart = plugins.build("weight", name)
        return part
    return None


def build(family: Family, config: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
    """Build a model and its processor, as `Family.build`, and give its towers their published weights.

    A model without numbers (on the device `meta`, or of fake tensors) stays so, and no weights are fetched.

    Raises:
        UserError: there is no such source, or the family has no such tower, or its weights have no
            place or other shapes there.
    """
    if missing := sorted(config.weights.keys() - family.towers.keys()):
        raise UserError(
            f"model.build.weights: {config.family} has no {missing[0]} tower; it has "
            f"{', '.join(family.towers)}"
        )
    model, processor = family.build(_with_sizes(family, config), corpus, seed)
    if _has_no_numbers():
        return model, processor
    for tower, name in config.weights.items():
        _fill(model, processor, family.towers[tower], tower, name)
    if "language" in config.weights:
        language_weights.scale_projector(family, model, processor, seed)
    return model, processor


def tokenizer_of(build: BuildConfig) -> Any:
    """Return the tokenizer of the source of a build's language model; None: one is to be trained.

    For a model without numbers it is None, too, where the part was not fetched or there is a config alone.

    Raises:
        UserError: the source of a model with numbers has no tokenizer.
    """
    name = build.weights.get("language")
    part = open_part(name) if name else None
    if name is None or (part is not None and _has_no_numbers() and not part.home.is_dir()):
        return None
    source = Path(name).expanduser() if part is None else _folder_of("language", name)
    why = f"it has none of {', '.join(TOKENIZERS)}"
    try:
        if not source.is_dir():
            return transformers.AutoTokenizer.from_pretrained(name)
        if any(
            (source / file).is_file() for file in TOKENIZERS
        ):  # else transformers makes an empty one
            return transformers.AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
    if _has_no_numbers():
        return None
    raise UserError(f"model.build.weights.language: {name} has no tokenizer: {why}")


def _has_no_numbers() -> bool:
    """Return whether tensors made here have sizes alone."""
    tensor = torch.empty(0)
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def _with_sizes(family: Family, build: BuildConfig) -> BuildConfig:
    """Return the build with the sizes of its towers' sources, as far as it does not set them itself."""
    sizes: dict[str, Any] = {}
    for tower, name in build.weights.items():
        config = _config_of(tower, name)
        if tower == "language":
            with torch.device("meta"):
                bare, _ = family.build(BuildConfig(family=build.family), ["x"], 0)
            where = f"model.build.weights.language: {name}"
            known = language_weights.fields_of(config.get_text_config(), bare, where)
            sizes["text"] = {**known, **build.text}
            continue
        own = getattr(config, f"{tower}_config", config)
        known = {field: getattr(own, field) for field in SIZES[tower] if hasattr(own, field)}
        if own.model_type == "dinov2":
            known |= dinov2.tower_config(own)
        sizes[tower] = {**known, **getattr(build, tower)}
    return build.model_copy(update=sizes)


def _fill(model: Any, processor: Any, prefixes: Sequence[str], tower: str, name: str) -> None:
    """Give a tower, whose weights have these prefixes, the weights and the preprocessing of its source."""
    folder = _folder_of(tower, name)
    where = f"model.build.weights.{tower}: {name}"
    of_dinov2 = read_json(folder / "config.json").get("model_type") == "dinov2"
    stored_name = dinov2.stored_name if of_dinov2 else str
    with _opened(sorted(folder.glob("*.safetensors"))) as stored, torch.no_grad():
        if tower == "language":  # its second prefix is that of the head
            own = _inside(model, prefixes[0])
            language_weights.fill(model, own, stored, _common_prefix(own, stored), where)
            return
        for prefix in prefixes:
            own = {stored_name(key): weight for key, weight in _inside(model, prefix).items()}
            _copy(own, stored, where)
    _set_preprocessing(processor, folder)


def _inside(model: Any, prefix: str) -> dict[str, torch.nn.Parameter]:
    """Return the weights whose names begin with a prefix, by the rest of their names."""
    named = model.named_parameters()
    return {key.removeprefix(prefix): weight for key, weight in named if key.startswith(prefix)}


def _copy(own: Mapping[str, torch.nn.Parameter], stored: Mapping[str, Any], where: str) -> None:
    """Copy the source's weights into a tower's own, all or none."""
    before = _common_prefix(own, stored)
    values, wrong = {}, []
    for key, weight in own.items():
        if f"{before}{key}" not in stored:
            wrong.append(f"{key} is missing there")
            continue
        value = stored[f"{before}{key}"].get_tensor(f"{before}{key}")
        if key.endswith(POSITIONS):
            value = value[: len(weight)]
        if key.endswith(SQUARE_POSITIONS) and value.shape != weight.shape:
            value = dinov2.resized_positions(value, weight.shape[1])
        if value.shape != weight.shape:
            wrong.append(f"{key} is {[*value.shape]} there and {[*weight.shape]} here")
        values[key] = value
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(f"{where} does not fit: {wrong[0]}{more}")
    for key, weight in own.items():
        weight.copy_(values[key])


def _common_prefix(own: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """Return what stands before the tower's names in the source, where most of them are found."""
    first = next(iter(own), "")
    ends = [name for name in stored if name == first or name.endswith(f".{first}")]
    before = {name[: len(name) - len(first)] for name in ends}
    return max(sorted(before), key=lambda p: sum(p + key in stored for key in own), default="")


@contextmanager
def _opened(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield by weight's name the open file that holds it."""
    with ExitStack() as stack:
        stored: dict[str, Any] = {}
        for file in files:
            weights = stack.enter_context(safe_open(file, framework="pt"))
            stored |= dict.fromkeys(weights.keys(), weights)
        yield stored


def _config_of(tower: str, name: str) -> Any:
    part = open_part(name)
    if part is not None:
        if part.tower != tower:
            raise UserError(
                f"model.build.weights.{tower}: {name} holds weights of the {part.tower} tower"
            )
        return CONFIG_MAPPING[part.config["model_type"]](**part.config)
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=Path(name).is_dir())
    except (OSError, ValueError) as error:
        raise _not_had(tower, name, error) from error


def _not_had(tower: str, name: str, error: Exception) -> UserError:
    """Return what to say of a source that is no part, no model folder and not to be had from the hub."""
    known = ", ".join(plugins.names("weight"))
    text = " ".join(str(error).split())[:300]
    return UserError(
        f"model.build.weights.{tower}: expected one of {known}, a model folder or a hub name that can be "
        f"reached, got {name!r}: {text}; offline, name a folder with its config.json and .safetensors"
    )


def _folder_of(tower: str, name: str) -> Path:
    part = open_part(name)
    if part is not None:
        return part.fetch(lambda line: print(line, file=sys.stderr))
    folder = Path(name).expanduser()
    if not folder.is_dir():
        patterns = ["*.json", "*.safetensors"]
        try:
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
        except OSError as error:
            raise _not_had(tower, name, error) from error
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"model.build.weights.{tower}: {name} has no .safetensors file")
    return folder


def _set_preprocessing(processor: Any, folder: Path) -> None:
    """Let images be normalised as the source's own preprocessing does."""
    file = folder / "preprocessor_config.json"
    stated = read_json(file) if file.is_file() else {}
    for kind in ("image_processor", "video_processor"):
        of_kind = getattr(processor, kind, None)
        for key in ("image_mean", "image_std"):
            if of_kind is not None and key in stated:
                setattr(of_kind, key, stated[key])
