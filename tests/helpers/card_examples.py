"""Small data sets in the published layouts that shipped cards read; a new card writes its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from helpers import task_data


def _boxes(home: Path) -> None:
    Image.new("RGB", (64, 48)).save(home / "a.png")
    row = {"id": "1", "task": "detection", "images": ["a.png"], "question": "Where is the dog?"}
    row |= {"answer": "[4, 6, 30, 40]", "boxes": [[4, 6, 30, 40]], "width": 64, "height": 48}
    (home / "train.jsonl").write_text(json.dumps(row) + "\n")


def _table(home: Path) -> None:
    row = {"problem": "What is two and two?", "answer": "4"}
    (home / "train.jsonl").write_text(json.dumps(row) + "\n")


def _auto(home: Path) -> None:
    row = {"messages": [{"role": "user", "content": "What is two and two?"}], "answer": "4"}
    (home / "train.jsonl").write_text(json.dumps(row) + "\n")


EXAMPLES: Mapping[str, tuple[Callable[[Path], None], Mapping[str, Any]]] = {
    "activitynet_captions": (task_data.activitynet, {"path": "activitynet"}),
    "audioset": (
        task_data.audioset,
        {
            "path": {"train": "audioset/balanced_train_segments.csv"},
            "classes": "audioset/class_labels_indices.csv",
            "root": "audioset/sound",
        },
    ),
    "audioset_strong": (task_data.audioset_strong, {"path": "strong", "root": "strong/sound"}),
    "auto": (_auto, {"path": "train.jsonl"}),
    "avqa": (task_data.audio_qa, {"path": "avqa", "root": "avqa/sound"}),
    "charades_sta": (task_data.charades, {"path": "charades"}),
    "got10k": (task_data.got10k, {"path": "got10k"}),
    "mmau": (task_data.audio_qa, {"path": "mmau/mmau-test-mini.json"}),
    "next_gqa": (task_data.next_gqa, {"path": "nextgqa"}),
    "records": (_boxes, {"path": "."}),
    "spoken_digits": (task_data.spoken_digits, {"path": "digits"}),
    "table": (
        _table,
        {"path": "train.jsonl", "columns": {"question": "problem", "answer": "answer"}},
    ),
    "transcripts": (task_data.librispeech, {"path": {"train": "LibriSpeech/train-clean-100"}}),
}


def write_example(card: str, home: Path) -> dict[str, Any]:
    """Write a shipped card's example; return its options, with paths inside `home`."""
    write, options = EXAMPLES[card]
    write(home)
    return {
        key: _within(value, home) if key in ("path", "classes", "root") else value
        for key, value in options.items()
    }


def _within(value: Any, home: Path) -> Any:
    if isinstance(value, dict):
        return {key: _within(inner, home) for key, inner in value.items()}
    return str(home / value)
