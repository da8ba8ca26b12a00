"""verl's Parquet rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from helpers.drawn import Written, answer_truth, draw, png


def write(folder: Path) -> Written:
    drawn = draw(folder)
    rows = [
        {
            "data_source": "drawn",
            "prompt": [{"role": "user", "content": f"<image>{each.question}"}],
            "images": [{"bytes": png(each), "path": None}],
            "ability": "vision",
            "reward_model": {"style": "rule", "ground_truth": each.answer},
            "extra_info": {"split": "train", "index": number},
        }
        for number, each in enumerate(drawn)
    ]
    put(folder, rows)
    return Written({"path": str(folder / "train.parquet")}, [answer_truth(each) for each in drawn])


def put(folder: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train.parquet")


def spoil(folder: Path) -> str:
    rows = pyarrow.parquet.read_table(folder / "train.parquet").to_pylist()
    rows[1]["images"] = []
    put(folder, rows)
    return r"train\.parquet row 1: column 'prompt': expected a mark .* 1 <image> for 0"
