"""Experts under autocast: computed in its dtype, as linear layers are.

transformers' grouped product, which autocast does not know, computes in the dtype of the weights. Where
these train they are float32, so that most of a mixture of experts would be computed in float32.
"""

from __future__ import annotations

from typing import Any

import torch

from vlmrl.attention import cast
from vlmrl.system import torchvision_shim  # noqa: F401  before transformers

# isort: split
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

__all__ = ["install_experts"]

BASE = "grouped_mm"
"""The only implementation that is replaced; models with any other are left alone."""
NAME = "autocast_grouped_mm"


def install_experts(model: Any) -> None:
    """Let the experts of a model be computed in the dtype of autocast, where it is on."""
    config = model.config.get_text_config()
    if getattr(config, "_experts_implementation", None) == BASE:
        config._experts_implementation = NAME


class _Cast:
    """A module of experts whose weights are in the dtype of autocast; all else is the module's own."""

    def __init__(self, experts: Any) -> None:
        self._experts = experts
        self.gate_up_proj, self.down_proj = cast(experts.gate_up_proj, experts.down_proj)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._experts, name)


def _compute(
    experts: Any, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Do as the grouped product of transformers does."""
    return grouped_mm_experts_forward(_Cast(experts), hidden, index, weights)  # type: ignore[arg-type]


ALL_EXPERTS_FUNCTIONS.register(NAME, _compute)
