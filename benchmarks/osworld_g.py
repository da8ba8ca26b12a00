"""OSWorld-G: click what an instruction means in screenshots of Ubuntu's programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.rows import numbers_of


@dataclass(frozen=True)
class OsworldG(Benchmark):
    """OSWorld-G's 510 instructions that can be done, as lmms-eval reads them.

    The paper has 54 more, which are to be refused. VLMEvalKit is not offered: its table is another,
    and it takes all clicks as thousandths.

    Source: Xie et al. 2025, Jedi, arXiv 2505.13227; lmms-eval tasks/osworld_g.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/MMInstruction/OSWorld-G"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "MMInstruction/OSWorld-G"
    checked: ClassVar[str] = (
        "columns: lmms-eval; count: two public readers of the data (510 rows); licence not; 2026-11"
    )
    count: ClassVar[int] = 510
    columns: ClassVar[Mapping[str, str]] = {
        "image": "image",
        "question": "instruction",
        "boxes": "corners",
        "masks": "outlines",
        "none": "absent",
        "width": "wide",
        "height": "high",
    }
    box_space: ClassVar[str] = "pixel"
    groups: ClassVar[tuple[str, ...]] = ("kind",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="Identify the UI target for the instruction and output exactly one click point as "
            "[x, y]. You may use either normalized coordinates in [0, 1] or absolute pixel "
            "coordinates. If the target does not exist, output [-1, -1].\nInstruction: {question}",
            max_tokens=128,
            scorer="click_osworld",
            task="osworld_g",
        ),
    )
    strict: ClassVar[Strict] = Strict("point", {"binary": True})

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the target as a box, an outline, or nothing, and the size."""
        kind, target = str(row["box_type"]).lower(), numbers_of(row, "box_coordinates")
        wide, high = numbers_of(row, "image_size")
        corners = outlines = None
        if kind == "bbox":
            x, y, width, height = target
            corners = [[x, y, x + width, y + height]]
        elif kind == "polygon" and len(target) == 4:
            (x1, x2), (y1, y2) = sorted(target[::2]), sorted(target[1::2])
            corners = [[x1, y1, x2, y2]]
        elif kind == "polygon":
            outlines = [[*map(list, zip(target[::2], target[1::2], strict=True))]]
        more: dict[str, Any] = {
            "corners": corners,
            "outlines": outlines,
            "absent": kind == "refusal",
        }
        more |= {"kind": kind, "target": json.dumps(target), "wide": int(wide), "high": int(high)}
        return {**row, **more}
