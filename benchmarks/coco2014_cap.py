"""COCO captions of 2014: one sentence about an everyday photo, compared with five that people wrote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.coco2017_cap import Coco2017Cap


@dataclass(frozen=True)
class Coco2014Cap(Coco2017Cap):
    """COCO's 2014 validation images, of which papers quote the 5,000 of Karpathy's test split.

    The number is CIDEr over all of them, which needs the extra `captions`; `mean` is ROUGE-L.

    Source: Chen et al. 2015, arXiv 1504.00325; lmms-eval tasks/coco_cap.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/COCO-Caption"
    hub: ClassVar[str] = "lmms-lab-encoder/COCO-Caption"
    checked: ClassVar[str] = (
        "count: COCO's own, rounded that of the hub card of lmms-lab/COCO-Caption; columns: lmms-eval, "
        "2026-11; licence: unchecked"
    )
    count: ClassVar[int] = 40504
    officials: ClassVar[tuple[Official, ...]] = (
        replace(Coco2017Cap.officials[0], task="coco2014_cap_val"),
    )
