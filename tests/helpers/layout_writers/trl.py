"""TRL's prompts with solutions, in Parquet with the images' bytes."""

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
            "prompt": [
                {"role": "system", "content": "Think first."},
                {"role": "user", "content": each.question},
            ],
            "image": {"bytes": png(each), "path": None},
            "solution": f"<answer> {each.answer} </answer>",
        }
        for each in drawn
    ]
    put(folder, rows)
    return Written({"path": str(folder)}, [answer_truth(each) for each in drawn])


def put(folder: Path, rows: list[dict[str, Any]]) -> None:
    file = folder / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def spoil(folder: Path) -> str:
    file = folder / "train-00000-of-00001.parquet"
    rows = pyarrow.parquet.read_table(file).to_pylist()
    rows[1]["solution"] = "<answer> </answer>"
    put(folder, rows)
    return r"00001\.parquet row 1: key 'solution': expected an answer, got an empty one"
