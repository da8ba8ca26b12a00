"""The hostile media of `tests/data/hard`, and what their manifest says of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HARD = Path(__file__).parents[1] / "data" / "hard"


def hard_rows(*kinds: str) -> list[dict[str, Any]]:
    """The manifest's rows of these kinds of media; of all kinds where none is named."""
    lines = (HARD / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if not kinds or row["kind"] in kinds]
