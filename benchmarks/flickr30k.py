"""Flickr30k: one sentence about a photo of people or animals, compared with five that people wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.coco2017_cap import Coco2017Cap


@dataclass(frozen=True)
class Flickr30k(Coco2017Cap):
    """Flickr30k's 31,783 images, all of which lmms-eval takes for a test split; papers quote 1,000 of them.

    The number is CIDEr over all of them, which needs the extra `captions`; `mean` is ROUGE-L.

    Source: Young et al. 2014, From image descriptions to visual denotations; lmms-eval tasks/flickr30k.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/flickr30k"
    hub: ClassVar[str] = "lmms-lab-encoder/flickr30k"
    checked: ClassVar[str] = (
        "count and columns: the hub card of lmms-lab/flickr30k, 2026-11; licence: unchecked"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 31783
    columns: ClassVar[Mapping[str, str]] = {
        "id": "img_id",
        "image": "image",
        "question": "ask",
        "answer": "caption",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        replace(Coco2017Cap.officials[0], task="flickr30k_test"),
    )
