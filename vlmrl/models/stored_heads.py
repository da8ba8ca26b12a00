"""The heads of reward models in the files of checkpoints, and what a new one begins with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import cached_file

from vlmrl.errors import UserError
from vlmrl.models.value_head import NAME

VALUE_HEAD = "value_head.safetensors"
"""A file with a value head alone."""
WEIGHTS = (f"{NAME}.summary.weight", f"{NAME}.weight")
"""Names of the weight [1, H] of a value head; its bias [1], if any, is named alike."""
STD = 0.02
"""Standard deviation of a new head's weights: `initializer_range` of transformers' classifiers."""


class Head(NamedTuple):
    """A linear head of one number: its weight [1, H] and bias [1], float32."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the number [P] of each hidden state [P, H]."""
        weight, bias = self.weight.to(hidden.device), self.bias.to(hidden.device)
        return torch.nn.functional.linear(hidden.float(), weight, bias)[:, 0]


def first_weight(path: str | None, hidden_size: int, seed: int) -> torch.Tensor:
    """Return the weight [1, H] that training begins with: that of the checkpoint, or a drawn one.

    Raises:
        UserError: the checkpoint's head is for another model, or cannot be read.
    """
    head = find_value_head(path) if path else None
    if head is None:
        return STD * torch.randn(1, hidden_size, generator=torch.Generator().manual_seed(seed))
    if head.weight.shape[1] != hidden_size:
        raise UserError(f"{path}: its head has {head.weight.shape[1]} inputs, not {hidden_size}")
    return head.weight


def find_value_head(folder: str) -> Head | None:
    """Return the value head of a checkpoint; None if it has none.

    That of a hub name must be in a file of its own.

    Raises:
        UserError: its weights are pickled, or of another shape.
    """
    home = Path(folder).expanduser()
    if not home.is_dir():  # a hub name
        cached = cached_file(folder, VALUE_HEAD, _raise_exceptions_for_missing_entries=False)
        home = Path(cached).parent if cached else home
    if (home / "value_head.bin").exists() and not (home / VALUE_HEAD).exists():
        raise UserError(f"{home}/value_head.bin is pickled: store it as {VALUE_HEAD}")
    alone = home / VALUE_HEAD
    for file in [alone] if alone.exists() else sorted(home.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                names = set(weights.keys())
                for name in (n for n in WEIGHTS if n in names):
                    bias = name.removesuffix("weight") + "bias"
                    weight = weights.get_tensor(name).float()
                    own = weights.get_tensor(bias) if bias in names else torch.zeros(1)
                    if weight.ndim != 2 or len(weight) != 1:
                        raise UserError(
                            f"{file}: expected {name} of shape [1, H], got {list(weight.shape)}"
                        )
                    return Head(weight, own.float())
        except SafetensorError as error:
            raise UserError(f"{file}: {error}") from error
    if alone.exists():
        raise UserError(f"{alone}: expected one of {', '.join(WEIGHTS)}")
    return None
