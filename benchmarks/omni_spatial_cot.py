"""OmniSpatial, asked for a chain of thought as its paper asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlmrl.benchmarking.base import Official
from vlmrl.benchmarks.omni_spatial import OmniSpatial

_RECEIVED = (
    "\nYou are a spatial-reasoning assistant.\n\nTask\n-----\nYou will receive\n"
    "1. **Image** - a single RGB frame depicting a scene.\n"
    "2. **Question** - a natural-language query about spatial relationships between objects in the "
    "image.\n3. **Options** - ≥2 answer candidates, each tagged by a capital letter (A, B, C, D…).\n\n"
    "Guidelines\n----------\nPlease follow these steps to analyze the image and answer the question:\n"
    "1. First, carefully observe the image and identify all relevant objects and their spatial "
    "relationships.\n2. Next, break down the question into key components that need to be addressed.\n"
    "3. Think through the spatial reasoning step-by-step to arrive at your answer. It may be necessary "
    "to transfer perspective to better understand the scene."
)
_FORMAT = (
    "\n4. Finally, select the most appropriate option (A, B, C, or D) based on your analysis.\n\n"
    "Always ground your answer in the visual evidence; do not hallucinate unseen objects.\nIf "
    "uncertain, pick the most plausible option—never refuse or reply “insufficient information.”\n\n\n"
    "End your answer with a separate line formatted exactly as:\n\nAnswer: X\nwhere X ∈ {A, B, C, D}."
    "\n\n\n{question}\n{options}"
)


@dataclass(frozen=True)
class OmniSpatialCot(OmniSpatial):
    """OmniSpatial's test set with the prompt of its paper (manual_cot), whose answer stands in a last line.

    In lmms-eval an answer without that line is A, and a small letter in it is wrong. In VLMEvalKit's
    prompt the third guideline ends with a comment of its source.

    Source: Jia et al. 2025, arXiv 2506.03135; lmms-eval tasks/omnispatial (task omnispatial_test, whose
    images lie beside another copy of the data), VLMEvalKit OmniSpatialBench_manual_cot.
    """

    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask=_RECEIVED + _FORMAT,
            max_tokens=8192,
            scorer="letter_omnispatial",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask=_RECEIVED + "   # noqa: E501" + _FORMAT,
            max_tokens=2048,
            scorer="letter_spatial_vlmeval",
            unit="percent",
        ),
    )
