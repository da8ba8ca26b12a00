"""NoCaps: one sentence about a photo with objects that COCO's captions lack, compared with ten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.coco2017_cap import Coco2017Cap


@dataclass(frozen=True)
class Nocaps(Coco2017Cap):
    """NoCaps's validation images, without their domains, which the published layout does not say.

    The number is CIDEr over all of them, which needs the extra `captions`; `mean` is ROUGE-L.

    Source: Agrawal et al. 2019, arXiv 1812.08658; lmms-eval tasks/nocaps.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/NoCaps"
    hub: ClassVar[str] = "lmms-lab-encoder/NoCaps"
    checked: ClassVar[str] = (
        "count and columns: the hub card of lmms-lab/NoCaps, 2026-11; licence: unchecked"
    )
    split: ClassVar[str] = "validation"
    count: ClassVar[int] = 4500
    columns: ClassVar[Mapping[str, str]] = {
        "id": "image_id",
        "image": "image",
        "question": "ask",
        "answer": "annotations_captions",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        replace(Coco2017Cap.officials[0], task="nocaps_val"),
    )
