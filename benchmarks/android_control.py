"""AndroidControl: the next action of a task on a phone, from what has to be reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict

_ASKED = "Screenshot: <image>\n"
"""Ends what OS-Atlas says to every step."""


@dataclass(frozen=True)
class AndroidControl(Benchmark):
    """AndroidControl's 7,708 test steps as OS-Atlas asks them (eval/data/ac_test.jsonl), high-level.

    A row holds the whole prompt and the right action. OS-Atlas publishes three rows of the file and the
    names of all its steps (ac_idx.txt); what is in the folder `screenshots` and in the other rows is
    made from AndroidControl. Its number by kind of split needs a file that it does not publish.

    Source: Li et al. 2024, arXiv 2406.03679; Wu et al. 2024, OS-Atlas, arXiv 2410.23218.
    """

    origin: ClassVar[str] = (
        "https://github.com/google-research/google-research/tree/master/android_control"
    )
    licence: ClassVar[str] = "see AndroidControl's page; OS-Atlas's code: Apache-2.0"
    hub: ClassVar[str] = "https://github.com/OS-Copilot/OS-Atlas (eval/data), from AndroidControl"
    checked: ClassVar[str] = (
        "count: ac_idx.txt; columns: three published rows; licence not; 2026-11"
    )
    count: ClassVar[int] = 7708
    files: ClassVar[tuple[str, ...]] = ("ac_test.jsonl",)
    columns: ClassVar[Mapping[str, str]] = {
        "id": "id",
        "image": "file",
        "question": "task",
        "fields": "act",
        "points": "places",
        "answer": "typed",
    }
    box_space: ClassVar[str] = "norm1000"
    cluster: ClassVar[str] = "episode"
    groups: ClassVar[tuple[str, ...]] = ("kind",)
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "os_atlas@bad0840",
            ask="{asked}",
            max_tokens=512,
            scorer="step_os_atlas",
            interleaved=True,
            numbered=True,
            also=("type_match", "click_match"),
        ),
    )
    strict: ClassVar[Strict] = Strict("gui_action", {"type_weight": 0.0}, also=("type_match",))

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the prompt with its image's mark, the task alone, and the right action by its parts."""
        asked, reply = (turn["value"] for turn in row["conversations"])
        right = reply.split("actions:\n")[1]
        kind, _, rest = right.partition(" ")
        name = PurePosixPath(row["image"]).name
        clicks = kind in ("CLICK", "LONG_PRESS")
        more: dict[str, Any] = {"file": f"screenshots/{name}", "episode": name.split("_")[1]}
        more |= {"asked": asked.replace("<image>", "<image 1>"), "kind": kind, "right": right}
        more |= {"task": asked.partition(_ASKED)[2].strip() or asked.replace("<image>", "").strip()}
        more |= {"places": [[*map(int, re.findall(r"\d+", rest)[:2])]] if clicks else None}
        typed = rest.strip().removeprefix("[").removesuffix("]") or None
        more |= {"typed": None if clicks else typed}
        return {**row, **more, "act": {"action": kind}}
