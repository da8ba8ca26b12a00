"""`vlmrl init`: a first config from flags or answers; it is valid, and on a CPU it trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from helpers.daily import marked
from vlmrl.config import tree

SIZES = {"train": [(64, 48), (80, 60), (56, 56)], "val": [(60, 40), (48, 64)]}


def vlmrl(folder: Path, *arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vlmrl", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=folder, input=answers, capture_output=True, text=True, env=environment
    )


def write_images(folder: Path, split: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(SIZES[split]):
        Image.new("RGB", size, "white").save(folder / f"{number}.png")


def write_coco(home: Path) -> None:
    for split, sizes in SIZES.items():
        write_images(home / f"{split}2017", split)
        images = [
            {"id": n, "file_name": f"{n}.png", "width": w, "height": h}
            for n, (w, h) in enumerate(sizes)
        ]
        boxes = [
            {"id": n, "image_id": n, "category_id": 3, "bbox": [4, 5, 20, 12 + n], "iscrowd": 0}
            for n in range(len(sizes))
        ]
        kinds = [{"id": 3, "name": "disc"}]
        labels = {"images": images, "annotations": boxes, "categories": kinds}
        file = home / f"annotations/instances_{split}2017.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(labels))


def write_csv(home: Path) -> None:
    write_images(home / "images", "train")
    lines = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
    lines += [f"{n}.png,{w},{h},disc,1,2,31,22" for n, (w, h) in enumerate(SIZES["train"])]
    (home / "train.csv").write_text("\n".join(lines) + "\n")


def write_yolo(home: Path) -> None:
    for split, sizes in SIZES.items():
        write_images(home / "images" / split, split)
        (home / "labels" / split).mkdir(parents=True)
        for number in range(len(sizes)):
            (home / "labels" / split / f"{number}.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    text = "path: .\ntrain: images/train\nval: images/val\nnames: {0: disc}\n"
    (home / "data.yaml").write_text(text)


def write_answers(home: Path) -> None:
    for split, sizes in SIZES.items():
        write_images(home / split, split)
        rows = [
            {"file": f"{split}/{n}.png", "question": "How many discs?", "label": f"{n} discs"}
            for n in range(len(sizes))
        ]
        (home / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


FORMS = {
    "coco": (write_coco, "boxes", "detection", "auto"),
    "csv": (write_csv, "boxes", "detection", "auto"),
    "yolo": (write_yolo, "boxes", "detection", "auto"),
    "answers": (write_answers, "answer", "exact", "table"),
}


def config_of(folder: Path, name: str = "mine.yaml") -> Any:
    return yaml.safe_load((folder / name).read_text())


@pytest.mark.slow
@pytest.mark.parametrize("form", marked(FORMS, ["yolo"]))
def test_what_is_written_for_a_cpu_trains(tmp_path: Path, form: str) -> None:
    """Data in four forms; of the CSV, whose rows are too few to hold some out, nothing is evaluated."""
    write, task, verifier, card = FORMS[form]
    write(tmp_path / form)
    ran = vlmrl(tmp_path, "init", form, "--task", task, "--gpus", "0", "--yes")
    assert ran.returncode == 0, ran.stderr
    config = config_of(tmp_path)
    (source,) = config["data"]["train"]
    assert (source["card"], source["name"], config["rewards"][0]) == (card, form, verifier)
    assert ("evaluation" in config) and (config["evaluation"] is None) == (form == "csv")
    assert "model" in config and config["model"]["build"] == {"family": "qwen2_5_vl"}
    assert all("#" in line for line in (tmp_path / "mine.yaml").read_text().splitlines()[:3])
    keys = ["sft.max_steps=2", "sft.batch_size=2", "sft.decay_steps=0", "rollout.max_tokens=8"]
    trained = vlmrl(tmp_path, "train", "mine.yaml", "run.steps=1", *keys, "run.report=false")
    assert trained.returncode == 0, trained.stderr
    steps = (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("step") == 1 for line in steps)
    if form == "coco":  # all of its rows ask the same, and so does who says nothing else
        asked = ("predict", "runs/mine", "coco/val2017", "--max-tokens", "4", "--out", "answers")
        answered = vlmrl(tmp_path, *asked)
        assert answered.returncode == 0, answered.stderr
        lines = (tmp_path / "answers/answers.jsonl").read_text().splitlines()
        (question,) = {json.loads(line)["question"] for line in lines}
        assert len(lines) == 2 and question == "Detect all objects of these classes: disc."
        assert f"asked as the run's data ask: {question}" in answered.stdout


@pytest.mark.nightly
def test_answers_in_a_terminal_are_those_of_flags(tmp_path: Path) -> None:
    """A wrong answer is asked again; an empty one takes what is proposed."""
    write_coco(tmp_path / "photos")
    answers = "photos\nholes\nboxes\n0\n\n"
    asked = vlmrl(tmp_path, "init", "--out", "asked.yaml", answers=answers)
    assert asked.returncode == 0, asked.stderr
    assert "expected one of boxes, got holes" in asked.stdout
    assert "not planned" in asked.stdout and "asked.yaml: valid" in asked.stdout
    flags = ("--task", "boxes", "--gpus", "0", "--model", "small", "--out", "flags.yaml")
    assert vlmrl(tmp_path, "init", "photos", *flags).returncode == 0
    configs = [config_of(tmp_path, f"{name}.yaml") for name in ("asked", "flags")]
    assert [each["run"].pop("name") for each in configs] == ["asked", "flags"]
    assert configs[0] == configs[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "nobody to ask; say DATA"),
        (("photos",), "nobody to ask; say --task boxes, or --yes"),
        (("photos", "--task", "boxes"), "nobody to ask; say --gpus 0"),
        (("photos", "--task", "boxes", "--gpus", "2"), "nobody to ask; say --model"),
        (("photos", "--task", "count", "--yes"), "--task count: the rows state no truth for it"),
        (("elsewhere", "--yes"), "elsewhere: expected a data file or folder"),
        (("photos", "--yes", "--out", "kept.yaml"), "kept.yaml is there already"),
    ],
)
def test_without_a_terminal_a_missing_answer_is_a_line(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    write_coco(tmp_path / "photos")
    (tmp_path / "kept.yaml").write_text("mine\n")
    ran = vlmrl(tmp_path, "init", *flags)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1 and message in ran.stderr
    assert (tmp_path / "kept.yaml").read_text() == "mine\n"
    assert [file.name for file in tmp_path.glob("*.yaml")] == ["kept.yaml"]


def write_chats(home: Path) -> None:
    """Write boxes of which nothing says the space: up to 900 of an image of 64 x 48 pixels."""
    write_images(home / "images", "train")
    answer = '{"bbox_2d": [90, 90, 900, 900]}'
    rows = [
        {
            "id": n,
            "image": f"images/{n}.png",
            "conversations": [
                {"from": "human", "value": "<image>\nWhere is the disc?"},
                {"from": "gpt", "value": answer},
            ],
        }
        for n in range(3)
    ]
    (home / "train.json").write_text(json.dumps(rows))


def test_a_space_is_said_and_asked(tmp_path: Path) -> None:
    write_chats(tmp_path / "chats")
    flags = ("init", "chats", "--task", "boxes", "--gpus", "0", "--model", "small")
    silent = vlmrl(tmp_path, *flags)
    assert silent.returncode == 2 and "say -o box_space=norm1000" in silent.stderr
    asked = vlmrl(tmp_path, *flags, answers="\n")
    assert asked.returncode == 0, asked.stderr
    assert "no space is stated for places" in asked.stdout
    (source,) = config_of(tmp_path)["data"]["train"]
    assert source["options"]["box_space"] == "norm1000"


def test_the_space_of_a_table_is_never_proposed(tmp_path: Path) -> None:
    write_images(tmp_path, "train")
    rows = [{"file": f"{n}.png", "question": "Where?", "bbox": [1, 2, 30, 40]} for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = ("init", "rows.jsonl", "--task", "boxes", "--gpus", "0", "--yes")
    silent = vlmrl(tmp_path, *flags)
    assert silent.returncode == 2 and "-o box_space=" in silent.stderr
    stated = vlmrl(tmp_path, *flags, "-o", "box_space=pixel")
    assert stated.returncode == 0, stated.stderr
    (source,) = config_of(tmp_path)["data"]["train"]
    columns = {"image": "file", "question": "question", "boxes": "bbox"}
    assert source["options"] == {"path": "rows.jsonl", "columns": columns, "box_space": "pixel"}


@pytest.mark.nightly
def test_what_is_said_for_cards_is_what_plan_counts(tmp_path: Path) -> None:
    """Adapters on 24 GB: `vlmrl plan` of the file that was written counts the same and finds that it fits."""
    write_coco(tmp_path / "photos")
    flags = ("--task", "boxes", "--model", "Qwen/Qwen2.5-VL-3B-Instruct", "--gpus", "1")
    ran = vlmrl(tmp_path, "init", "photos", *flags, "--memory", "24")
    assert ran.returncode == 0, ran.stderr
    config = config_of(tmp_path)
    assert config["model"]["lora"] == {"rank": 32} and config["optimizer"]["lr"] == 1e-5
    assert config["engine"]["name"] == "vllm" and config["distributed"] == {"strategy": "ddp"}
    said = re.search(r"planned, not measured: (\S+ of \S+ GiB) of a card, (\d+) s", ran.stdout)
    assert said is not None
    card = ("--gpus", "1", "--gpu", "rtx4090", "--memory", "24", "--pixels", str(80 * 60))
    planned = vlmrl(tmp_path, "plan", "mine.yaml", *card, "--show", "0")
    assert planned.returncode == 0, planned.stdout
    memory = re.search(r"memory +(\d+\.\d+) of (\S+ GiB)", planned.stdout)
    step = re.search(r"a step +(\d+\.\d+) s", planned.stdout)
    assert memory is not None and step is not None
    assert said[1] == f"{float(memory[1]):.1f} of {memory[2]}"
    assert said[2] == f"{float(step[1]):.0f}"


def test_a_model_that_no_plan_knows_gets_a_preset(tmp_path: Path) -> None:
    write_coco(tmp_path / "photos")
    flags = ("--task", "boxes", "--model", "someone/theirs", "--gpus", "8", "--memory", "80")
    ran = vlmrl(tmp_path, "init", "photos", *flags)
    assert ran.returncode == 0, ran.stderr
    line = "plan knows nothing about someone/theirs: all weights and the preset machines/8x80gb"
    assert line in ran.stdout
    config, preset = config_of(tmp_path), tree.read("machines/8x80gb")
    assert (config["engine"], config["distributed"]) == (preset["engine"], preset["distributed"])
    assert "lora" not in config["model"]
