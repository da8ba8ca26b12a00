"""Stored answers as a harness reads them, so that anyone can have it score them again.

What is handed over is what our official rule was given: the answer without its thought and tags.
"""

from __future__ import annotations

import csv
import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from vlmrl.benchmarking.base import Benchmark, BenchmarkCard, Official, name_of
from vlmrl.benchmarking.rows import INDEX
from vlmrl.benchmarking.scores import accepted_texts, right_letter, texts
from vlmrl.benchmarking.scoring import Result, RowScore
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.schema import Sample
from vlmrl.system import files

# --------------------------------------------------------------------------------------------------
# Stored answers as VLMEvalKit's `run.py --mode eval` reads them in place of a model's.
#
# Its own tables hold the images and number their rows in their own way. So the rows that were asked are
# written as a data set of another name, which its classes read as they read their own, and the answers as
# the predictions of a finished run. `score.sh` beside them is the command.


VLMEVALKIT_MODEL, RUN = "vlmrl", "T20000101-000000"
"""The model and the run that VLMEvalKit finds the predictions of."""
MISSING = ("", "NA", "N/A", "n/a", "nan", "NaN", "None", "null", "NULL", "<NA>", "#N/A", "-nan")
"""Texts that pandas reads as no value; a blank behind them keeps them texts."""
SCRIPT = """#!/bin/sh
# Run in a checkout of VLMEvalKit: its own code scores the predictions in this folder.
here=$(cd "$(dirname "$0")" && pwd)
LMUData=$here/LMUData PRED_FORMAT=tsv exec ${{PYTHON:-python}} run.py --mode eval \\
  --judge exact_matching --work-dir "$here" --model {model} --data {names} \\
  --data-config '{config}'
"""
Columns = dict[str, Any]


def write_vlmevalkit(
    folder: Path,
    official: Official,
    source: Source,
    rows: Sequence[RowScore],
) -> Path:
    """Write a benchmark's rows and answers next to those of others; return the script that scores all.

    Raises:
        UserError: VLMEvalKit's class of the data set is not one whose table is known here.
    """
    kind, _, name = official.task.partition(" ")
    if kind not in CLASSES:
        known = ", ".join(CLASSES)
        raise UserError(f"vlmrl eval --export vlmevalkit: expected one of {known}, got {kind!r}")
    # Under its own name VLMEvalKit would download its own table.
    name = f"{name}_{source.name.replace(':', '_')}"
    asked = [_asked(source, row, kind) for row in rows]
    answers = [
        {**columns, "prediction": row.answer or ""}
        for columns, row in zip(asked, rows, strict=True)
    ]
    if kind == "ScreenSpot_Pro":
        # Of a screenshot VLMEvalKit reads the size alone.
        images = folder / "LMUData/images" / name
        images.mkdir(parents=True, exist_ok=True)
        for file in {row["image_path"] for row in asked}:
            width, height = map(int, file.removesuffix(".png").split("x"))
            Image.new("1", (width, height)).save(images / file)
    _write_table(folder / "LMUData" / f"{name}.tsv", asked)
    _write_table(folder / VLMEVALKIT_MODEL / RUN / f"{VLMEVALKIT_MODEL}_{name}.tsv", answers)
    listed = folder / "datasets.json"
    config = files.read_json(listed) if listed.is_file() else {}
    config[name] = {"class": kind, "dataset": name}
    files.write_json(listed, config)
    names = " ".join(config)
    script = SCRIPT.format(model=VLMEVALKIT_MODEL, names=names, config=json.dumps(config))
    return files.write_bytes(folder / "score.sh", script.encode())


def _write_table(path: Path, rows: Sequence[Columns]) -> None:
    """Write rows as tab-separated values, as VLMEvalKit does; texts stay texts when pandas reads them."""

    def write(to: Path) -> None:
        with to.open("w", newline="", encoding="utf-8", errors="replace") as file:
            lines = csv.writer(file, "excel-tab", quoting=csv.QUOTE_ALL, lineterminator="\n")
            lines.writerow(rows[0])
            lines.writerows(
                [f"{value} " if value in MISSING else value for value in row.values()]
                for row in rows
            )

    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, write)


def _asked(source: Source, row: RowScore, kind: str) -> Columns:
    sample = source.sample(row.index)
    common: Columns = {"index": row.index + 1, "question": row.question}
    if "category" in sample.meta:
        common["category"] = sample.meta["category"]
    return common | CLASSES[kind](sample)


def _one(sample: Sample) -> Columns:
    return {"answer": accepted_texts(sample)[0]}


def _yes_no(sample: Sample) -> Columns:
    """Return the word; MME pairs the questions about an image, HallusionBench names sets in the index."""
    word = accepted_texts(sample)[0].strip().lower()
    columns = {"answer": "Yes" if word.startswith("yes") else "No"}
    meta = sample.meta
    if "question_id" in meta:
        columns["image_path"] = f"{meta['question_id']}.png"
    if "figure_id" in meta:
        parts = (meta[key] for key in ("set_id", "figure_id", "question_id"))
        columns["index"] = "_".join(("row", str(meta[INDEX]), "of", *map(str, parts)))
        columns["l2-category"] = str(meta["subcategory"])
    return columns


def _letter(sample: Sample) -> Columns:
    listed = texts(sample)
    options = {letter: listed.get(letter) for letter in string.ascii_uppercase[:8]}
    kept = (
        {"cycle_category": sample.meta["cycle_category"]} if "cycle_category" in sample.meta else {}
    )
    return {**options, "answer": right_letter(sample), **kept}


def _screen(sample: Sample) -> Columns:
    """Return the corners of the true box in pixels, inside of the image to the last digit."""
    assert sample.truth.boxes
    meta = sample.meta
    width, height = size = [int(pixels) for pixels in meta["size"]]
    corners = [round(v * n, 6) for v, n in zip(sample.truth.boxes[0].xyxy, 2 * size, strict=True)]
    columns = {"bbox": repr(corners), "image_path": f"{width}x{height}.png"}
    kept = {"category": meta["group"], "ui_type": meta["ui_type"], "application": "screen"}
    return columns | kept


CLASSES: dict[str, Callable[[Sample], Columns]] = {
    "CountBenchQA": _one,
    "HRBenchDataset": _letter,
    "ImageMCQDataset": _letter,
    "ImageVQADataset": lambda sample: {"answer": repr(list(accepted_texts(sample)))},
    "ImageYORNDataset": _yes_no,
    "ScreenSpot_Pro": _screen,
    "TallyQA": _one,
}
"""What each of VLMEvalKit's classes reads besides the index and the question.

Its class for RefCOCO takes no other table than its own.
"""


# --------------------------------------------------------------------------------------------------


MODEL = "vlmrl"
"""What a harness is told that the model is called."""


def export_answers(harness: str, folder: Path, source: Source, result: Result) -> Path:
    """Write the answers to a benchmark's rows for a harness; return the file to begin with.

    Args:
        harness: a key of `HARNESSES`.
        folder: where the files of all benchmarks are written.
        source: the rows.
        result: the scored answers.

    Raises:
        UserError: the harness is not that of the protocol, or it has no task for this benchmark.
    """
    assert isinstance(source.card, BenchmarkCard)
    benchmark = source.card.benchmark
    official = benchmark.official(result.protocol)
    if not can_export(harness, benchmark, result.protocol) or official is None:
        raise UserError(
            f"benchmark {name_of(benchmark)!r} has no task of {harness} to export its answers to"
        )
    return HARNESSES[harness](folder, official, source, result.rows)


def can_export(harness: str, benchmark: Benchmark, protocol: str) -> bool:
    """Return whether the harness has a task for this benchmark.

    Raises:
        UserError: the harness is not that of the protocol.
    """
    if harness not in HARNESSES:
        known = ", ".join(HARNESSES)
        raise UserError(f"vlmrl eval --export: expected one of {known}, got {harness!r}")
    official = benchmark.official(protocol)
    if official is None or official.protocol.split("@")[0] != harness:
        raise UserError(
            f"vlmrl eval --export {harness}: expected --protocol {harness}, got {protocol!r}"
        )
    return bool(official.task)


def _write_lmms_eval(
    folder: Path, official: Official, source: Source, rows: Sequence[RowScore]
) -> Path:
    """Write a log for the model "from_log" of lmms-eval, which is a log of its older form."""
    logs = [{"doc_id": row.index, "resps": [[row.answer or ""]]} for row in rows]
    log = {
        "args": {"model": MODEL, "model_args": "", "limit": None},
        "model_configs": {"task": official.task},
        "logs": logs,
    }
    path = folder / f"{official.task}.json"
    files.write_json(path, log)
    return path


HARNESSES = {"lmms_eval": _write_lmms_eval, "vlmevalkit": write_vlmevalkit}
"""Writers by harness."""
