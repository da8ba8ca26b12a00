"""A whole model folder made of published parts, as models like LLaVA begin."""

from __future__ import annotations

from pathlib import Path

import torch

from vlmrl import __version__
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.errors import UserError
from vlmrl.models import tower_weights
from vlmrl.models.base import Family
from vlmrl.models.loading import load_model, save_processor
from vlmrl.system.files import require_room, write_bytes, writing

WEIGHTS = "model.safetensors"
CORPUS = ("word " * 64,)
"""What a stand-in of a tokenizer is trained on."""


def assemble(build: BuildConfig, out: Path, seed: int, sizes_only: bool) -> list[str]:
    """Write a model, its processor and its README into a folder, new or empty; return the README's lines.

    With `sizes_only` no weight is written, drawn or read: a language model that is given by its config
    alone gets a stand-in of a tokenizer.

    Raises:
        UserError: the folder has files, no language model is named, or the parts do not fit the family.
    """
    if "language" not in build.weights:
        raise UserError("model assemble: name the language model, as weights.language=smollm2_135m")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: expected a new folder, got one that has files")
    part = tower_weights.open_part(build.weights["language"])
    if part is not None:
        part.fetch(print)  # for its tokenizer
    config = ModelConfig(build=build)
    with torch.device("meta" if sizes_only else "cpu"):
        stands_in = tower_weights.tokenizer_of(build) is None
        model, processor, family = load_model(config, CORPUS, seed)
    lines = _describe(build, family, model, seed, sizes_only)
    if stands_in:
        lines.append(
            "- the tokenizer is a stand-in: the language model is known by its config alone"
        )
    with writing(out):
        if not sizes_only:
            require_room(out, sum(w.nbytes for w in model.parameters()))
        family.save(model, str(out), {} if sizes_only else model.state_dict())
        if sizes_only:
            (out / WEIGHTS).unlink(missing_ok=True)
        save_processor(processor, str(out))
    write_bytes(
        out / "README.md", ("\n".join(["# An assembled model", "", *lines]) + "\n").encode()
    )
    return lines


def _describe(
    build: BuildConfig, family: Family, model: torch.nn.Module, seed: int, sizes_only: bool
) -> list[str]:
    """Say of each tower how many weights it has, and where they, or its sizes, are from."""
    lines = [f"- family `{build.family}`, assembled by vlmrl {__version__}"]
    named = [*model.named_parameters()]
    sources = {str(tower): source for tower, source in build.weights.items()}
    for tower, prefixes in family.towers.items():
        count = sum(weight.numel() for name, weight in named if name.startswith(prefixes))
        scaled = ", scaled to the token embeddings" if tower == "projector" else ""
        origin = sources.get(tower, f"random with seed {seed}{scaled}")
        if part := tower_weights.open_part(origin):
            origin = f"{origin} ({part.origin}; licence {part.licence})"
        elif sizes_only and tower not in sources:
            origin = "of no source"
        lines.append(f"- {tower}: {count / 1e6:.1f} M weights, {origin}")
    return [*lines, "- sizes only: the weights are not here"] if sizes_only else lines
