"""COCO captions of 2017: one sentence about an everyday photo, compared with five that people wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

ASK = "Provide a one-sentence caption for the provided image."


@dataclass(frozen=True)
class Coco2017Cap(Benchmark):
    """COCO's 2017 validation images; the number is CIDEr over all of them, `mean` is ROUGE-L.

    CIDEr needs the extra `captions`. lmms-eval has the words of Stanford's tokenizer, which needs Java;
    ours are the same but in formulas, addresses and the like (`caption_words`). VLMEvalKit parts words
    by blanks alone, so that capitals and full stops count; the images of its own table were not compared.
    Our number is ROUGE-2 with the nearest reference, since CIDEr says nothing of one image alone.

    Source: Chen et al. 2015, arXiv 1504.00325; Vedantam et al. 2014, CIDEr, arXiv 1411.5726; lmms-eval
    tasks/coco_cap, VLMEvalKit ImageCaptionDataset.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-lab-encoder/COCO-Caption2017"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-lab-encoder/COCO-Caption2017"
    checked: ClassVar[str] = (
        "count and columns: the hub card of lmms-lab/COCO-Caption2017, 2026-11; licence: unchecked"
    )
    split: ClassVar[str] = "val"
    count: ClassVar[int] = 5000
    columns: ClassVar[Mapping[str, str]] = {
        "id": "question_id",
        "image": "image",
        "question": "ask",
        "answer": "answer",
    }
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}",
            max_tokens=64,
            scorer="caption_lmms",
            aggregate="cider",
            also=("mean",),
            task="coco2017_cap_val",
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask="Please describe this image in general. Directly provide the description, do not "
            'include prefix like "This image depicts". ',
            max_tokens=2048,
            scorer="caption_vlmeval",
            aggregate="cider",
            unit="percent",
            also=("mean",),
        ),
    )
    strict: ClassVar[Strict] = Strict("text", {"measure": "rouge2"})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the question, which is the same for all images."""
        return {**row, "ask": ASK}
