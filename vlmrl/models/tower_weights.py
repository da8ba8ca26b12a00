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
from transformers import CONFIG_MAPPING

from vlmrl import plugins
from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
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
POSITIONS = "embed_positions.weight"
"""Table [positions, width] of which a shorter tower takes the beginning."""


def open_part(name: str) -> WeightPart | None:
    """Return the named part; None: it is a folder or a hub name."""
    if name in plugins.names("weight"):
        part: WeightPart = plugins.build("weight", name)
        return part
    return None


def build(family: Family, config: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
    """Build a model and its processor, as `Family.build`, and give its towers their published weights.

    A model without numbers (on the device `meta`) stays so, and nothing is fetched for it.

    Raises:
        UserError: there is no such source, or the family has no such tower, or its weights have no
            place or other shapes there.
    """
    if missing := sorted(config.weights.keys() - family.towers.keys()):
        raise UserError(
            f"model.build.weights: {config.family} has no {missing[0]} tower; it has "
            f"{', '.join(family.towers)}"
        )
    model, processor = family.build(_with_sizes(config), corpus, seed)
    for tower, name in config.weights.items():
        if model.device.type != "meta":
            _fill(model, processor, family.towers[tower], tower, name)
    return model, processor


def _with_sizes(build: BuildConfig) -> BuildConfig:
    """Return the build with the sizes of its towers' sources, as far as it does not set them itself."""
    sizes: dict[str, Any] = {}
    for tower, name in build.weights.items():
        config = _config_of(tower, name)
        own = getattr(config, f"{tower}_config", config)
        known = {field: getattr(own, field) for field in SIZES[tower] if hasattr(own, field)}
        sizes[tower] = {**known, **getattr(build, tower)}
    return build.model_copy(update=sizes)


def _fill(model: Any, processor: Any, prefixes: Sequence[str], tower: str, name: str) -> None:
    """Give a tower, whose weights have these prefixes, the weights and the preprocessing of its source."""
    folder = _folder_of(tower, name)
    with _opened(sorted(folder.glob("*.safetensors"))) as stored, torch.no_grad():
        for prefix in prefixes:
            own = {
                key.removeprefix(prefix): weight
                for key, weight in model.named_parameters()
                if key.startswith(prefix)
            }
            _copy(own, stored, f"model.build.weights.{tower}: {name}")
    _set_preprocessing(processor, folder)


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
        text = " ".join(str(error).split())[:300]
        known = ", ".join(plugins.names("weight"))
        raise UserError(
            f"model.build.weights.{tower}: expected one of {known}, a model folder or a hub name, got "
            f"{name!r}: {text}"
        ) from error


def _folder_of(tower: str, name: str) -> Path:
    part = open_part(name)
    if part is not None:
        return part.fetch(lambda line: print(line, file=sys.stderr))
    folder = Path(name).expanduser()
    if not folder.is_dir():
        patterns = ["*.json", "*.safetensors"]
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
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
