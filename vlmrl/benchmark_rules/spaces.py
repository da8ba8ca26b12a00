"""Letters and points of tasks about space: MMSI-Bench, MindCube, 3DSRBench, OmniSpatial, RoboSpatial."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from vlmrl.benchmark_rules.letters import Said
from vlmrl.benchmark_rules.places import XY

# --------------------------------------------------------------------------------------------------
# Letters as lmms-eval's tasks find them; None where they find none.


def mmsi_letter(answer: str) -> str | None:
    """Find a letter of A to F as lmms-eval does for MMSI-Bench (tasks/mmsi_bench/utils.py).

    The first that is a word and is not followed by another word: in double backquotes if there are
    any, in single ones, in braces, else anywhere, in either case.

    Differs from strict: the article of "a (red) dog" says A, and of "A or B." only B is read.
    """
    for pattern in _QUOTED:
        if match := pattern.search(answer):
            answer = match[1]
    match = re.search(r"\b[A-F]\b(?!\s[a-zA-Z])", answer, re.IGNORECASE)
    return match[0].upper() if match else None


def mindcube_letter(answer: str) -> str | None:
    """Find a letter of A to E as lmms-eval does for MindCube (tasks/mindcube/utils.py).

    The last before a full stop, be it that of a word; else the last that is announced in a tag
    `<Answer>`, at the start of a line, in quotes or stars, or after "Answer" or "answer is"; else the
    first word of this kind in the last line with one.

    Differs from strict: "VITAMIN C. Then B" says C.
    """
    answer = answer.strip()
    if letters := re.findall(r"([A-E])\.", answer):
        return str(letters[-1])
    tagged = re.search(r"<Answer>(.*?)(?:<|$)", answer, re.DOTALL)
    for pattern in _MINDCUBE_TAGGED if tagged else ():
        if tagged and (letters := pattern.findall(tagged[1])):
            return str(letters[-1])
    for pattern in _MINDCUBE:
        if letters := pattern.findall(answer):
            return str(letters[-1])
    words = (re.search(r"\b([A-E])\b", line) for line in reversed(answer.split("\n")))
    return next((match[1] for match in words if match), None)


def dsr_letter(answer: str) -> str | None:
    """Find a letter of A to D as lmms-eval does for 3DSRBench (tasks/3dsrbench/utils.py).

    At the start, after "answer", in brackets, before a full stop, or as a word; the first of each.

    Differs from strict: "answer Because it is near: C" says B, and so does "A B" say A.
    """
    reply = answer.strip()
    matches = (pattern.search(reply) for pattern in _DSR)
    return next((match[1] for match in matches if match), None)


def last_answer_letter(answer: str) -> str | None:
    """Return the last letter of A to D after `Answer:` as it is written: lmms-eval on OmniSpatial.

    Source: tasks/omnispatial/utils.py (eval_type re), which says A for none. The words are read in
    either case but the letter is compared as it stands, so that `answer: b` is wrong.
    """
    letters = re.findall(r"Answer\s*:\s*([A-D])\b", answer, re.IGNORECASE)
    return str(letters[-1]) if letters else None


def first_capital(answer: str) -> str:
    """Return the first character in upper case: lmms-eval on OmniSpatial asked for a letter alone.

    Source: tasks/omni_spatial/utils.py. Differs from strict: "Based on it, C" says B.
    """
    return after_thought(answer).upper()[:1]


def after_thought(answer: str) -> str:
    """Return what stands behind the end of a thought, or in the first answer tag of that, stripped.

    Source: lmms-eval tasks/omni_spatial/utils.py and tasks/robo_spatial/utils.py.
    """
    for end in ("</think>", "</thought>"):
        answer = answer.partition(end)[2] if end in answer else answer
    match = re.search(r"<answer>(.*?)</answer>", answer, re.DOTALL | re.IGNORECASE)
    return (match[1] if match else answer).strip()


_QUOTED = tuple(map(re.compile, (r"``([^`]*)``", r"`([^`]*)`", r"\{([^}]*)\}")))
_MINDCUBE_TAGGED = tuple(
    map(re.compile, (r"[Mm]y answer is ([A-E])", r"[Tt]he answer is ([A-E])", r"\b([A-E])\b"))
)
_MINDCUBE = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:^|\n)(?:Answer: )?([A-E])(?:$|\s)",
        r"[*\"]([A-E])[*\"]",
        r"\bAnswer:?\s*([A-E])\b",
        r"[Mm]y answer is ([A-E])",
        r"answer is ([A-E])",
    )
)
_DSR = tuple(
    re.compile(pattern)
    for pattern in (
        r"^([A-D])[.\s)]",
        r"^([A-D])$",
        r"[Aa]nswer[:\s]+([A-D])",
        r"[Tt]he answer is[:\s]+([A-D])",
        r"[Mm]y answer is[:\s]+([A-D])",
        r"\(([A-D])\)",
        r"([A-D])\.",
        r"\b([A-D])\b",
    )
)

# --------------------------------------------------------------------------------------------------
# The letter that VLMEvalKit finds for its benchmarks of space without a judge.

TAIL_LINES, TAIL_CHARS = 6, 800
_OPEN, _CLOSE = r"[(\[{（【]?\s*", r"[)\]}）】]?"
_FREE = r"(?<![A-Za-z])"


def spatial_letter(answer: str) -> str | None:
    """Find a letter of A to F as can_match_option of VLMEvalKit does (utils/spatial_bench/matching_func.py).

    The first in an answer tag (there A to J, in either case); before the end of such a tag or of a
    thought; in the last lines behind the thought, then of the whole, the last line that is a letter,
    begins with one as a label, or names only one; the first after "answer" or its like; else the only
    capital that stands alone.

    Differs from strict: "<answer>Above</answer>" says A, and the article of "A dog" is a letter.
    """
    text = re.sub("[\u200b\u200c\u200d\ufeff]", "", answer.strip())
    if tagged := _BLOCK.search(text):
        return tagged[1].upper()
    tail = text[-TAIL_CHARS:]
    for pattern in _ENDS:
        if match := pattern.search(tail):
            return match[1].upper()
    for part in (_behind_thought(text), tail):
        if letter := _letter_of_lines(part.splitlines()[-TAIL_LINES:]):
            return letter
    if match := _STATED_LETTER.search(text):
        return match[1].upper()
    rest = "\n".join(line for line in text.splitlines() if not _OPTION_LINE.search(line))
    letters = set(_ALONE.findall(rest))
    return letters.pop() if len(letters) == 1 else None


def _behind_thought(text: str) -> str:
    for pattern in (_THOUGHT_END, _THOUGHT_START):
        if ends := [match.end() for match in pattern.finditer(text)]:
            return text[ends[-1] :].strip()
    return text


def _letter_of_lines(lines: Sequence[str]) -> str | None:
    for line in reversed([line.strip() for line in lines if line.strip()]):
        if _OPTION_LINE.search(line):
            continue
        if match := _ONLY.fullmatch(line) or _LABEL.match(line):
            return match[1].upper()
        if len(letters := set(_INLINE.findall(line))) == 1:
            return str(letters.pop())
    return None


_BLOCK = re.compile(
    r"<\s*answer\b[^>]*>\s*([A-Ja-j]).*?<\s*/\s*answer\s*>", re.IGNORECASE | re.DOTALL
)
_ENDS = tuple(
    re.compile(rf"{_FREE}{_OPEN}([A-F])\s*{_CLOSE}\s*</\s*{tag}\s*>", re.IGNORECASE)
    for tag in ("answer", "think")
)
_THOUGHT_END = re.compile(r"</\s*think\s*>", re.IGNORECASE)
_THOUGHT_START = re.compile(r"<\s*think\s*>", re.IGNORECASE)
_OPTION_LINE = re.compile(r"^[*_>\-\s]*(?:option|选项)\s+[A-J]\s*[:：]", re.IGNORECASE)
_ONLY = re.compile(r"[*_`>（）\[\]【】()]*\s*([A-Fa-f])\s*[*_`（）\[\]【】()]*")
_LABEL = re.compile(r"([A-F])\s*[.．:：)\]】、-]\s+", re.IGNORECASE)
_INLINE = re.compile(
    rf"{_FREE}[*_`（\[{{(]*\s*([A-F])\s*[*_`）\]}})]*(?=$|[\s.,:;!?)\]】》」』，。；、：）])"
)
_STATED_LETTER = re.compile(
    r"(?:final\s*answer|the\s*answer\s*is|answer(?:\s*is)?|correct\s*answer|答案|最终答案|结论|所以|"
    rf"因此|我选(?:择)?|选择|选)\s*[:：>＝=]?\s*{_OPEN}([A-F])\s*{_CLOSE}(?:\b|[.)、。])",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"{_FREE}{_OPEN}([A-F])\s*{_CLOSE}(?![A-Za-z])")

# --------------------------------------------------------------------------------------------------
# RoboSpatial-Home: yes or no, and points that have to lie in a polygon or a mask.


def yes_no_last_line(answer: str) -> Said | None:
    """Read the last line as lmms-eval does (tasks/robo_spatial/utils.py): one of the words is in it.

    Differs from strict: parts of words count, so that "I know: yes" says neither.
    """
    line = answer.strip().lower().split("\n")[-1]
    if ("yes" in line) == ("no" in line):
        return None
    return "yes" if "yes" in line else "no"


def yes_no_start(answer: str) -> Said | None:
    """Read the start as RoboSpatial-Eval (evaluation.py) and VLMEvalKit do.

    Differs from strict: "Not so" says no.
    """
    reply = answer.strip().lower()
    return "yes" if reply.startswith("yes") else "no" if reply.startswith("no") else None


def thousandth_points(answer: str, width: int, height: int) -> list[tuple[int, int]]:
    """Read the points `point_2d` of 0 to 1000 as pixels: lmms-eval (tasks/robo_spatial/utils.py).

    They stand in a JSON list in the first fenced block; without a fence there are none. What ends the
    harness's run, such as a point that is no number, are no points here.
    """
    fenced = re.search(r"```(?:\w+)?\n(.*?)```", answer, re.DOTALL)
    try:
        items = json.loads(fenced[1].strip()) if fenced else []
        pairs = [item["point_2d"] for item in items if "point_2d" in item]
        return [
            (int(x / 1000 * width), int(y / 1000 * height))
            for x, y in (pair for pair in pairs if isinstance(pair, list) and len(pair) == 2)
        ]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return []


def first_unit_point(answer: str) -> XY | None:
    """Read the first point of 0 to 1 as RoboSpatial-Eval does (evaluation.py).

    The first `(x, y)` without signs, else the first `[x, y]`, else the first of the first list that is
    one to Python.
    """
    for pattern in _PAIRS:
        if match := pattern.search(answer):
            return float(match[1]), float(match[2])
    listed = re.search(r"\[(.*?)\]", answer, re.DOTALL)
    if listed is None:
        return None
    content = re.sub(r",(\S)", r", \1", listed[1]).strip().removesuffix(",")
    items = _literal(f"[{content}]")
    if not isinstance(items, list) or not items:
        return None
    if len(items) == 2 and all(isinstance(item, int | float) for item in items):
        return _pair(items)
    return _pair(items[0]) if isinstance(items[0], tuple | list) else None


def first_scaled_point(answer: str, width: int, height: int) -> XY | None:
    """Read the first point, as 0 to 1, as Point2DParser of VLMEvalKit does (spatial_bench/tools/utils.py).

    `point_2d` or `point` of the answer as JSON or a Python literal, up to 1.5 as 0 to 1, up to 1000 as
    0 to 1000, else in pixels; else the first `(x, y)`, or the corner of `(x0, y0, x1, y1)`, up to 1.5
    as 0 to 1, else in pixels.
    """
    plain = _without_fence(answer)
    try:
        value = json.loads(plain)
    except (ValueError, RecursionError):
        value = _literal(plain)
    items = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    for item in items:
        pair = (item.get("point_2d") or item.get("point")) if isinstance(item, dict) else None
        if point := _pair(pair):
            largest = max(abs(point[0]), abs(point[1]))
            across, down = (1.0, 1.0) if largest <= 1.5 else (1000.0, 1000.0)
            if not largest <= 1000:
                across, down = float(width), float(height)
            return point[0] / across, point[1] / down
    try:
        return next(iter([*_text_points(answer, width, height)]), None)
    except OverflowError:  # a number of hundreds of digits, unread there too
        return None


def _text_points(answer: str, width: int, height: int) -> Iterator[XY]:
    for match in _TUPLES.findall(answer):
        numbers = [float(number) for number in match.split(",")]
        in_pixels = max(map(abs, numbers)) > 1.5
        if len(numbers) == 2:
            x, y = numbers
            yield (x / width, y / height) if in_pixels else (x, y)
        if len(numbers) == 4:
            across, down = (1, 1) if in_pixels else (width, height)
            x0, x1 = (round(n) for n in sorted(n * across for n in numbers[::2]))
            y0, y1 = (round(n) for n in sorted(n * down for n in numbers[1::2]))
            if x1 > x0 and y1 > y0:
                yield x0 / width, y0 / height


def in_polygon(point: XY, polygon: Sequence[XY]) -> bool:
    """Return whether a point is inside by counting crossings, as RoboSpatial-Eval does (evaluation.py)."""
    x, y = point
    inside = False
    for (ax, ay), (bx, by) in zip(polygon, [polygon[-1], *polygon[:-1]], strict=True):
        if (ay > y) != (by > y) and x < (bx - ax) * (y - ay) / (by - ay) + ax:
            inside = not inside
    return inside


def in_polygon_vlmeval(point: XY, polygon: Sequence[XY]) -> bool:
    """Return whether a point is inside by VLMEvalKit's count of crossings (dataset/robospatialbench.py).

    An upright edge counts wherever the point is beside it, so that a point in a box is outside.
    """
    x, y = point
    inside = False
    for (ax, ay), (bx, by) in itertools.pairwise([*polygon, polygon[0]]):
        if min(ay, by) < y <= max(ay, by):
            crossing = (y - ay) * (bx - ax) / (by - ay) + ax
            if ax == bx or x <= crossing:
                inside = not inside
    return inside


def _pair(value: Any) -> XY | None:
    """Return two numbers of a tuple or list, or of texts of them."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    try:
        return float(value[0]), float(value[1])
    except (TypeError, ValueError, OverflowError):
        return None


def _literal(text: str) -> Any:
    """Return what a text is to Python, None if it is no literal; nothing is evaluated."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _without_fence(answer: str) -> str:
    text = answer.strip()
    if not text.startswith("```"):
        return text
    first, line, rest = text.partition("\n")
    inner = (rest if line else first.lstrip("`")).strip()
    return inner.removesuffix("```").strip()


_NUMERAL = r"\s*(\d+\.?\d*)\s*"
_PAIRS = (
    re.compile(rf"\({_NUMERAL},{_NUMERAL}\)"),
    re.compile(rf"\[{_NUMERAL},{_NUMERAL}\]"),
)
_TUPLES = re.compile(r"\(([-+]?\d+\.?\d*(?:,\s*[-+]?\d+\.?\d*)*?)\)")
