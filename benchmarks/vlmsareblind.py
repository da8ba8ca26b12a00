"""VLMsAreBlind: drawings of circles, lines, squares and grids that people read at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict


@dataclass(frozen=True)
class Vlmsareblind(Benchmark):
    """VLMsAreBlind's drawings of nine tasks; the two kinds of grids are one task in the mean over tasks.

    lmms-eval takes the first letter of an answer for the circled one, so that only an answer that
    begins with it is right. The data were uploaded in several versions: this is the one of 8,016 rows.

    Source: Rahmanzadehgervi et al. 2024, arXiv 2407.06581; lmms-eval tasks/vlmsareblind.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/XAI/vlmsareblind"
    licence: ClassVar[str] = "MIT"
    hub: ClassVar[str] = "XAI/vlmsareblind"
    checked: ClassVar[str] = (
        "files and licence: hub file list; count: others' counts of the file; columns: lmms-eval, "
        "2026-11"
    )
    split: ClassVar[str] = "valid"
    count: ClassVar[int] = 8016
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "prompt",
        "answer": "accepted",
    }
    groups: ClassVar[tuple[str, ...]] = ("task",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{question}\nAnswer only in the required format.",
            max_tokens=32,
            scorer="blind",
            also=("mean_of_groups by kind",),
            task="vlmsareblind",
        ),
    )
    strict: ClassVar[Strict] = Strict("exact", {}, also=("mean_of_groups by kind",))

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the kind of task, and the forms in which a grid's rows and columns may be stated."""
        task, right = str(row["task"]).lower(), str(row["groundtruth"]).strip()
        is_grid = task.startswith("counting grid")
        return {
            **row,
            "kind": "counting grid" if is_grid else task,
            "accepted": _grid_forms(right) if is_grid else [right],
        }


def _grid_forms(right: str) -> list[str]:
    """Return the forms of a grid's `rows,columns` that name both in this order."""
    rows, _, columns = (part.strip() for part in right.partition(","))
    forms = ("{},{}", "{}, {}", "{{{}}}{{{}}}", "{{{}}} {{{}}}", "rows={{{}}} columns={{{}}}")
    return [form.format(rows, columns) for form in forms]
