"""Rows of question sets as their trainers publish them, under the keys of the card `records`.

A layout is known by its keys; what has none of them is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vlmrl.errors import UserError

__all__ = ["PUBLISHED", "under_our_keys"]

VIDEO_R1 = frozenset({"problem_id", "problem", "solution", "data_type", "path"})
"""Video-R1, Feng et al. 2025, arXiv 2503.21776 (`Video-R1-260k.json`); also `problem_type`, `options`."""
R1_AQA = frozenset({"id", "question_text", "multi_choice", "answer", "audio_path"})
"""R1-AQA, Li et al. 2025, arXiv 2503.11197: AVQA's questions about sound; `answer` counts from 0."""
VIDEOCHAT_R1 = frozenset({"id", "video", "question", "options", "answer", "glue"})
"""VideoChat-R1, Li et al. 2025, arXiv 2504.06958, grounded questions; `glue` are spans in seconds."""

PUBLISHED = (VIDEO_R1, R1_AQA, VIDEOCHAT_R1)
"""Keys of each of these layouts."""

_ANSWER = re.compile(r"\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)


def under_our_keys(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put `question`, `answer`, `id` and the media where the card `records` looks for them.

    `options` stay only where the row is multiple choice; `glue` becomes `spans`.

    Raises:
        UserError: a value of another kind than the layout has.
    """
    if row.keys() >= VIDEO_R1:
        return _video_r1(row)
    if row.keys() >= R1_AQA:
        return _r1_aqa(row)
    if row.keys() >= VIDEOCHAT_R1:
        rest = {k: v for k, v in row.items() if k not in ("video", "glue")}
        return {**rest, "videos": [row["video"]], "spans": row["glue"]}
    return row


def _video_r1(row: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {"image": "images", "video": "videos"}
    if row["data_type"] not in kinds:
        raise UserError(f"key 'data_type': expected image or video, got {row['data_type']!r:.60}")
    solution = row["solution"]
    if not isinstance(solution, str) or not (found := _ANSWER.fullmatch(solution)):
        raise UserError(f"key 'solution': expected <answer>...</answer>, got {solution!r:.60}")
    rest = {k: v for k, v in row.items() if k not in VIDEO_R1}
    ours = {"id": row["problem_id"], "question": row["problem"], "answer": found["answer"]}
    return {**rest, **ours, kinds[row["data_type"]]: [row["path"]]}


def _r1_aqa(row: Mapping[str, Any]) -> dict[str, Any]:
    options, right = row["multi_choice"], row["answer"]
    if not isinstance(options, list):
        raise UserError(f"key 'multi_choice': expected a list, got {options!r:.60}")
    if isinstance(right, bool) or not isinstance(right, int) or not 0 <= right < len(options):
        raise UserError(f"key 'answer': {right!r:.60} is no place in the {len(options)} options")
    rest = {k: v for k, v in row.items() if k not in R1_AQA}
    ours = {"id": row["id"], "question": row["question_text"], "answer": options[right]}
    return {**rest, **ours, "options": options, "audios": [row["audio_path"]]}
