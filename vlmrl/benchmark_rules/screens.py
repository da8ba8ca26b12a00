"""Clicks and actions on screens: OSWorld-G, MMBench-GUI, UI-Vision, AndroidControl, GUI-Odyssey, AITZ."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import numpy as np
from rapidfuzz.distance import Indel

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
    from both ends of an action, and stops at an action that has no word.

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


# --------------------------------------------------------------------------------------------------
# Actions, one step of an episode: AITZ, as CoAT's own code judges them.


Corners = tuple[float, float, float, float]
_KINDS = ("click", "scroll", "type", "press", "stop")


@dataclass(frozen=True, slots=True)
class PhoneAction:
    """The right action: its kind, its text, direction or button, and the elements and size of the screen."""

    kind: str
    info: str
    elements: Sequence[Corners]
    size: tuple[int, int]


def coat_kind(action: str) -> str | None:
    """Return the kind of an action by its name, or by the first word of a sentence."""
    name = action.lower()
    return "type" if name == "input" else next((kind for kind in _KINDS if kind in name), None)


def coat_step(answer: str, right: PhoneAction) -> Step | None:
    """Judge an action as CoAT does for AITZ (coat/evaluate.py); None: it has none that can be read.

    The answer is an object with `ACTION` and `ARGS`, fenced or not, its last brace there or not. A text
    has to contain the other, or be alike by more than 0.8; a direction and a button have to be equal.

    The true place of a click is (0, 0) there, since only that of a scroll is read: a click is right if
    its box, a fifth larger, holds that corner, or overlaps an element that does by more than half.

    Differs from strict: so hardly any click is right, and an empty text is.
    """
    stated = _coat_action(answer)
    if stated is None:
        return None
    (name, kind), arguments = stated
    try:
        box = arguments.get("bbox")
        corners = None if box is None else _on_screen(box, right.size)
        button = name.split("_")[1].lower() if kind == "press" else ""
    except (ArithmeticError, LookupError, TypeError, ValueError):  # the harness stops here
        return None
    if kind != right.kind:
        return {"type": False, "step": False}
    if kind == "click":
        return {"type": True, "step": corners is not None and _at_corner(corners, right.elements)}
    if kind == "scroll":
        return {"type": True, "step": arguments.get("direction") == right.info}
    if kind == "type":
        typed = arguments.get("text", "")
        if not isinstance(typed, str):  # the harness stops here, too
            return None
        alike = typed in right.info or right.info in typed
        return {"type": True, "step": alike or Indel.normalized_similarity(typed, right.info) > 0.8}
    return {"type": True, "step": kind == "stop" or button == right.info}


def _coat_action(answer: str) -> tuple[tuple[str, str], Mapping[str, Any]] | None:
    for reply in (answer, answer + "}"):
        for mark in ("```json", "```JSON"):
            reply = reply.removeprefix(mark)
        reply = reply.removesuffix("```")
        for mark in ("```json", "```JSON"):
            reply = reply.split(mark)[1] if mark in reply else reply
        try:
            stated = json.loads(reply.split("```")[0])
        except (ValueError, RecursionError):
            continue
        if not isinstance(stated, dict) or "ARGS" not in stated:
            return None
        name = stated.get("ACTION")
        kind = coat_kind(name) if isinstance(name, str) else None
        return ((str(name), kind), _object(stated["ARGS"])) if kind else None
    return None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _on_screen(box: Any, size: tuple[int, int]) -> Corners:
    """Return a box in thousandths in whole pixels."""
    x1, y1, x2, y2 = (
        round(number / 1000 * side) for number, side in zip(box[:4], (*size, *size), strict=True)
    )
    return x1, y1, x2, y2


def _larger(box: Corners) -> Corners:
    """Return a box a fifth larger around its centre."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    width, height = (box[2] - box[0]) * 1.2, (box[3] - box[1]) * 1.2
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _at_corner(box: Corners, elements: Sequence[Corners]) -> bool:
    stated, *others = map(_larger, (box, *elements))
    if _holds_corner(stated):
        return True
    return any(_overlap(stated, other) > 0.5 for other in others if _holds_corner(other))


def _holds_corner(box: Corners) -> bool:
    return box[0] <= 0 <= box[2] and box[1] <= 0 <= box[3]


def _overlap(a: Corners, b: Corners) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(0, wide) * max(0, high)
    areas = [max((box[2] - box[0]) * (box[3] - box[1]), 1) for box in (a, b)]
    return both / (areas[0] + areas[1] - both)


def reading_order(boxes: Sequence[Corners]) -> list[int]:
    """Return the numbers of elements line by line, as CoAT lists them (coat/screen_utils.py)."""

    def compare(a: int, b: int) -> int:
        (left, top, _, bottom), (other, above, _, below) = boxes[a], boxes[b]
        if top > above and top > (above + below) / 2:
            return 1
        if top < above and above > (top + bottom) / 2:
            return -1
        return (left > other) - (left < other)

    lines: list[list[int]] = []
    for number in sorted(range(len(boxes)), key=cmp_to_key(compare)):
        _, top, _, bottom = boxes[number]
        if lines:
            middles = [(boxes[each][1] + boxes[each][3]) * 0.5 for each in lines[-1]]
            last = boxes[lines[-1][-1]]
            beside = top < sum(middles) / len(middles) < bottom
            if beside and last[1] < (top + bottom) * 0.5 < last[3]:
                lines[-1].append(number)
                continue
        lines.append([number])
    return [number for line in lines for number in sorted(line, key=lambda each: boxes[each][0])]
