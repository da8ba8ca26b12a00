"""GSPO-token: the completion's ratio as value, each token's own gradient; advantages may differ by token.

Source: Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071, eq. 13 and 14. With
one advantage a completion its loss, clip and gradient are GSPO's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlmrl.algorithms.base import LossInputs
from vlmrl.parts.algorithms.gspo import Gspo


@dataclass(frozen=True, slots=True)
class GspoToken(Gspo):
    """GSPO for advantages of tokens, spans or turns. Example: GspoToken()."""

    def ratio(self, inputs: LossInputs) -> torch.Tensor:
        """Return the completion's ratio without gradient times new / new of the token, [B, T]."""
        new = torch.where(inputs.mask, inputs.new, 0.0)
        return Gspo.ratio(self, inputs).detach() * (new - new.detach()).exp()
