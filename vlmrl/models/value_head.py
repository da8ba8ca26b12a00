"""The head of a reward model that trains: one number from a hidden state.

A model that has one scores and does not write: its forwards return the numbers in place of log-probs.
"""

from __future__ import annotations

from typing import Any

import torch

NAME = "v_head"
"""What the head is called in a model that trains one, and so in its checkpoints."""


class TrainedHead(torch.nn.Linear):
    """A head that trains. It has no bias: a difference of two scores does not change by one."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Begin with this weight [1, H]."""
        super().__init__(weight.shape[1], 1, bias=False)
        self.weight = torch.nn.Parameter(weight.detach().float().clone())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the number [N] of each hidden state [N, H], float32 under autocast, too."""
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.nn.functional.linear(hidden.float(), self.weight.float())[:, 0]


def head_of(model: Any) -> TrainedHead | None:
    """Return the head that a model scores with; None for one that writes."""
    head: TrainedHead | None = getattr(model, NAME, None)
    return head
