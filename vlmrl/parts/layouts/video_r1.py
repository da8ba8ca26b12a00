"""Video-R1's rows, and OneThinker's: questions about images and videos, each with a solution in tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.answers import parsing
from vlmrl.data import multiple_choice
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.row_forms import read_reply

CHOICE = "multiple choice"
NUMBERS = ("numerical", "regression")
TEXTS = ("OCR", "free-form", "open-ended", "math")
PLACES = {"temporal grounding": ("time", "spans"), "spatial grounding": ("boxes", "boxes")}
"""OneThinker's kinds with one span or one box -> its key in the solution, and ours."""


@dataclass(frozen=True)
class VideoR1(Layout):
    """Rows with `problem`, `problem_type`, `options`, `solution`, and the `path` of one medium.

    A row: {"problem_id": 1, "problem": "What is it?", "data_type": "video", "problem_type": "multiple
    choice", "options": ["A. a cat", "B. a dog"], "solution": "<answer>B</answer>", "path":
    "./CLEVRER/train/a.mp4", "data_source": "CLEVRER"}. The kinds are `multiple choice`, whose options
    follow the question as published, `numerical`, `regression`, `OCR` and `free-form`; OneThinker's
    also `open-ended`, `math`, `temporal grounding` ({"time": [1, 2]}, seconds) and `spatial grounding`
    ({"boxes": [1, 2, 3, 4]}, thousandths). A condition (`where: "problem_type == 'OCR'"`) gives each
    its verifier.

    Source: Video-R1, src/r1-v/src/open_r1/grpo.py; OneThinker, EasyR1/verl/utils/dataset.py.
    """

    title: ClassVar[str] = "Video-R1"
    origin: ClassVar[str] = "Video-R1, Feng et al. 2025, arXiv 2503.21776"
    narrows: ClassVar[tuple[str, ...]] = ("trl",)
    verifiers: ClassVar[tuple[str, ...]] = ("choice", "number", "regression", "ocr", "text")
    fields: ClassVar[Mapping[str, str]] = {
        "id": "problem_id",
        "question": "problem and options",
        "image": "path, where data_type is image",
        "video": "path, where data_type is video",
        "choice": "solution",
        "options": "options",
        "number": "solution",
        "answer": "solution",
        "spans": "solution, where problem_type is temporal grounding",
        "boxes": "solution, where problem_type is spatial grounding",
        "meta": "problem_type, data_source",
    }

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a place holds Video-R1's rows."""
        fits = place.has_keys("problem", "problem_type", "data_type", "path", "solution")
        return "rows have `problem_type`, `data_type` and `path`" if fits else None

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        problem, kind, medium = (row.get(key) for key in ("problem", "problem_type", "data_type"))
        if not isinstance(problem, str):
            raise UserError(f"key 'problem': expected a text, got {problem!r:.60}")
        if medium not in ("image", "video"):
            raise UserError(f"key 'data_type': expected image or video, got {medium!r:.60}")
        if kind == CHOICE and isinstance(row.get("options"), list):
            problem = f"{problem}Options:\n" + "\n".join(map(str, row["options"]))
        meta = {key: row[key] for key in ("problem_type", "data_source") if key in row}
        shared = {"id": row.get("problem_id"), medium: row.get("path"), "meta": meta}
        return {**shared, "question": problem, **_truth(row, kind)}


def _truth(row: Mapping[str, Any], kind: object) -> dict[str, Any]:
    if kind in PLACES:
        return _place(row.get("solution"), *PLACES[str(kind)])
    reply = read_reply(row.get("solution"), "", "solution")
    answer = reply.get("answer")
    if kind == CHOICE:
        options = multiple_choice.options_of(row.get("options"))
        truth = multiple_choice.choice_truth(options, str(answer))
        return {"choice": truth.choice, "options": list(options)}
    if kind in TEXTS and answer is not None:
        return {"answer": answer}
    if kind in NUMBERS and "number" in reply:
        return {"answer": answer, "number": reply["number"]}
    if kind not in (*TEXTS, *NUMBERS):
        known = ", ".join((CHOICE, *NUMBERS, *TEXTS, *PLACES))
        raise UserError(f"key 'problem_type': expected one of {known}, got {kind!r:.60}")
    raise UserError(f"key 'solution': expected an answer of {kind}, got {row['solution']!r:.60}")


def _place(solution: object, key: str, ours: str) -> dict[str, Any]:
    """Return the one span, in seconds, or the one box, in thousandths, that a solution states."""
    stated = parsing.values(str(solution))
    numbers = stated[0].get(key) if len(stated) == 1 and isinstance(stated[0], dict) else None
    if not isinstance(numbers, list):
        raise UserError(
            f"key 'solution': expected one JSON object with {key!r}, got {solution!r:.60}"
        )
    return {ours: [numbers], **({"box_space": "norm1000"} if ours == "boxes" else {})}
