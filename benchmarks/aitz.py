"""AITZ: the next action of a task on a phone, from a screenshot and a list of what is on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np

from vlmrl.benchmark_rules.screens import Corners, coat_kind, reading_order
from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import COAT_SYSTEM
from vlmrl.benchmarking.rows import EARLIER, image_size
from vlmrl.errors import UserError

_NAMES = {3: "INPUT", 5: "PRESS BACK", 6: "PRESS HOME", 7: "PRESS ENTER", 10: "STOP", 11: "STOP"}
"""What an earlier action is called in the prompt, by its number in Android in the Wild."""
_GESTURE, _TAP = 4, np.float32(0.04)
_BUTTONS = ("enter", "back", "home")


@dataclass(frozen=True)
class Aitz(Benchmark):
    """AITZ's 4,724 test steps of 506 episodes, asked by the chain of actions, with the screen in words.

    The rule compares clicks with the corner (0, 0), a mistake that the paper's numbers do not show; the
    strict score is within 0.14 of the true click. The action thought of CoAT takes three calls a step,
    and is not offered.

    Source: Zhang et al. 2024, arXiv 2403.02713; CoAT coat/agent.py and coat/evaluate.py.
    """

    origin: ClassVar[str] = "https://github.com/IMNearth/CoAT"
    licence: ClassVar[str] = "Apache-2.0"
    hub: ClassVar[str] = "https://github.com/IMNearth/CoAT (its folder android-in-the-zoo)"
    checked: ClassVar[str] = "count and licence: CoAT's README; columns: its example; 2026-11"
    count: ClassVar[int] = 4724
    files: ClassVar[tuple[str, ...]] = ("test",)
    layout: ClassVar[Literal["episodes"]] = "episodes"
    columns: ClassVar[Mapping[str, str]] = {
        "image": "file",
        "question": "instruction",
        "fields": "act",
        "points": "places",
        "answer": "typed",
        "width": "wide",
        "height": "high",
    }
    box_space: ClassVar[str] = "norm1"
    cluster: ClassVar[str] = "episode_id"
    groups: ClassVar[tuple[str, ...]] = ("subset", "kind")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "coat@9ab1a9f",
            system=COAT_SYSTEM,
            ask="<CURRENT SCREENSHOT>: <image 1><SCREEN ELEMENTS>: {elements}\n<HISTORY ACTIONS>: "
            "{history}\n<USER REQUEST>: {question}\n<YOUR RESPONSE>: ",
            max_tokens=1024,
            scorer="step_coat",
            interleaved=True,
            numbered=True,
            also=("type_match", "all_of_groups by episode_id"),
        ),
    )
    strict: ClassVar[Strict] = Strict("gui_action", {"type_weight": 0.0}, also=("type_match",))

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the elements and the earlier actions in words, and the right action by its parts."""
        described = row["coat_action_desc"]
        kind, wide, high = coat_kind(described.split(" ")[0]), *image_size(row, _name(row))
        info = {
            "type": row["result_action_text"],
            "scroll": described.split(" ")[1].strip() if kind == "scroll" else "",
            "press": next((button for button in _BUTTONS if button in described), ""),
        }.get(kind or "", "")
        y, x = json.loads(row["result_touch_yx"])
        boxes = [_corners(*numbers) for numbers in json.loads(row["ui_positions"])]
        texts, types = json.loads(row["ui_text"]), json.loads(row["ui_types"])
        order = reading_order(boxes)
        listed = [f"  {_element(types[n], texts[n], boxes[n], wide, high)}" for n in order]
        history = ", ".join(map(_earlier, row[EARLIER])) or "None"
        subset = row["image_path"].split("/")[0]
        more: dict[str, Any] = {"file": f"test/{row['image_path']}", "wide": wide, "high": high}
        more |= {"elements": "\n".join(listed), "history": f"{history}.", "subset": subset}
        more |= {"kind": kind, "info": info, "target": json.dumps([boxes[n] for n in order])}
        more |= {"act": {"action": kind}, "typed": info or None}
        return {**row, **more, "places": [[x, y]] if kind == "click" else None}


def _name(row: Mapping[str, Any]) -> str:
    return PurePosixPath(row["image_path"]).name


def _corners(y: float, x: float, height: float, width: float) -> Corners:
    return x, y, x + width, y + height


def _element(kind: str, text: str, box: Corners, wide: int, high: int) -> str:
    shares = [int(number / side * 1000) for number, side in zip(box, (wide, high) * 2, strict=True)]
    return " ".join([kind.upper(), *([text] if text else []), json.dumps(shares)])


def _earlier(step: Mapping[str, Any]) -> str:
    """Return what the prompt calls an earlier action: a gesture of at most 0.04 is a click."""
    kind = step["result_action_type"]
    if kind != _GESTURE:
        if kind not in _NAMES:
            raise UserError(f"column 'result_action_type': expected 3 to 7, 10 or 11, got {kind!r}")
        return _NAMES[kind]
    ends = [np.array(json.loads(step[f"result_{end}_yx"]), np.float32) for end in ("touch", "lift")]
    return "CLICK" if np.linalg.norm(ends[0] - ends[1]) <= _TAP else "SCROLL"
