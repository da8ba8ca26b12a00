"""3DSRBench: space in three dimensions, each question with its options turned and its image mirrored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_ASK = (
    "Question: {question}\nOptions:\n{options}\nPlease select the correct answer from the options "
    "above. \n"
)
_ALSO = ("mean", "all_of_groups by mirrored_pair", "all_of_groups by turned")


@dataclass(frozen=True)
class Threedsrbench(Benchmark):
    """3DSRBench's circular set of 11,686 rows: a question counts if all its rows are right.

    The rows of a question are its orders of options, and the same of the mirrored image. Also reported:
    the mean over rows, the pairs of a row and its mirrored one, and the orders of one image.

    Source: Ma et al. 2024, arXiv 2412.07825; lmms-eval tasks/3dsrbench (task 3dsrbench_circular, which
    names the mean first), VLMEvalKit 3DSRBench.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/oscarqjh/3DSRBench_lmmseval"
    licence: ClassVar[str] = "CC-BY-4.0"
    hub: ClassVar[str] = "oscarqjh/3DSRBench_lmmseval (config 3dsr_circular)"
    checked: ClassVar[str] = (
        "count: a public loader of ccvl/3DSRBench's circular table, this copy's unchecked; columns: "
        "lmms-eval; licence: hub card of ccvl/3DSRBench; 2026-11"
    )
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 11686
    files: ClassVar[tuple[str, ...]] = ("3dsr_circular",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "qid",
        "image": "image",
        "question": "question",
        "options": "listed",
        "choice": "answer",
    }
    cluster: ClassVar[str] = "whole"
    groups: ClassVar[tuple[str, ...]] = ("kind", "category")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask=_ASK,
            max_tokens=4096,
            scorer="letter_dsr",
            aggregate="all_of_groups",
            by="whole",
            also=_ALSO,
        ),
        Official(
            "vlmevalkit@e8e78f0",
            ask=_ASK,
            max_tokens=2048,
            scorer="letter_vlmeval",
            aggregate="all_of_groups",
            by="whole",
            also=_ALSO,
            judge="chatgpt-0125",
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "choice", {}, aggregate="all_of_groups", by="whole", also=("mean",)
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """List the options that there are, and name what a row is part of by its id, `VIN6MS3J-flip-1`."""
        listed = [
            row[letter] for letter in "ABCD" if str(row.get(letter)).lower() not in ("none", "nan")
        ]
        name = str(row["qid"])
        kind = "multi_object" if str(row["category"]).startswith("multi_") else ""
        return {
            **row,
            "listed": listed,
            "whole": name[:8],
            "turned": name[:8] + "-flip" * ("-flip" in name),
            "mirrored_pair": name.replace("-flip", ""),
            "kind": kind or str(row["category"]).partition("_")[0],
        }
