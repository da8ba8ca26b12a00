"""NSR: only wrong answers are punished; what is right is left alone, and pass@k is kept.

Source: Zhu et al. 2025, "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
arXiv 2506.01347, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlmrl.parts.algorithms.w_reinforce import WReinforce


@dataclass(frozen=True, slots=True)
class Nsr(WReinforce):
    """Negative sample reinforcement. Example: Nsr(correct_above=0.9)."""

    right: float = 0.0
    wrong: float = -1.0
