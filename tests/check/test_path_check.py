"""`vlmrl data check PATH`: its config reads the same rows, and the space of boxes is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from vlmrl.config import parse
from vlmrl.data.source import open_config
from vlmrl.features.check.data_check import check_and_print
from vlmrl.features.check.path_check import CheckedPath, is_path, open_path

SIZE = (640, 480)
BOXES = [[10, 20, 600, 470], [64, 48, 320, 240], [300, 5, 630, 100]]


def write_chats(file: Path, boxes: list[list[float]]) -> None:
    """Write questions whose replies are boxes as they are given, and their images."""
    (file.parent / "images").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", SIZE, "white").save(file.parent / "images/a.png")
    rows = []
    for box in boxes:
        reply = json.dumps([{"bbox_2d": box, "label": "cell"}])
        turns = [{"role": "user", "content": "<image>Where is the cell?"}]
        turns.append({"role": "assistant", "content": reply})
        rows.append({"messages": turns, "images": ["images/a.png"]})
    file.write_text(json.dumps(rows))


def scaled(width: float, height: float) -> list[list[float]]:
    """BOXES in a space of this extent."""
    scale = [width / SIZE[0], height / SIZE[1]] * 2
    return [[round(n * s, 5) for n, s in zip(box, scale, strict=True)] for box in BOXES]


def config_in(checked: CheckedPath) -> Any:
    """What `after` says as a person would paste it."""
    start = checked.after.index("data:")
    tree = yaml.safe_load("\n".join(checked.after[start:]))
    return parse({**tree, "model": {"path": "somewhere"}, "rewards": ["box_iou"]})


@pytest.mark.parametrize(
    ("space", "extent"), [("pixel", SIZE), ("norm1000", (1000, 1000)), ("norm1", (1, 1))]
)
def test_the_space_of_boxes_is_told_and_the_printed_source_reads_the_same(
    tmp_path: Path, space: str, extent: tuple[float, float]
) -> None:
    write_chats(tmp_path / "train.json", scaled(*extent))
    write_chats(tmp_path / "val.json", scaled(*extent)[:1])
    checked = open_path(str(tmp_path), {}, None)
    assert "layout messages" in checked.before[0] and "splits: train, val" in checked.before[0]
    assert f"likely {space}, which is taken here" in checked.before[1]
    assert checked.after[0] == "for a config (val is evaluated):"
    pasted = open_config(config_in(checked))
    assert [(s.split, len(s.rows)) for s in pasted] == [("train", 3), ("val", 1)]
    for mine, theirs in zip(checked.sources, pasted, strict=True):
        for row in range(len(mine.rows)):
            truth = mine.sample(row).truth
            assert truth == theirs.sample(row).truth
            (box,) = truth.boxes or ()
            expected = [n / s for n, s in zip(BOXES[row], SIZE * 2, strict=True)]
            assert box.xyxy == pytest.approx(expected, abs=2e-5)


def test_a_space_that_nothing_fits_is_not_chosen(tmp_path: Path) -> None:
    write_chats(tmp_path / "train.json", [[900, 900, 5000, 5000]] * 3)
    checked = open_path(str(tmp_path), {}, None)
    assert checked.before[1].endswith("state box_space")


def test_a_file_alone_keeps_a_part_for_the_evaluation(tmp_path: Path) -> None:
    rows = [{"id": n, "question": f"How many of {n}?", "answer": str(n)} for n in range(200)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    checked = open_path(str(file), {}, None)
    assert checked.before == ["card records"]
    train, held_out = open_config(config_in(checked))
    ids = [{s.sample(n).id for n in range(len(s.rows))} for s in (train, held_out)]
    assert not ids[0] & ids[1] and len(ids[0] | ids[1]) == 200 and 5 < len(ids[1]) < 40


def test_a_path_is_told_from_a_card_and_a_split(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert is_path(str(tmp_path / "photos")) and is_path("example:cards")
    assert not is_path("shapes") and not is_path("shapes:val")
    assert not is_path(f"{tmp_path}/photos:val")


def test_media_that_are_missing_are_counted(tmp_path: Path) -> None:
    write_chats(tmp_path / "train.json", scaled(*SIZE))
    text = (tmp_path / "train.json").read_text()
    (tmp_path / "train.json").write_text(text.replace("images/a.png", "images/b.png", 1))
    checked = open_path(str(tmp_path), {"box_space": "norm1000"}, None)
    lines: list[str] = []
    assert check_and_print(checked.sources, say=lines.append) == 1
    assert any(line.endswith("3 rows, 2 good, 1 bad") for line in lines)
    missing = str(tmp_path / "images/b.png")
    assert f"media: 2 found, 1 missing, the first is {missing}" in lines
    assert any("box_space: norm1000" in line for line in checked.after)
