"""Small data sets in the layouts in which benchmarks are published, and chat templates as they are."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

TEMPLATES = {
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "qwen3_5": "qwen3_5_nothink",
    "qwen3_5_moe": "qwen3_5_think",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen2_vl": "qwen2_5_vl",
    "gemma3": "gemma3",
    "idefics3": "idefics3",
    "smolvlm": "smolvlm",
}
"""Family -> the chat template of its published checkpoints, as TRL keeps it."""
ROWS: dict[str, list[dict[str, Any]]] = {
    "ai2d": [
        {"question": "Which?", "options": ["a fox", "two", "b", "3"], "answer": str(i)}
        for i in range(4)
    ],
    "chartqa": [
        {"type": kind, "question": "How many?", "answer": answer}
        for kind, answer in (
            ("human_test", "100"),
            ("human_test", "2019"),
            ("augmented_test", "Yes"),
            ("augmented_test", "12%"),
        )
    ],
    "countbench": [{"question": "How many?", "number": n, "text": "a text"} for n in (2, 3, 10)],
    "cv_bench": [
        {
            "idx": i,
            "type": "2D",
            "task": "Count",
            "source": "COCO",
            "prompt": "How many? (A) 1 (B) 2",
        }
        | {"choices": ["1", "2"], "answer": answer}
        for i, answer in enumerate(("(A)", "(B)"))
    ],
    "docvqa": [
        {
            "questionId": str(i),
            "docId": i // 2,
            "question": "Title?",
            "answers": ["Old Moon", "moon"],
        }
        for i in range(4)
    ],
    "infovqa": [{"questionId": str(i), "question": "Sum?", "answers": ["12"]} for i in range(2)],
    "mme": [
        {"question_id": f"q{i // 2}", "category": "color" if i < 4 else "OCR"}
        | {"question": "Is it red? Please answer yes or no.", "answer": ("Yes", "No")[i % 2]}
        for i in range(6)
    ],
    "mmstar": [
        {"index": i, "question": "Which?\nOptions: A: x, B: y, C: z, D: w", "answer": "ABCD"[i]}
        | {"category": "math", "l2_category": ("geometry", "statistics")[i // 3]}
        for i in range(4)
    ],
    "ocrbench": [
        {"dataset": name, "question": "Read.", "answer": answer}
        | {"question_type": "Handwritten Mathematical Expression Recognition"}
        for name, answer in (("HME100k", ["x ^ 2"]), ("IIIT5K", ["Centre"]))
    ],
    "pixmo_count": [{"question": "How many?", "answer": str(n)} for n in (2, 3)],
    "pope": [
        {"question": "Is there a cat?", "answer": answer, "image_source": f"im{i // 2}"}
        | {"category": "random"}
        for i, answer in enumerate(("yes", "no", "yes", "no"))
    ],
    "realworldqa": [
        {"question": "Which?\nA. x\nB. y", "answer": "B"},
        {"question": "How many?", "answer": "2"},
    ],
    "textvqa": [
        {"question_id": 1, "question": "Which Brand?", "answers": ["nike"] * 7 + ["x"] * 3}
    ],
}
"""A few rows of each benchmark, without their image."""

CASES: dict[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((Path(__file__).parents[1] / "data/benchmarks").glob("*.json"))
}
"""What each file of `tests/data/benchmarks` says: see the `README.md` there."""
ROWS |= {name: case["rows"] for name, case in CASES.items()}
FLAC = min((Path(__file__).parents[2] / "examples/data/fsdd/audio").glob("*.flac"))
"""What stands for all audio."""


def write_published(folder: Path, name: str, split: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as a clone of a hub data set: Parquet in `data/`, images as bytes with a path.

    A case may name another file, and rows their own columns for images, as the text PNG, and audio, FLAC.
    """
    file = f"data/{split}-00000-of-00001.parquet"
    path = folder / name / CASES.get(name, {}).get("file", file)
    path.parent.mkdir(parents=True)
    for other, others in CASES.get(name, {}).get("beside", {}).items():
        (folder / name / other).parent.mkdir()
        table = pa.Table.from_pylist([_with_images(*row) for row in enumerate(others)])
        pq.write_table(table, folder / name / other)
    if path.suffix == ".parquet" and "beside" in CASES.get(name, {}):
        pq.write_table(pa.Table.from_pylist([*map(dict, rows)]), path)
        return folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([_with_images(*row) for row in enumerate(rows)]), path)
        return folder / name
    if path.suffix == ".pth":
        return _write_classes(path, rows, folder / name)
    if document := CASES.get(name, {}).get("document"):
        path.write_text(json.dumps({"images": rows, **document}))
        return folder / name
    if CASES.get(name, {}).get("by_video"):
        path.write_text(json.dumps({row["video"]: row for row in rows}))
        return folder / name
    if path.suffix == ".tsv":
        return _write_tsv(path, rows, folder / name)
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) if path.suffix == ".jsonl" else f"[{','.join(lines)}]")
    for number, row in enumerate(rows):
        for value in row.values():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and one.endswith((".png", ".jpg")):
                    image = folder / name / one
                    image.parent.mkdir(parents=True, exist_ok=True)
                    image.write_bytes(_png(number))
    return folder / name


def _write_tsv(path: Path, rows: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write VLMEvalKit's table: images as base64, several as a list in Python's form."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0], dialect="excel-tab")
        table.writeheader()
        for number, row in enumerate(rows):
            image = base64.b64encode(_png(number)).decode()
            table.writerow(
                {
                    key: image
                    if value == "PNG"
                    else [image for _ in value]
                    if _images(value)
                    else value
                    for key, value in row.items()
                }
            )
    return folder


def _write_classes(path: Path, rows: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write Visual-RFT's list of images and labels, its names, and the images."""
    names = sorted({row["name"] for row in rows})
    path.with_suffix(".txt").write_text("\n".join(names))
    listed = [
        {f"/mnt/data/{row['file']}": {"label": torch.tensor(names.index(row["name"]))}}
        for row in rows
    ]
    torch.save(listed, path)
    for number, row in enumerate(rows):
        (folder / row["file"]).parent.mkdir(parents=True, exist_ok=True)
        (folder / row["file"]).write_bytes(_png(number))
    return folder


def _with_images(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    image = {"bytes": _png(number), "path": f"{number}.png"}
    if "FLAC" in row.values():
        audio = {"bytes": FLAC.read_bytes(), "path": f"{number}.flac"}
        row = {key: audio if value == "FLAC" else value for key, value in row.items()}
    if not any(value == "PNG" or _images(value) for value in row.values()):
        return {**row, "image": image}
    return {key: _filled(value, image) for key, value in row.items()}


def _filled(value: Any, image: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith("MASK "):
        file, mask = io.BytesIO(), Image.new("L", (96, 64))
        mask.paste(255, tuple(map(int, value.split()[1:])))
        mask.save(file, "PNG")
        return {"bytes": file.getvalue(), "path": "mask.png"}
    if isinstance(value, str) and value.startswith("BITS "):
        x1, y1, x2, y2 = map(int, value.split()[1:])
        return [[y1 <= y < y2 and x1 <= x < x2 for x in range(96)] for y in range(64)]
    return image if value == "PNG" else [image for _ in value] if _images(value) else value


def _images(value: Any) -> bool:
    return isinstance(value, list) and "PNG" in value


def _png(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (96, 64), (40 * number % 255, 200, 90)).save(file, "PNG")
    return file.getvalue()
