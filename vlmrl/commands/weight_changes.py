"""`vlmrl changed`: which share of the weights training has moved.

Source: "Reinforcement Learning Finetunes Small Subnetworks in Large Language Models" (Mukherjee et al. 2025,
arXiv 2505.11711), which counts weights that differ by more than 1e-5. Counted beside it are those that
differ once both are rounded to bfloat16, in which a model is mostly served.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.errors import UserError

__all__ = ["Changed", "count_changes"]

TOLERANCE = 1e-5
"""A weight that moved by no more counts as unchanged."""
DEPTH = 2
"""Components of a weight's name by which weights are grouped: enough to tell the towers apart."""


@dataclass(slots=True)
class Changed:
    """How many of `total` weights differ by more than `TOLERANCE`, and how many in bfloat16."""

    total: int = 0
    moved: int = 0
    moved_bfloat16: int = 0


def count_changes(before: Path, after: Path) -> dict[str, Changed]:
    """Return the changes from one checkpoint folder to another, by part of the model; `all` comes first.

    One weight matrix of each is in memory at a time.

    Raises:
        UserError: a folder has no weights, or the weights differ in names or shapes.
    """
    import torch

    found = {"all": Changed()}
    with ExitStack() as stack:
        old, new = (dict(_tensors(folder, stack)) for folder in (before, after))
        if odd := sorted(old.keys() ^ new.keys()):
            raise UserError(
                f"{after}: expected the weights of {before}, got {len(odd)} other, e.g. {odd[0]}"
            )
        for name in old:
            first, second = old[name].get_tensor(name), new[name].get_tensor(name)
            if first.shape != second.shape:
                raise UserError(
                    f"{after}: {name}: expected shape {list(first.shape)}, got {list(second.shape)}"
                )
            moved = int(((first.double() - second.double()).abs() > TOLERANCE).sum())
            rounded = int((first.to(torch.bfloat16) != second.to(torch.bfloat16)).sum())
            part = ".".join(name.split(".")[:DEPTH])
            for counts in (found["all"], found.setdefault(part, Changed())):
                counts.total += first.numel()
                counts.moved += moved
                counts.moved_bfloat16 += rounded
    return found


def _tensors(folder: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """Yield the names of a folder's weights, each with the open file that has it."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: expected a checkpoint folder, got no .safetensors file in it")
    for path in files:
        file = stack.enter_context(safe_open(path, framework="pt"))
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            yield name, file
