"""LUSPO: GSPO without its division by the length of the completion, which favours short wrong answers.

Source: "Length-Unbiased Sequence Policy Optimization", arXiv 2602.05261: the loss of each completion of
GSPO times its length.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlmrl.algorithms.losses import Aggregation
from vlmrl.parts.algorithms.gspo import Gspo


@dataclass(frozen=True, slots=True)
class Luspo(Gspo):
    """Length-unbiased GSPO. Example: Luspo()."""

    aggregation: Aggregation = "sum"
