"""Rows for the recipes: data in the layout that a recipe's source names, written where it looks for them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
from PIL import Image

from helpers import task_data
from helpers.videos import write_video
from vlmrl.config import Config, SourceConfig

ROWS = 6
SIDE = 56
"""Pixels of an image's sides."""
BOX = [10, 10, 40, 40]
PUBLISHED = {
    "charades_sta": task_data.charades,
    "got10k": task_data.got10k,
    "next_gqa": task_data.next_gqa,
    "avqa": task_data.audio_qa,
    "mmau": task_data.audio_qa,
}
"""Card -> what writes its data as published."""
DRAWN = ("shapes", "world")
"""Cards that read no data."""
VALUES: dict[str, Any] = {
    "image": "image.png",
    "video": "video.mkv",
    "audio": "sound.wav",
    "question": "Which one is it?",
    "system": "You call functions.",
    "answer": "7",
    "boxes": [BOX],
    "box_labels": ["dog"],
    "points": [[200, 200]],
    "number": 7,
    "choice": "B",
    "options": ["cat", "dog"],
    "labels": ["dog", "cat"],
    "spans": [[0.5, 1.5]],
    "fields": {"action": "CLICK", "value": None, "position": [0.5, 0.5], "kind": "noise"},
    "thought": "It is plain.",
    "weight": 0.5,
    "none": True,
    "rubric": [
        {"title": "Sees", "description": "It names the dog.", "weight": 5},
        {"title": "Pitfall", "description": "Pitfall: it invents a cat.", "weight": -2},
    ],
}
"""Our key of a table -> what stands in its column."""
_KIND = re.compile(r"(problem_type|dataset) == '([^']*)'")
SOLUTIONS = {
    "box_iou": "[10, 10, 40, 40]",
    "detection": '[{"bbox_2d": [10, 10, 40, 40], "label": "dog"}]',
    "class_name": "dog",
    "text": "a dog",
}
"""First verifier -> what a published layout states as the solution; else a number."""


OF_ROWS = {"hints": "hint", "question_variants": "new_questions"}
"""Strategy -> the column that it reads by default."""
KINDS = (
    "multiple choice",
    "numerical",
    "OCR",
    "free-form",
    "regression",
    "open-ended",
    "math",
    "temporal grounding",
    "spatial grounding",
)
"""Kinds of problem of Video-R1, and of OneThinker."""
PLACES = {
    "temporal grounding": '{"time": [0.5, 1.25]}',
    "spatial grounding": '{"boxes": [100, 200, 500, 700]}',
}
"""Kind of problem -> OneThinker's answer; else a number."""


def write_rows(config: Config, home: Path) -> None:
    """Write the training data of a config below `home`, from which its paths are read."""
    extra = dict.fromkeys(_columns(config), 0.25)
    for source in [s for each in (config, *config.by_stage) for s in each.named_sources]:
        if source.card in PUBLISHED:
            (home / "data").mkdir(exist_ok=True)
            if not (home / source.options["path"]).exists():
                PUBLISHED[source.card](home / "data")
        elif source.card not in DRAWN:
            path = home / source.options["path"]
            folder = path.parent if path.suffix else path
            folder.mkdir(parents=True, exist_ok=True)
            _write_media(home / source.options["root"] if "root" in source.options else folder)
            rows = [{**extra, **_row(source, config, n)} for n in range(_count(config, source))]
            files = [path] if path.suffix else [folder / f"{s}.jsonl" for s in ("train", "test")]
            for file in files:
                _write_file(file, rows)
        for reward in config.rewards_of(source):
            if "vectors" in reward.options:
                vectors = numpy.eye(2, dtype=numpy.float32)
                numpy.savez(home / reward.options["vectors"], words=["7", "red"], vectors=vectors)
        for tool in source.tools:
            if "pages" in tool.options:
                _write_pages(home / tool.options["pages"])


def _count(config: Config, source: SourceConfig) -> int:
    """Return how many rows of a file let some be held out and some be trained on."""
    same = _sharing(config, source)
    cuts = [int(cut[1]) for s in same if (cut := re.search(r"\[(\d+):\]", s.split))]
    return ROWS * (5 if source.where or "%" in source.split else 1) + max(cuts, default=0)


def _sharing(config: Config, source: SourceConfig) -> list[SourceConfig]:
    """Return the sources that read the same file."""
    path = source.options.get("path")
    return [s for s in config.named_sources if s.options.get("path") == path]


def _write_file(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _columns(config: Config) -> Iterator[str]:
    """Name the columns that conditions, judges, samplers and strategies read."""
    for source in config.named_sources:
        yield from re.findall(r"[a-z]\w+", re.sub(r"'[^']*'", "", source.where or ""))
    for each in (config, *config.by_stage):
        for source in each.named_sources:
            for reward in each.rewards_of(source):
                yield from reward.options.get("tells", ())
    for part in (config.data.sampler, *config.strategies):
        for key in ("difficulty", "column"):
            if key in part.options:
                yield part.options[key]
        if part.name in OF_ROWS and "column" not in part.options:
            yield OF_ROWS[part.name]


def _row(source: SourceConfig, config: Config, number: int) -> dict[str, Any]:
    shown = f"{number % ROWS}.png"
    kinds = [s for s in _sharing(config, source) if _KIND.search(s.where or "")]
    if source.card == "table" and len(kinds) > 1:  # one file of rows of several kinds
        source = kinds[number % len(kinds)]
        kind = _KIND.search(source.where or "")
        assert kind is not None
        alone = config.model_copy(
            update={"data": config.data.model_copy(update={"train": [source]})}
        )
        return {**_row(source, alone, number), kind[1]: kind[2]}
    if source.card == "table":
        values = {**VALUES, "id": str(number), "image": shown}
        columns = source.options["columns"]
        row: dict[str, Any] = dict(re.findall(r"(\w+) == '([^']*)'", source.where or ""))
        for key, column in columns.items():
            if column == "conversations.1.value":  # the second turn of a chat
                row["conversations"] = [{}, {"value": values[key]}]
                continue
            if column == "prompt.0.content":  # the only turn of a chat
                row["prompt"] = [{"role": "user", "content": values[key]}]
                continue
            *outer, name = column.split(".")
            if outer and outer[0] == columns.get("fields"):
                continue  # the fields hold it
            functools.reduce(lambda inside, part: inside.setdefault(part, {}), outer, row)[name] = (
                values[key]
            )
        if "is_video" in (source.where or ""):
            seen = number % 2 == 1
            return {**row, "is_video": seen, "image": ["video.mkv" if seen else shown]}
        if source.environment and source.environment.name == "semi_online":
            actions = [{"action": "CLICK", "position": [0.5, 0.5]}, {"action": "HOME"}]
            steps = [{"screen": shown, "action": action} for action in actions]
            return {**row, columns["fields"]: {"steps": steps}}
        if source.options.get("box_space") == "pixel" and "points" in columns:
            row[columns["points"]] = [BOX[:2]]
        if columns.get("labels") == "supporting_ids":
            row["supporting_ids"] = [1, 3]
        if columns.get("fields") == "questions":
            asked = {"question": "Which one is it?", "options": ["cat", "dog"], "answer": "B"}
            return {**row, "questions": {"questions": [asked, {**asked, "answer": "A"}]}}
        if columns.get("boxes") in ("box", "solution"):
            row[columns["boxes"]] = BOX
        return row
    if source.card == "shuffled":
        return {"image": shown, "video": "video.mkv", "duration": 1.5}
    if source.card == "preferences":
        pair = {"chosen": "A red one.", "rejected": "A blue one."}
        return {"image": shown, "prompt": "Which one is it?", **pair}
    reply = SOLUTIONS.get(config.rewards_of(source)[0].verifier, "7")
    asked, image = "<image>Which one is it?", shown
    match source.options["layout"]:
        case "trl":
            reply = f"<think>so</think><answer> {reply} </answer>"
            return {"image": image, "problem": asked, "solution": reply}
        case "easyr1":
            return {"images": [image], "problem": asked, "answer": reply}
        case "video_r1":
            kind = KINDS[number % len(KINDS)]
            row = {"problem_id": number, "problem": "Which one is it?", "data_type": "video"}
            row |= {"path": "./video.mkv", "problem_type": kind, "options": []}
            if kind in ("math", "spatial grounding"):
                row |= {"data_type": "image", "path": f"./{shown}"}
            if kind == "multiple choice":
                return {**row, "options": ["A. cat", "B. dog"], "solution": "<answer>B</answer>"}
            return {**row, "solution": f"<answer>{PLACES.get(kind, 7)}</answer>"}
        case "messages":
            calls = [{"function": {"name": "crop", "arguments": {"bbox_2d": BOX}}}]
            return {
                "messages": [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": "<think>small</think>", "tool_calls": calls},
                    {"role": "tool", "content": "<image>"},
                    {"role": "assistant", "content": f"<think>so</think><answer>{reply}</answer>"},
                ],
                "images": [image, image],
            }
        case "gui_r1":
            row = {"id": number, "image": image, "instruction": "Open it", "history": "None"}
            row |= {"task_type": "high", "gt_action": "click", "gt_input_text": "no input text"}
            if number % 2:
                return {**row, "gt_action": "type", "gt_bbox": [-100, -100], "gt_input_text": "7"}
            return {**row, "gt_bbox": [0.2, 0.2, 0.7, 0.7]}
        case "verl":
            row = {"prompt": [{"role": "user", "content": asked if source.tools else asked[7:]}]}
            row |= {"reward_model": {"style": "rule", "ground_truth": reply}}
            return {**row, "images": [image]} if source.tools else row
        case "vlm_r1":
            turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": BOX}]
            return {"id": number, "image": image, "conversations": turns}
        case "v_triune":
            truth = f"<answer> {[{'bbox_2d': BOX, 'label': 'dog'}]} </answer>"
            ratios = {"iou_max_label_first": 1.0, "iou_completeness": 0.3}
            model = {"ground_truth": truth, "accuracy_ratio": 1.0, "format_ratio": 0.1}
            model |= {"verifier": "detection", "verifier_parm": {"det_reward_ratio": ratios}}
            if number % 2:
                model |= {"ground_truth": "<answer> 7 </answer>", "verifier": "mathverify"}
            prompt = [{"role": "user", "content": asked}]
            return {"images": [image], "prompt": prompt, "reward_model": model}
        case other:
            raise ValueError(f"no rows are known of the layout {other!r}")


def _write_pages(file: Path) -> None:
    """Write what `search` looks in: the row's images are the pages."""
    pages = [{"image": f"{n}.png", "text": f"page {n} of the report"} for n in range(ROWS)]
    file.write_text("".join(f"{json.dumps(page)}\n" for page in pages))


def _write_media(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(ROWS):
        Image.new("RGB", (SIDE, SIDE), (40 * number, 90, 20)).save(folder / f"{number}.png")
    write_video(folder / "video.mkv", [0, 500, 1000, 1500])
    task_data.sound(folder / "sound.wav")
