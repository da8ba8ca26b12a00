"""GEOQA: geometry with a diagram, as R1-V asks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Geoqa(Benchmark):
    """R1-V's 754 test questions; math-verify compares whatever it finds in the answer with the truth.

    A box or number anywhere in the answer can be right. Strict reads one expression, all of it.

    Source: Chen et al. 2021, GeoQA, arXiv 2105.14517; R1-V, src/eval/test_qwen2vl_geoqa.py.
    """

    origin: ClassVar[str] = "https://github.com/Deep-Agent/R1-V"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = (
        "Deep-Agent/R1-V (src/eval/prompts/geoqa_test_prompts.jsonl), images of Geo170K"
    )
    checked: ClassVar[str] = (
        "count, columns, prompt and rule: R1-V at bbbbe3d, 2026-11; licence: unchecked"
    )
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 754
    files: ClassVar[tuple[str, ...]] = ("geoqa_test_prompts.jsonl",)
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image_path", "question": "question", "answer": "ground_truth",
    }  # fmt: skip
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "r1_v@bbbbe3d",
            ask="{question} Output the thinking process in <think> </think> and final answer "
            "(number) in <answer> </answer> tags.",
            max_tokens=1024,
            scorer="math_verify",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("math", {})
