"""GUI-Odyssey: the next action of a task across several programs of a phone."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import texts_of


@dataclass(frozen=True)
class GuiOdyssey(Benchmark):
    """GUI-Odyssey's random split, 25,807 test steps in the layout that its format_converter.py writes.

    The official score is the action matching score, the mean over six categories; whole episodes are
    its success rate. The prompt is that without images of earlier steps (`--image-history no`), which
    only the paper's own model takes.

    Source: Lu et al. 2024, arXiv 2406.08451; GUI-Odyssey src/eval_mm.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/hflqf88888/GUIOdyssey"
    licence: ClassVar[str] = "CC-BY-4.0"
    hub: ClassVar[str] = "hflqf88888/GUIOdyssey"
    checked: ClassVar[str] = (
        "columns: GUI-Odyssey's converter; count: a public reader of the annotations; licence: hub card "
        "of the first version; 2026-11"
    )
    count: ClassVar[int] = 25807
    files: ClassVar[tuple[str, ...]] = ("test_anno/high_random_split.json",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "file",
        "question": "question",
        "fields": "act",
        "points": "places",
        "boxes": "corners",
        "answer": "typed",
    }
    box_space: ClassVar[str] = "norm1000"
    cluster: ClassVar[str] = "episode"
    groups: ClassVar[tuple[str, ...]] = ("category", "kind")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "gui_odyssey@fefcbe9",
            system="You are a helpful assistant.",
            ask="Picture 1: <image 1>\nI'm looking for guidance on how to {question}{history}\n"
            "Provide the command-style action directly.",
            max_tokens=30,
            scorer="step_odyssey",
            aggregate="mean_of_groups",
            by="category",
            interleaved=True,
            numbered=True,
            unit="percent",
            also=("type_match", "mean_of_groups_of_wholes by whole"),
        ),
    )
    strict: ClassVar[Strict] = Strict(
        "gui_action",
        {"type_weight": 0.0},
        aggregate="mean_of_groups",
        by="category",
        also=("type_match",),
    )

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the last four actions, the image's file, and the right action by its parts."""
        right, box = row["answer"], row["sam2_bbox"]
        kind, _, info = (part.strip() for part in right.partition(":"))
        earlier = enumerate(texts_of(row, "history_action")[-4:], 1)
        listed = "".join(f"{number}. {action}\n" for number, action in earlier)
        name = PurePosixPath(row["image"]).name
        episode = name.rpartition("_")[0]
        clicks = kind in ("CLICK", "LONG_PRESS")
        more: dict[str, Any] = {"history": f"\nPrevious Actions: {listed}" if listed else ""}
        more |= {"file": f"screenshots/{name}", "episode": episode, "right": right, "kind": kind}
        more |= {"whole": f"{row['category']}/{episode}", "target": json.dumps(box)}
        more |= {"places": [[*ast.literal_eval(info)]] if clicks else None}
        more |= {"corners": [box] if clicks and _has_area(box) else None}
        return {**row, **more, "act": {"action": kind}, "typed": None if clicks else info or None}


def _has_area(box: Sequence[float] | None) -> bool:
    return box is not None and len(box) == 4 and box[0] < box[2] and box[1] < box[3]
