"""Clicks and actions on screens: OSWorld-G, MMBench-GUI, UI-Vision, AndroidControl, GUI-Odyssey."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlmrl.answers import text
from vlmrl.benchmark_rules.places import XY, screen_point

# --------------------------------------------------------------------------------------------------
# Clicks: OSWorld-G, MMBench-GUI, UI-Vision.


def osworld_hit(answer: str, kind: str, target: Sequence[float], size: XY) -> bool | None:
    """Return whether a click hits as lmms-eval judges OSWorld-G; None: unread.

    Source: tasks/osworld_g/utils.py. `kind` is `bbox` (`target` is x, y, width and height in
    pixels), `polygon` (corners in turn, or two opposite ones) or `refusal` (both numbers have to be
    negative). A point of which both numbers are from 0 to 1 is a share of `size`, any other is in
    pixels.
    """
    point = screen_point(answer, (1.0, 1.0))
    if point is None:
        return None
    if 0 <= point[0] <= 1 and 0 <= point[1] <= 1:
        point = point[0] * size[0], point[1] * size[1]
    if kind == "bbox":
        left, top, width, height = target
        return left <= point[0] <= left + width and top <= point[1] <= top + height
    if kind == "polygon":
        return _in_polygon(point, target)
    return kind == "refusal" and point[0] < 0 and point[1] < 0


def _in_polygon(point: XY, outline: Sequence[float]) -> bool:
    x, y = point
    if len(outline) == 4:
        (x1, x2), (y1, y2) = sorted(outline[::2]), sorted(outline[1::2])
        return x1 <= x <= x2 and y1 <= y <= y2
    corners = [*zip(outline[::2], outline[1::2], strict=False)]
    if len(outline) % 2 or len(corners) < 3:
        return False
    inside = False
    for (ax, ay), (bx, by) in zip(corners, [corners[-1], *corners], strict=False):
        if (ay > y) != (by > y) and x < (bx - ax) * (y - ay) / (by - ay) + ax:
            inside = not inside
    return inside


def mmbench_gui_point(answer: str, size: XY) -> XY | None:
    """Read a click, 0 to 1, as MMBench-GUI's default parser does (utils/misc.py).

    The first two numbers with a comma, a semicolon or a blank between, brackets, `x` and `y` around them
    or not; both are divided by `size`, width and height in pixels, if one exceeds 1.

    Differs from strict: "step 1, 2 clicks" is a click.
    """
    match = _COORDINATES.search(answer)
    if match is None:
        return None
    x, y = float(match[1]), float(match[2])
    return (x / size[0], y / size[1]) if x > 1 or y > 1 else (x, y)


def ui_vision_point(answer: str) -> XY | None:
    """Read a click, 0 to 1, as UI-Vision does for Qwen2.5-VL (eval/grounding/models/qwen25vl.py).

    The centre of the first `bbox_2d` in a fenced JSON block; else of the last box between its special
    tokens; else all numbers if they are two, or four as corners. All over 1000.

    Bare JSON is not read: what the harness decodes ends with <|im_end|>, and the 2 of `bbox_2d` makes
    its numbers five.
    """
    corners = _fenced_box(answer)
    tokens = _TOKEN_BRACKETS.findall(answer) or _TOKEN_PAIRS.findall(answer)
    if corners is None and tokens:
        corners = [*map(float, tokens[-1])]
    if corners is not None:
        x1, y1, x2, y2 = (corner / 1000 for corner in corners)
        return (x1 + x2) / 2, (y1 + y2) / 2
    numbers = [float(numeral) for numeral in _NUMERAL.findall(answer)]
    if len(numbers) == 4:
        numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
    return (numbers[0] / 1000, numbers[1] / 1000) if len(numbers) == 2 else None


def _fenced_box(answer: str) -> list[float] | None:
    fenced = re.search(r"```json(.*?)```", answer, re.DOTALL)
    try:
        stated = json.loads(fenced[1].strip()) if fenced else None
        for item in stated if isinstance(stated, list) else [stated]:
            box = item.get("bbox_2d") if isinstance(item, Mapping) else None
            if isinstance(box, list) and len(box) == 4:
                return [number + 0.0 for number in box]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return None


_N = r"([-+]?(?:\d+\.\d+|\.\d+|\d+))"
_COORDINATES = re.compile(
    rf"(?:x\s*[:=]?\s*)?[(\[{{]?\s*{_N}\s*[,\s;]+(?:y\s*[:=]?\s*)?\s*{_N}\s*[)\]}}]?", re.IGNORECASE
)
_NUMERAL = re.compile(r"-?\d+\.?\d*")
_TOKEN_BRACKETS = re.compile(
    r"<\|box_start\|>\[\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\s*\]<\|box_end\|>"
)
_TOKEN_PAIRS = re.compile(
    r"<\|box_start\|>\(\s*(\d+),\s*(\d+)\s*\),\(\s*(\d+),\s*(\d+)\s*\)<\|box_end\|>"
)


# --------------------------------------------------------------------------------------------------
# Actions, one step of an episode: AndroidControl, GUI-Odyssey. `type` says whether the action is of the
# right type, `step` whether it also does the right thing.


Step = Mapping[str, bool]
_END = "<|im_end|>"
NEAR = 0.14
"""Farthest click from the true one that counts, in the unit square."""


def os_atlas_step(answer: str, right: str) -> Step | None:
    """Judge an action as OS-Atlas does for AndroidControl; None where the answer has none.

    `right` is the action: `CLICK <point>[[x, y]]</point>`, `TYPE [text]` and so on; that of the
    answer stands after "actions:" and a line end. A click or a long press may be 0.14 away from the true
    one; of typed texts and names of apps the first word has to be the same but for case; all else has
    to be equal to the letter. `click` says whether a click of the right type is near enough.

    Source: eval/eval_scripts/android_control/evaluation_unify.py, which strips the letters of <|im_end|>
    from both ends of an action, and stops at an action without a word.

    Differs from strict: the rest of a typed text may be anything.
    """
    _, mark, rest = answer.partition("actions:\n")
    action = rest.partition("actions:\n")[0].strip(_END) if mark else ""
    words, wanted = action.split(), right.split()
    if not words:
        return None
    if words[0] != wanted[0]:
        return {"type": False, "step": False}
    if wanted[0] in ("CLICK", "LONG_PRESS"):
        near = _distance(_first_two(action), _first_two(right)) <= NEAR * 1000
        return {"type": True, "step": near, **({"click": near} if wanted[0] == "CLICK" else {})}
    if wanted[0] in ("OPEN_APP", "TYPE"):
        second = words[1].lower() if len(words) > 1 else None
        return {"type": True, "step": action == right or second == wanted[1].lower()}
    return {"type": True, "step": action == right}


def _first_two(action: str) -> XY:
    numerals = re.findall(r"\d+", action)[:2]
    try:
        x, y = map(float, map(int, numerals))
        return x, y
    except (ValueError, OverflowError):  # fewer than two, or of thousands of digits
        return -100.0, -100.0


def _distance(a: XY, b: XY) -> float:
    return math.hypot(a[0] - b[0], a[1] - b[1])


def odyssey_step(answer: str, right: str, box: Sequence[float] | None) -> Step:
    """Judge an action as GUI-Odyssey does (src/eval_mm/GUIOdyssey_action_matching.py).

    `right` is the action: `CLICK: (x, y)`, `TYPE: text`, `SCROLL: UP` and so on. A click has
    to lie in `box`, or at most 0.14 from the true one; typed texts contain each other or have a
    similarity of at least 0.5; both are cut at the next colon. The point is read as a literal, never
    evaluated as there.

    Differs from strict: `TYPE` without a text is right, and so is any text that contains the true one;
    a click that cannot be read is of the right type.
    """
    action, *stated = (part.strip() for part in answer.split(":"))
    wanted, *truth = (part.strip() for part in right.split(":"))
    if action != wanted:
        # The info of a click is read before types are compared, and unread counts as the right type.
        clicks = action in ("CLICK", "LONG_PRESS") and bool(stated)
        return {"type": clicks and _literal(stated[0]) is _UNREAD, "step": False}
    info, meant = (parts[0] if parts else "" for parts in (stated, truth))
    if wanted in ("CLICK", "LONG_PRESS"):
        return {"type": True, "step": _odyssey_click(_literal(info), _literal(meant), box)}
    if wanted == "TYPE":
        return {"type": True, "step": _alike(meant, info)}
    return {"type": True, "step": wanted != "SCROLL" or info.lower() == meant.lower()}


_UNREAD = object()


def _literal(stated: str) -> Any:
    try:
        return ast.literal_eval(stated)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _UNREAD


def _odyssey_click(stated: Any, right: XY, box: Sequence[float] | None) -> bool:
    if isinstance(stated, str):  # a text is read once more
        stated = _literal(stated.strip())
    try:
        if box is not None:
            x1, y1, x2, y2 = box
            if x1 <= stated[0] <= x2 and y1 <= stated[1] <= y2:
                return True
        away = np.asarray(stated) / 1000 - np.asarray(right) / 1000
        return bool(np.linalg.norm(away) <= NEAR)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False


def _alike(right: str, stated: str) -> bool:
    if right in stated or stated in right:
        return True
    return 1 - text.edit_distance(right, stated) / max(len(right), len(stated)) >= 0.5
