"""Heads whose logits are bounded, as Gemma's are: `cap * tanh(logits / cap)`."""

from __future__ import annotations

from typing import Any

import torch


class CappedHead(torch.nn.Module):
    """A head [V, H] whose logits stay within `logit_cap` of zero.

    Source: Gemma Team 2024, "Gemma 2", arXiv:2408.00118, section 2 (logit soft-capping).
    """

    def __init__(self, head: torch.nn.Module, logit_cap: float) -> None:
        super().__init__()
        self.head = head
        self.logit_cap = logit_cap

    def __getattr__(self, name: str) -> Any:
        """Return what the head has: its weight, how it is computed."""
        return super().__getattr__(name) if name == "head" else getattr(self.head, name)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the bounded logits [..., V] of hidden states [..., H]."""
        return cap_logits(self.head(hidden), self.logit_cap)


def cap_logits(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """Return the logits, bounded."""
    return cap * torch.tanh(logits / cap)
