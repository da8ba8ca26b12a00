"""EasyR1's Parquet rows, in a clone of a data set of the hub."""

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
            "images": [{"bytes": png(each), "path": None}],
            "problem": f"<image>{each.question}",
            "answer": each.answer,
        }
        for each in drawn
    ]
    put(folder, rows)
    return Written({"path": str(folder)}, [answer_truth(each) for each in drawn])


def put(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "data").mkdir(exist_ok=True)
    file = folder / "data" / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def spoil(folder: Path) -> str:
    rows = pyarrow.parquet.read_table(folder / "data").to_pylist()
    rows[1]["answer"] = None
    put(folder, rows)
    return r"00001\.parquet row 1: key 'answer': expected an answer, got None"
