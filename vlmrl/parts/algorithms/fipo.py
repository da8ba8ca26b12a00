"""FIPO: DAPO whose tokens weigh more where the update also raises what follows them.

Source: "Future-KL Influenced Policy Optimization", arXiv 2603.19835, as ms-swift has it: the weight of a
token is exp of the discounted sum of log ratios from it on, without gradient, kept in [1, 1.2]; for bad
tokens whose ratio exceeds 4 in [0.8, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from vlmrl.algorithms import losses as surrogates
from vlmrl.algorithms.base import LossInputs
from vlmrl.algorithms.recipes import check_positive
from vlmrl.parts.algorithms.dapo import Dapo

LEAST_OF_UNSAFE = 0.8
"""The smallest weight of a bad token whose ratio is unsafe."""


@dataclass(frozen=True, slots=True)
class Fipo(Dapo):
    """DAPO with a weight of the future. Example: Fipo(half_life=64)."""

    of_wholes: ClassVar[bool] = True

    half_life: float = 32.0
    """Tokens after which a log ratio counts half."""
    most_influence: float = 1.2
    """The largest weight of a token; the smallest is 1."""
    unsafe_ratio: float = 4.0
    """A bad token with a larger ratio gets no weight above 1."""

    def __post_init__(self) -> None:
        Dapo.__post_init__(self)
        check_positive(self, "half_life")
        if self.most_influence < 1:
            raise ValueError(f"expected most_influence of at least 1, got {self.most_influence}")

    def policy_loss(self, inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return DAPO's loss times the influence of each token, [B, T]."""
        losses, metrics = Dapo.policy_loss(self, inputs)
        log_ratio = surrogates.log_ratio(inputs.new, inputs.old, inputs.mask).detach()
        raised = discounted(log_ratio, 2 ** (-1 / self.half_life)).clamp(max=surrogates.LOG_BOUND)
        weight = raised.exp().clamp(1.0, self.most_influence)
        unsafe = (inputs.advantages < 0) & (log_ratio.exp() > self.unsafe_ratio)
        weight = torch.where(unsafe, weight.clamp(LEAST_OF_UNSAFE, 1.0), weight)
        return losses * weight, metrics


def discounted(values: torch.Tensor, discount: float) -> torch.Tensor:
    """Return for each token the sum of its value and the later ones, each step times `discount`, [B, T]."""
    total, reach = values, 1
    while reach < values.shape[1]:  # `total` is the sum of the next `reach` values
        later = torch.nn.functional.pad(total[:, reach:], (0, reach))
        total, reach = total + discount**reach * later, 2 * reach
    return total
