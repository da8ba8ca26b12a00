"""RefCOCOg: a box around the object that an expression describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.refcoco import Refcoco


@dataclass(frozen=True)
class Refcocog(Refcoco):
    """RefCOCOg's test split; the share of boxes with an IoU of at least 0.5, one row an expression.

    The test split is that of papers ("umd"); `val` is not: it holds their 2,573 objects and 5,000 of
    another validation split.

    Source: Mao et al. 2016, arXiv 1511.02283; lmms-eval tasks/refcocog (bbox_rec, ACC@0.5).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/RefCOCOg"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/RefCOCOg"
    checked: ClassVar[str] = "counts and columns: hub card, which names no licence, 2026-11"
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 5023
    splits: ClassVar[Mapping[str, int]] = {"val": 7573}
