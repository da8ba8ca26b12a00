"""Critique-GRPO: refinements in the policy's own groups, shaped as LUFFY shapes demonstrations.

Source: Zhang et al. 2025, "Critique-GRPO", arXiv 2506.03106, and its code: A = r - the mean over the
group with its refinement, no deviation, no clip, a constant length; on tokens of origin `refinement`
p / (p + 0.1) takes the place of the ratio. The strategy `critiques` asks for the refinements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.parts.algorithms.luffy import Luffy
from vlmrl.schema import Origin


@dataclass(frozen=True, slots=True)
class CritiqueGrpo(Luffy):
    """GRPO with shaped refinements, for the strategy `critiques`. Example: CritiqueGrpo(gamma=0.1)."""

    guided: ClassVar[Origin] = "refinement"
