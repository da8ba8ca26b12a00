"""MindCube: what a scene is like from a place that no image shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_SETTINGS = {"aroundnew": "around", "around": "around", "among": "among", "rotation": "rotation"}


@dataclass(frozen=True)
class Mindcube(Benchmark):
    """MindCube's tiny set of 1,050 questions; the prompt says by `<image>` where images stand.

    The published prompt, which lists the options, asks for `<answer>A. Above</answer>`; both harnesses
    also read answers without the tag.

    Source: Yin et al. 2025, arXiv 2506.21458; lmms-eval tasks/mindcube, VLMEvalKit
    MindCubeBench_tiny_raw_qa.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/oscarqjh/MindCube_lmmseval"
    licence: ClassVar[str] = "see the data set's page; MIT: the code at mll-lab-nu/MindCube"
    hub: ClassVar[str] = "oscarqjh/MindCube_lmmseval (config tiny)"
    checked: ClassVar[str] = (
        "counts: two public loaders of this copy; columns: lmms-eval; licence: unchecked; 2026-11"
    )
    split: ClassVar[str] = "combined"
    count: ClassVar[int] = 1050
    splits: ClassVar[Mapping[str, int]] = {"rotation": 200, "among": 600, "around": 250}
    files: ClassVar[tuple[str, ...]] = ("tiny",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "images",
        "question": "plain",
        "choice": "gt_answer",
    }
    groups: ClassVar[tuple[str, ...]] = ("setting",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{marked}",
            max_tokens=4096,
            scorer="letter_mindcube",
            mark="<image>",
            template="answer_only",
            whole=True,
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="{marked}",
            max_tokens=2048,
            scorer="letter_spatial_vlmeval",
            unit="percent",
            mark="<image>",
            template="answer_only",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Strip the prompt between its marks, as both harnesses do, and name the setting by the id."""
        marked = "<image>".join(text.strip() for text in str(row["input_prompt"]).split("<image>"))
        plain = str(row["question"]).replace("<image>", "").strip()
        setting = _SETTINGS.get(str(row["id"]).partition("_")[0], "other")
        return {**row, "marked": marked, "plain": plain, "setting": setting}
