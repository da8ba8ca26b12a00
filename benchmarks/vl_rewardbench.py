"""VL-RewardBench: the policy judges which of two answers to a question about an image is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_DOMAINS = {
    "mathverse": "reasoning",
    "mmmu": "reasoning",
    "hallucination": "hallucination",
    "rlhf": "hallucination",
    "rlaif": "hallucination",
}


@dataclass(frozen=True)
class VlRewardbench(Benchmark):
    """VL-RewardBench's 1,247 pairs of answers, 1,250 in its paper: the mean over its three domains.

    The pair is swapped where its two texts have an odd number of characters together. lmms-eval draws
    the judgement at temperature 1, asks another model about one without a verdict in its words, and
    draws a verdict if that one gives none. VLMEvalKit asks that model about all, so it is no protocol
    here. Strict: the number of one answer and no other, which our own prompt asks for.

    Source: Li et al. 2024, arXiv 2411.17451; lmms-eval tasks/vl_rewardbench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MMInstruction/VL-RewardBench"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "MMInstruction/VL-RewardBench"
    checked: ClassVar[str] = (
        "count: the latest copy of the hub card, and public loaders; columns and licence: hub card; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 1247
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "image",
        "question": "plain",
        "number": "better",
    }
    groups: ClassVar[tuple[str, ...]] = ("domain",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask=" You are a highly capable multimodal AI assistant tasked with evaluating answers to "
            "visual questions. Please analyze the following image and question, then determine which "
            "of the two provided answers is better.\n\nQuestion: {query}\n\nAnswer 1: {first}\n\n"
            "Answer 2: {second}\n\nPlease evaluate both answers based on the following criteria:\n"
            "1. Accuracy: How well does the answer align with the visual information in the image?\n"
            "2. Completeness: Does the answer fully address all aspects of the question?\n"
            "3. Clarity: Is the answer easy to understand and well-articulated?\n"
            "4. Relevance: Does the answer directly relate to the question and the image?\n\n"
            "After your evaluation, please:\n1. Explain your reasoning for each criterion.\n"
            "2. Provide an overall judgment on which answer is better (Answer 1 or Answer 2). For "
            "example: Overall Judgment: Answer X is better.\n\nYour response should be structured and "
            "detailed, demonstrating your understanding of both the visual and textual elements of "
            "the task.",
            max_tokens=1024,
            scorer="better_answer",
            aggregate="mean_of_groups",
            by="domain",
            judge="gpt-4o-mini",
        ),
    )
    strict: ClassVar[Strict] = Strict("count", {}, aggregate="mean_of_groups", by="domain")

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Put the two answers in the order in which they are asked about, and say which is better."""
        swapped = sum(len(text) for text in row["response"]) % 2
        first, second = reversed(row["response"]) if swapped else row["response"]
        domain = str(row["id"]).partition("-")[0].partition("_")[0].lower()
        return {
            **row,
            "first": first,
            "second": second,
            "better": list(row["human_ranking"]).index(swapped) + 1,
            "domain": _DOMAINS.get(domain, "general"),
            "plain": f"Question: {row['query']}\n\nAnswer 1: {first}\n\nAnswer 2: {second}\n\n"
            "Which of the two answers is better? Answer with its number.",
        }
