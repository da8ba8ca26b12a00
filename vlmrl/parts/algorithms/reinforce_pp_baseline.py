"""REINFORCE++-baseline: the group's mean first, then whitening over the whole batch.

Source: Hu 2025, "REINFORCE++", arXiv 2501.03262, section 3.3; as OpenRLHF has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vlmrl.parts.algorithms.reinforce_pp import ReinforcePp


@dataclass(frozen=True, slots=True)
class ReinforcePpBaseline(ReinforcePp):
    """REINFORCE++ for groups of completions. Example: ReinforcePpBaseline(kl=0.001)."""

    baseline: Literal["mean", "leave_one_out", "batch", "none"] = "mean"
