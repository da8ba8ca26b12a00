"""PSR: only right answers are reinforced; pass@1 rises and diversity falls.

Source: Zhu et al. 2025, "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
arXiv 2506.01347, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlmrl.parts.algorithms.w_reinforce import WReinforce


@dataclass(frozen=True, slots=True)
class Psr(WReinforce):
    """Positive sample reinforcement. Example: Psr(correct_above=0.9)."""

    right: float = 1.0
    wrong: float = 0.0
