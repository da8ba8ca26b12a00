"""Layouts of questions and answers: chats, rows of trainers, benchmarks. Field names as published."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from helpers.layout_forms.items import Form, Item, put_media, truth_of
from vlmrl.schema import Truth
from vlmrl.truths.json_form import to_json

ALL_MEDIA = ("image", "video", "audio")
PLURAL = {"image": "images", "video": "videos", "audio": "audios"}


def reply(item: Item) -> str:
    """The reply in words, or the boxes as the JSON that Qwen's models write."""
    if item.answer is not None:
        return item.answer
    pairs = zip(item.boxes, item.labels, strict=True)
    return json.dumps([{"bbox_2d": [*box], "label": label} for box, label in pairs])


def asked(item: Item, between: str = "") -> str:
    return f"<{item.kind}>" * len(item.media) + between + item.question


def lists(item: Item) -> dict[str, list[str]]:
    return {PLURAL[item.kind]: [name for name, _ in item.media]}


def pixels(items: Sequence[Item]) -> dict[str, Any]:
    """What a config must add where boxes are written and the layout does not say in which space."""
    return {} if all(item.answer is not None for item in items) else {"box_space": "pixel"}


def put_json(file: Path, rows: Sequence[Any]) -> dict[str, Any]:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    file.write_text(text if file.suffix == ".jsonl" else json.dumps(rows), encoding="utf-8")
    return {"path": str(file)}


def put_parquet(file: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    file.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    return {"path": str(file)}


def embedded(item: Item) -> list[dict[str, Any]]:
    return [{"bytes": content, "path": name} for name, content in item.media]


def messages(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    rows = [
        {
            "messages": [
                {"role": "user", "content": asked(item)},
                {"role": "assistant", "content": f"<answer>{reply(item)}</answer>"},
            ],
            **lists(item),
        }
        for item in items
    ]
    return put_json(folder / "train.jsonl", rows) | pixels(items)


def llava(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "images", items)
    rows = [
        {
            "id": f"997bb945-{number}",
            "image": f"images/{item.name}",
            "conversations": [
                {"from": "human", "value": asked(item, "\n")},
                {"from": "gpt", "value": reply(item)},
            ],
        }
        for number, item in enumerate(items)
    ]
    return put_json(folder / "train.json", rows) | pixels(items)


def sharegpt(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    rows = [
        {
            "conversations": [
                {"from": "human", "value": asked(item)},
                {"from": "gpt", "value": reply(item)},
            ],
            **lists(item),
        }
        for item in items
    ]
    return put_json(folder / "train.json", rows) | pixels(items)


def alpaca(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    rows = [
        {"instruction": asked(item), "input": "", "output": reply(item), **lists(item)}
        for item in items
    ]
    return put_json(folder / "train.json", rows) | pixels(items)


def dataset_info(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    options = alpaca(folder, items)
    columns = {"prompt": "instruction", "query": "input", "response": "output"}
    entry = {"file_name": "train.json", "columns": columns | {m: m for m in PLURAL.values()}}
    (folder / "dataset_info.json").write_text(json.dumps({"train": entry}))
    return options | {"path": str(folder / "dataset_info.json")}


def trl(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    rows = [
        {
            "prompt": [{"role": "user", "content": item.question}],
            "image": embedded(item)[0],
            "solution": f"<answer> {reply(item)} </answer>",
        }
        for item in items
    ]
    return put_parquet(folder / "train-00000-of-00001.parquet", rows) | pixels(items)


def ms_swift(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    rows = []
    for item in items:
        content = "<ref-object><bbox>" * len(item.boxes)
        turns = [
            {"role": "user", "content": asked(item)},
            {"role": "assistant", "content": content},
        ]
        objects = {"ref": [*item.labels], "bbox": item.boxes, "bbox_type": "real"}
        rows.append({"messages": turns, **lists(item), "objects": objects})
    return put_json(folder / "train.jsonl", rows)


def vlm_r1_jsonl(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    rows = []
    for number, item in enumerate(items):
        names = [name for name, _ in item.media]
        value = f"```json\n{reply(item)}\n```" if item.answer is None else item.answer
        turns = [{"from": "human", "value": asked(item)}, {"from": "gpt", "value": value}]
        image = names if len(names) > 1 else names[0]
        rows.append({"id": number, "image": image, "conversations": turns})
    return put_json(folder / "train.jsonl", rows)


def vlm_r1_json(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    rows = [
        {
            "height": item.size[1],
            "width": item.size[0],
            "id": number,
            "dataset_name": "drawn",
            "image": item.name,
            "problem": item.question,
            "normal_caption": item.phrase,
            "solution": item.boxes[0],
        }
        for number, item in enumerate(items)
    ]
    return put_json(folder / "train.json", rows)


def vlm_r1_yaml(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    vlm_r1_json(folder, items)
    (folder / "rec.yaml").write_text("datasets:\n    - json_path: /data10/rec/train.json\n")
    return {"path": str(folder / "rec.yaml")}


def easyr1(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    rows = [
        {"images": embedded(item), "problem": asked(item), "answer": reply(item)} for item in items
    ]
    put_parquet(folder / "data/train-00000-of-00001.parquet", rows)
    return {"path": str(folder), **pixels(items)}


def verl(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    rows = [
        {
            "data_source": "drawn",
            "prompt": [{"role": "user", "content": asked(item)}],
            "images": embedded(item),
            "ability": "vision",
            "reward_model": {"style": "rule", "ground_truth": reply(item)},
            "extra_info": {"split": "train", "index": number, "question": item.question},
        }
        for number, item in enumerate(items)
    ]
    return put_parquet(folder / "train.parquet", rows) | pixels(items)


def v_triune(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    rows = []
    for number, item in enumerate(items):
        sides = item.size * 2
        boxes = [[n * 1000 / s for n, s in zip(b, sides, strict=True)] for b in item.boxes]
        pairs = zip(boxes, item.labels, strict=True)
        truth = [{"bbox_2d": box, "label": label} for box, label in pairs]
        detects = item.answer is None
        ratio = {"iou_max_label_first": 1.0, "iou_max_iou_first": 0.0, "iou_completeness": 0.3}
        ratio |= {"map": 0.0, "map50": 0.0, "map75": 0.0}
        model = {
            "answer": "" if detects else item.answer,
            "ground_truth": f"<answer> {truth if detects else item.answer} </answer>",
            "accuracy_ratio": 1.0,
            "format_ratio": 0.1,
            "verifier": "detection" if detects else "mathverify",
            "verifier_parm": {"det_verifier_normalized": detects, "det_reward_ratio": ratio},
        }
        rows.append(
            {
                "data_source": "drawn",
                "images": embedded(item),
                "prompt": [{"role": "user", "content": asked(item)}],
                "ability": "detection" if detects else "math",
                "reward_model": model,
                "extra_info": {"id": str(number), "image_path": item.name},
            }
        )
    return put_parquet(folder / "train_detection_drawn_3.parquet", rows)


def video_r1(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "drawn", items)
    rows = []
    for number, item in enumerate(items):
        row = {
            "problem_id": number,
            "problem": item.question,
            "data_type": item.kind,
            "options": [],
        }
        row |= {"path": f"./drawn/{item.name}", "data_source": "drawn", "process": ""}
        solution = f"<answer>{item.answer}</answer>"
        numerical = "number" in truth_of(item).stated()
        row |= {"problem_type": "numerical" if numerical else "free-form", "solution": solution}
        rows.append(row)
    return put_json(folder / "Drawn-260k.json", rows)


def gui_r1(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    rows = [
        {"id": f"drawn_{number}", "image": item.name, "instruction": item.phrase}
        | {"history": "None", "task_type": "low", "gt_action": "click"}
        | {"gt_bbox": [v / item.size[i % 2] for i, v in enumerate(item.boxes[0])]}
        | {"gt_input_text": "no input text"}
        for number, item in enumerate(items)
    ]
    return put_json(folder / "train.json", rows)


def asked_of_gui_r1(item: Item) -> str:
    return (
        f"In this UI screenshot, continue the command '{item.phrase}' after the actions 'None'. "
        "Give the next action (one of click), where a click goes, and as its value the text or the "
        "direction that it needs."
    )


def click(item: Item) -> Truth:
    return replace(truth_of(item, labels=False), fields={"action": "click"})


def vlmevalkit(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    rows = []
    for number, item in enumerate(items):
        shown = [base64.b64encode(content).decode() for _, content in item.media]
        image = shown[0] if len(shown) == 1 else str(shown)
        row = {"index": number, "image": image, "question": item.question, "answer": item.answer}
        rows.append(row | {"category": "shapes", "split": "dev"})
    return put_tsv(folder / "Drawn.tsv", rows)


def vlmevalkit_paths(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "images", items)
    rows = []
    for number, item in enumerate(items):
        names = [f"images/{name}" for name, _ in item.media]
        path = names[0] if len(names) == 1 else str(names)
        rows.append(
            {"index": number, "image_path": path, "question": item.question, "answer": item.answer}
        )
    return put_tsv(folder / "Drawn.tsv", rows)


def put_tsv(file: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return {"path": str(file)}


def selected_rows(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "rows_media", items)
    rows = [
        {
            "id": f"drawn-{number}",
            "question": item.question,
            PLURAL[item.kind]: [f"rows_media/{name}" for name, _ in item.media],
            "truth": to_json({k: v for k, v in truth_of(item).stated().items() if v is not False}),
            "selected_from": {"run": "runs/mine", "source": "drawn", "step": number},
        }
        for number, item in enumerate(items)
    ]
    return put_json(folder / "rows.jsonl", rows)


LABELLED = ("box", "boxes")

CHATS = (
    Form("chat messages, JSONL", "messages", messages, kinds=ALL_MEDIA, several=True),
    Form("LLaVA conversations, JSON", "llava", llava),
    Form("TRL prompt and solution, Parquet", "trl", trl),
    Form("ms-swift grounding, JSONL", "ms_swift", ms_swift, LABELLED),
    Form("LLaMA-Factory ShareGPT, JSON", "sharegpt", sharegpt, kinds=ALL_MEDIA, several=True),
    Form("LLaMA-Factory Alpaca, JSON", "alpaca", alpaca, kinds=ALL_MEDIA, several=True),
    Form("VLM-R1, JSON", "vlm_r1", vlm_r1_json, ("box",), labels=False),
    Form("VLM-R1, JSONL", "vlm_r1", vlm_r1_jsonl, several=True),
    Form("EasyR1, Parquet", "easyr1", easyr1, several=True),
    Form("verl, Parquet", "verl", verl, several=True),
    Form("V-Triune, Parquet", "v_triune", v_triune, several=True),
    Form("Video-R1, JSON", "video_r1", video_r1, ("answer",), kinds=("image", "video")),
    Form(
        "GUI-R1, JSON",
        "gui_r1",
        gui_r1,
        ("box",),
        prompt=asked_of_gui_r1,
        keeps_prompt=False,
        truth=click,
    ),
    Form("VLMEvalKit, TSV with base64", "vlmevalkit", vlmevalkit, ("answer",), several=True),
)
MORE_CHATS = (
    Form("VLM-R1, YAML of data files", "vlm_r1", vlm_r1_yaml, ("box",), labels=False),
    Form("LLaMA-Factory dataset_info.json", "dataset_info", dataset_info, several=True),
    Form(
        "VLMEvalKit, TSV with image_path", "vlmevalkit", vlmevalkit_paths, ("answer",), several=True
    ),
    Form("rows of a run", "selected_rows", selected_rows, kinds=ALL_MEDIA, several=True),
)
