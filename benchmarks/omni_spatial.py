"""OmniSpatial: 50 kinds of reasoning about space, asked for the letter alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class OmniSpatial(Benchmark):
    """OmniSpatial's test set of 1,533 questions, one image each, without a chain of thought.

    lmms-eval's prompt speaks of a second image from six views, which its task does not show.

    Source: Jia et al. 2025, arXiv 2506.03135; lmms-eval tasks/omni_spatial, VLMEvalKit
    OmniSpatialBench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/nv-njb/OmniSpatial-Test"
    licence: ClassVar[str] = "CC-BY-NC-4.0"
    hub: ClassVar[str] = "nv-njb/OmniSpatial-Test"
    checked: ClassVar[str] = (
        "count and columns: lmms-eval, and README of qizekun/OmniSpatial; licence: that README; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1533
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "image": "image",
        "question": "question",
        "options": "options",
        "choice": "letter",
    }
    groups: ClassVar[tuple[str, ...]] = ("task_type", "sub_task_type")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="You are a spatial-reasoning assistant.\n\nTask\n-----\nYou will receive\n"
            "1. **Image** - a single RGB frame depicting a scene.\n"
            "2. **Multi-View Image** - a RGB frame depicting a scene from 6 novel views.\n"
            "3. **Question** - a natural-language query about spatial relationships between objects in "
            "the image.\n4. **Options** - >=2 answer candidates, each tagged by a capital letter (A, B, "
            "C, D...).\n\nBased on the image and question, provide your answer.\nAlways ground your "
            "answer in the visual evidence; do not hallucinate unseen objects.\nIf uncertain, pick the "
            'most plausible option---never refuse or reply "insufficient information."\n\nNote: You '
            "only need to respond with A, B, C, or D without providing any additional information.\n\n"
            "{question}\n{options}",
            max_tokens=16,
            scorer="letter_first_capital",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{question}\n{options}\nAnswer directly with the option letter from the given choices. ",
            max_tokens=2048,
            scorer="letter_spatial_vlmeval",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the letter of the right option, and a name: ids are counted anew in each task."""
        return {
            **row,
            "letter": "ABCDEFGHIJ"[int(row["answer"])],
            "name": f"{row['task_type']}_{row['id']}",
        }
