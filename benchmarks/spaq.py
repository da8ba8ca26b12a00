"""SPAQ: rate the quality of photographs taken with phones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarks.koniq import Koniq


@dataclass(frozen=True)
class Spaq(Koniq):
    """SPAQ's test images as Q-Insight and DeQA-Score take them; asked and scored as KonIQ-10k.

    Source: Fang et al. 2020, Perceptual Quality Assessment of Smartphone Photography; You et al. 2025,
    arXiv 2501.11561; Q-Insight, arXiv 2503.22679.
    """

    origin: ClassVar[str] = "https://github.com/h4nwei/SPAQ"
    licence: ClassVar[str] = "lists: Apache-2.0; images: education and research only"
    hub: ClassVar[str] = "zhiyuanyou/Data-DeQA-Score (SPAQ/metas), images of SPAQ"
    checked: ClassVar[str] = (
        "licence of the lists: a copy's hub card, of the images: a copy of SPAQ's Readme.txt; columns: "
        "DeQA-Score's build_soft_labels; count: counted in Q-Align's test_spaq.json at 14dfdff, the same "
        "split; 2026-11"
    )
    count: ClassVar[int] = 2224
    files: ClassVar[tuple[str, ...]] = ("SPAQ/metas/test_spaq_2k.json",)
