"""OmniMedVQA: medical images of eight kinds, as Med-R1 splits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Omnimedvqa(Benchmark):
    """Med-R1's test questions by modality; the question holds the options.

    Source: Hu et al. 2024, arXiv 2402.09181; Med-R1, src/eval_vqa at 88d76c7.
    """

    origin: ClassVar[str] = "https://github.com/Yuxiang-Lai117/Med-R1"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = (
        "Yuxiang-Lai117/Med-R1 (Splits/modality/test), images of foreverbeliever/OmniMedVQA"
    )
    checked: ClassVar[str] = "count and columns: Med-R1 at 88d76c7, 2026-11; licence: unchecked"
    split: ClassVar[str] = "train"
    count: ClassVar[int] = 17662
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "problem",
        "choice": "letter",
    }
    files: ClassVar[tuple[str, ...]] = (
        "CT(Computed Tomography)_test.json",
        "Dermoscopy_test.json",
        "Fundus Photography_test.json",
        "MR (Mag-netic Resonance Imaging)_test.json",
        "Microscopy Images_test.json",
        "OCT (Optical Coherence Tomography_test.json",
        "X-Ray_test.json",
        "ultrasound_test.json",
    )
    cluster: ClassVar[str] = "file"
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "med_r1@88d76c7",
            ask="{question} Think through the question step by step in "
            "<think>...</think> tags. Then provide the correct single-letter "
            "choice (A, B, C, D,...) inside <answer>...</answer> tags.",
            max_tokens=256,
            scorer="letter_tagged",
            unit="percent",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take the right letter out of its tags."""
        return {**row, "letter": row["solution"].split()[1], "file": row["image"]}
