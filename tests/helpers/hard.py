"""The hostile media of `tests/data/hard`, and what their manifest says of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HARD = Path(__file__).parents[1] / "data" / "hard"


def bad_source(folder: Path) -> list[str]:
    """Overrides of a config: drawn shapes, and two rows that go to the quarantine."""
    rows = folder / "rows.jsonl"
    lines = [
        {"id": name, "question": "What is it?", "answer": "it", "images": [str(HARD / name)]}
        for name in ("cut_with_eoi.jpg", "damaged.jp2")
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = f"{{name: hostile, card: records, options: {{path: {rows}}}, weight: 2}}"
    return [
        f"data.train=[{source}, shapes]",
        f"data.media_root={HARD}",
        "data.quarantine_limit=1",
        "evaluation=null",
    ]


def hard_rows(*kinds: str) -> list[dict[str, Any]]:
    """The manifest's rows of these kinds of media; of all kinds where none is named."""
    lines = (HARD / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if not kinds or row["kind"] in kinds]
