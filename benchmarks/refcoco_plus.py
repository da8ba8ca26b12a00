"""RefCOCO+: a box around the object that an expression describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.refcoco import Refcoco


@dataclass(frozen=True)
class RefcocoPlus(Refcoco):
    """RefCOCO+'s testA; the share of boxes with an IoU of at least 0.5, one row an expression.

    Other splits are testB and val, those of papers; expressions say nothing about where the object is.

    Source: Kazemzadeh et al. 2014, ReferItGame; lmms-eval tasks/refcoco+ (bbox_rec, ACC@0.5).
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/RefCOCOplus"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/RefCOCOplus"
    checked: ClassVar[str] = (
        "columns: the hub card of RefCOCOg, 2026-11; counts and licence: unchecked"
    )
    split: ClassVar[str] = "testA"
    count: ClassVar[int] = 1975
    splits: ClassVar[Mapping[str, int]] = {"testB": 1798, "val": 3805}
