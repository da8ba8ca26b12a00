"""TextCaps: one sentence about a photo and the text in it, compared with five that people wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.coco2017_cap import Coco2017Cap


@dataclass(frozen=True)
class Textcaps(Coco2017Cap):
    """TextCaps's validation images.

    The number is CIDEr over all of them, which needs the extra `captions`; `mean` is ROUGE-L.

    Source: Sidorov et al. 2020, arXiv 2003.12462; lmms-eval tasks/textcaps.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/TextCaps"
    hub: ClassVar[str] = "lmms-lab-encoder/TextCaps"
    checked: ClassVar[str] = (
        "count: the hub card of a copy, rounded that of lmms-lab/TextCaps; columns: lmms-eval, 2026-11; "
        "licence: unchecked"
    )
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 3166
    columns: ClassVar[Mapping[str, str]] = {
        "id": "image_id",
        "image": "image",
        "question": "ask",
        "answer": "caption_str",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        replace(Coco2017Cap.officials[0], task="textcaps_val"),
    )
