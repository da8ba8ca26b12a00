"""MMBench-GUI's first level: questions about a screenshot of one of six platforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class MmbenchGuiL1(Benchmark):
    """MMBench-GUI L1: an easy, a medium and a hard question about each of 1,194 screenshots.

    The harness prints the accuracy of each difficulty, and none of all; the paper weighs a question by
    its number of options. The number of screenshots is the paper's 3,582 questions by three, and was
    not seen in the data.

    Source: Wang et al. 2025, arXiv 2507.19478; MMBench-GUI benchmarks/l1_content_understanding.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/OpenGVLab/MMBench-GUI"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "OpenGVLab/MMBench-GUI"
    checked: ClassVar[str] = (
        "columns: MMBench-GUI's code; licence and files: hub card; count: arXiv 2507.19478, not the "
        "data; 2026-11"
    )
    count: ClassVar[int] = 1194
    files: ClassVar[tuple[str, ...]] = ("L1_annotations.json",)
    each: ClassVar[str] = "groups"
    columns: ClassVar[Mapping[str, str]] = {
        "image": "file",
        "question": "question",
        "options": "listed",
        "choice": "answer",
    }
    cluster: ClassVar[str] = "file_name"
    groups: ClassVar[tuple[str, ...]] = ("difficulty", "platform")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "mmbench_gui@896ddf1",
            system="You are a GUI agent. You are given a screenshot of an application, a question and "
            "corresponding options. You need to choose one option as your answer for the question. "
            "Finally, you are ONLY allowed to return the single letter of your choice.",
            ask="Question: {question}\nOptions:\n{options}\nPlease select the correct answer from "
            "the options above. \n",
            max_tokens=512,
            scorer="letter_mmbench_gui",
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the question into columns of its own, and add the image's file."""
        asked = row["groups"]
        listed = [text for _, text in sorted(asked["options"].items()) if text is not None]
        name = f"{row['platform']}/{row['image_path']}"
        file = f"MMBench-GUI-OfflineImages/offline_images/{name}"
        return {**row, **asked, "listed": listed, "file": file, "file_name": name}
