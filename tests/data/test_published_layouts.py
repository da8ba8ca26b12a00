"""Layouts as their authors publish them: variants, look-alikes, rows with rewards, what is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from helpers.drawn import IMAGES, draw, png
from helpers.layout_writers import v_triune
from vlmrl.config import SourceConfig
from vlmrl.data.layout import DataPlace
from vlmrl.data.layout_recognition import matches
from vlmrl.data.source import open_source
from vlmrl.errors import UserError
from vlmrl.schema import Box, Point, Sample
from vlmrl.truths.keypoints import Instance


def samples(path: Path, split: str = "train", **options: Any) -> list[Sample]:
    options = {"path": str(path), **options}
    source = open_source(SourceConfig(card="auto", options=options, split=split))
    return [source.sample(index) for index in range(len(source.rows))]


def recognised(path: Path) -> list[str]:
    return [match.name for match in matches(DataPlace(path))]


def write(file: Path, content: Any) -> Path:
    lines = content if file.suffix != ".jsonl" else None
    text = json.dumps(lines) if lines is not None else "\n".join(map(json.dumps, content))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def chat(value: Any, **more: Any) -> dict[str, Any]:
    asked = {"from": "human", "value": "<image>\nHow many discs are there?"}
    return {"image": "a.png", "conversations": [asked, {"from": "gpt", "value": value}], **more}


# ---------------------------------------------------------------------------------- VLM-R1 and LLaVA


@pytest.mark.parametrize(
    ("name", "row", "layout"),
    [
        ("a.jsonl", chat("1", id="997bb945"), "llava"),
        ("a.json", chat("1", id="997bb945"), "llava"),
        ("a.json", chat("1", id=1), "llava"),
        ("a.jsonl", chat("1", id=1), "vlm_r1"),
        ("a.json", chat([4, 6, 30, 40], id="a"), "vlm_r1"),
        ("a.json", chat("1", id="a", accu_reward_method="default"), "vlm_r1"),
    ],
)
def test_chats_of_llava_and_of_vlm_r1_are_told_apart(
    tmp_path: Path, name: str, row: dict[str, Any], layout: str
) -> None:
    draw(tmp_path)
    file = write(tmp_path / name, [row])
    assert recognised(file) == [layout]
    (sample,) = samples(file)
    assert sample.truth.text == ("1",) or sample.truth.boxes == (
        Box(4 / 64, 6 / 48, 0.46875, 40 / 48),
    )


REC = {
    "height": 48, "width": 64, "id": 0, "original_id": 1719310, "dataset_name": "refcoco",
    "iscrowd": 0, "image_id": 0, "category_id": 1, "bbox_list": [[4, 6, 30, 40]],
    "text_type": "caption", "image": "a.png", "normal_caption": "the disc",
    "problem": "Please provide the bounding box coordinate of the region this sentence describes: "
    "the disc.",
    "solution": [4, 6, 30, 40], "normalized_solution": [62, 125, 468, 833],
}  # fmt: skip
"""A row of VLM-R1's `refcoco_train.json`, as its issue 11 shows it."""


def test_the_json_of_vlm_r1_and_the_yaml_that_lists_it(tmp_path: Path) -> None:
    draw(tmp_path)
    write(tmp_path / "rec_jsons/refcoco_train.json", [REC, {**REC, "id": 1}])
    write(tmp_path / "rec_jsons/lisa.jsonl", [chat([10, 10, 30, 30], id=2, image="b.png")])
    (tmp_path / "rec.yaml").write_text(
        "datasets:\n"
        "    - json_path: /data10/somebody/rec_jsons/refcoco_train.json\n"
        "      sampling_strategy: first:50%\n"
        "    - json_path: /data10/somebody/rec_jsons/lisa.jsonl\n"
    )
    assert recognised(tmp_path / "rec.yaml") == ["vlm_r1"]
    one, two = samples(tmp_path / "rec.yaml")
    assert one.text == REC["problem"] and one.truth.boxes == (
        Box(4 / 64, 6 / 48, 30 / 64, 40 / 48),
    )
    assert two.truth.boxes == (Box(10 / 80, 10 / 60, 30 / 80, 30 / 60),)
    text = (tmp_path / "rec.yaml").read_text().replace("first:50%", "random:50%")
    (tmp_path / "rec.yaml").write_text(text)
    with pytest.raises(UserError, match="key 'sampling_strategy': expected all, first:N"):
        samples(tmp_path / "rec.yaml")


def test_the_reward_method_of_a_row_is_its_verifier(tmp_path: Path) -> None:
    draw(tmp_path)
    asked = "<image>Which? (A) disc (B) square"
    rows = [chat("1", accu_reward_method="math"), chat("B", accu_reward_method="mcq"), chat("1")]
    rows[1]["conversations"][0]["value"] = asked
    one, two, three = samples(write(tmp_path / "a.json", rows))
    assert [r.verifier for r in one.rewards] == ["math", "format"]
    assert [r.verifier for r in two.rewards] == ["choice", "format"]
    assert two.truth.choice == "B" and two.truth.options == ("disc", "square")
    assert three.rewards == ()


# ------------------------------------------------------------------------------------------ V-Triune


def v_triune_rows(folder: Path, **reward_model: Any) -> Path:
    v_triune.write(folder)
    rows = pyarrow.parquet.read_table(folder / "train.parquet").to_pylist()
    rows[1]["reward_model"] |= reward_model
    v_triune.put(folder, rows)
    return folder / "train.parquet"


def test_the_parameters_of_v_triune_are_options_of_detection(tmp_path: Path) -> None:
    first = samples(v_triune_rows(tmp_path))[0].rewards[0]
    assert (first.verifier, first.weight) == ("detection", 1.0)
    options = json.loads(first.options)
    assert options["matching"] == "label_first" and options["cut"] and options["penalty"] == 0.6
    assert options["weights"] == pytest.approx({"truth_iou": 0.7, "completeness": 0.3})
    assert options["threshold"] == {"schedule": [[0, 0.85], [0.1, 0.95], [0.25, 0.99]]}
    ratio = {"map": 0.5, "map50": 0.5}
    path = v_triune_rows(tmp_path, verifier_parm={"det_reward_ratio": ratio})
    options = json.loads(samples(path)[1].rewards[0].options)
    assert options["weights"] == {"map": 0.5, "ap50": 0.5} and "matching" not in options


@pytest.mark.parametrize(
    ("reward_model", "message"),
    [
        (
            {"verifier": "os.system"},
            "key 'reward_model.verifier': expected mathverify or detection",
        ),
        ({"accuracy_ratio": -1.0}, "key 'reward_model.accuracy_ratio': expected a weight"),
        (
            {
                "verifier_parm": {
                    "det_reward_ratio": {"iou_max_label_first": 1, "iou_max_iou_first": 1}
                }
            },
            "det_reward_ratio': expected one of iou_max_label_first, iou_max_iou_first above 0",
        ),
        (
            {"verifier_parm": {"det_reward_ratio": {"map": 3}}},
            "expected a number from 0 to 1, got 3",
        ),
        (
            {"verifier_parm": {"verifier_style": "model"}},
            "verifier_style': expected rule, got 'model'",
        ),
    ],
)
def test_verifiers_of_rows_are_checked_when_a_split_is_opened(
    tmp_path: Path, reward_model: dict[str, Any], message: str
) -> None:
    path = v_triune_rows(tmp_path, **reward_model)
    with pytest.raises(UserError, match=r"train\.parquet row 1: .*" + message):
        open_source(SourceConfig(card="auto", options={"path": str(path)}))


# ---------------------------------------------------------------------------------- annotation tools


def test_json_min_of_label_studio_is_read_and_brushes_are_refused(tmp_path: Path) -> None:
    draw(tmp_path)
    region = {"x": 6.25, "y": 12.5, "width": 50, "height": 50, "rotation": 0}
    region |= {"original_width": 64, "original_height": 48, "rectanglelabels": ["disc"]}
    corners = {"points": [[10, 10], [50, 10], [50, 50]], "polygonlabels": ["disc"]}
    row = {"image": "/data/upload/1/a.png", "id": 1, "tag": [region, corners], "quality": "good"}
    file = write(tmp_path / "min.json", [{**row, "annotator": 1, "lead_time": 4.2}])
    assert recognised(file) == ["label_studio"]
    (sample,) = samples(file)
    assert sample.truth.boxes == (
        Box(0.0625, 0.125, 0.5625, 0.625, "disc"),
        Box(0.1, 0.1, 0.5, 0.5, "disc"),
    )
    brush = {"format": "rle", "rle": [0, 1, 2], "brushlabels": ["disc"]}
    write(file, [{**row, "tag": [brush]}])
    with pytest.raises(UserError, match=r"item 0: key 'type': brush masks .* COCO's format"):
        samples(file)


def test_the_pickles_of_refcoco_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "refs(unc).p").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    write(tmp_path / "instances.json", {"images": [], "annotations": [], "categories": []})
    for path in (tmp_path, tmp_path / "refs(unc).p"):
        assert recognised(path) == ["refcoco"]
        with pytest.raises(
            UserError, match=r"refs\(unc\)\.p: a pickle can run code .* never loaded"
        ):
            samples(path)


def test_splits_of_the_hub_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("val", "testA"):
        row = {
            "question_id": "0",
            "image": {"bytes": png(IMAGES[0]), "path": None},
            "question": "?",
        }
        row |= {"answer": ["the disc"], "segmentation": [4.0, 6.0], "bbox": [4.0, 6.0, 26.0, 34.0]}
        row |= {"iscrowd": 0, "file_name": "COCO_train2014_000000581857_16.jpg"}
        file = tmp_path / f"data/{split}-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    assert DataPlace(tmp_path).splits == ("val", "testA")
    (sample,) = samples(tmp_path, "testA")
    assert sample.truth.boxes == (Box(4 / 64, 6 / 48, 30 / 64, 40 / 48),)


def test_keypoints_of_yolo_pose(tmp_path: Path) -> None:
    draw(tmp_path / "images/train")
    (tmp_path / "labels/train").mkdir(parents=True)
    (tmp_path / "labels/train/a.txt").write_text("0 0.5 0.5 0.2 0.4 0.4 0.3 2 0 0 0\n")
    (tmp_path / "data.yaml").write_text(
        "path: ../datasets/tiger\ntrain: images/train\ntest:\nkpt_shape: [2, 3]\nnames:\n  0: tiger\n"
    )
    first = samples(tmp_path)[0]
    spots = ((0.4, 0.3, 2), (0.0, 0.0, 0))
    (found,) = first.truth.value("keypoints")
    assert found == Instance(spots, pytest.approx(0.08), "tiger")
    (tmp_path / "labels/train/a.txt").write_text("0 0.5 0.5 0.2 0.4 0.4 0.3\n")
    with pytest.raises(
        UserError, match=r"a\.txt: line 1: expected 10 numbers, as kpt_shape says, got 6"
    ):
        samples(tmp_path)


def test_a_split_of_yolo_may_list_images_or_folders(tmp_path: Path) -> None:
    draw(tmp_path / "images/one")
    (tmp_path / "one.txt").write_text("/content/somewhere/images/one/b.png\n./images/one/a.png\n")
    names = "names: [disc, square]\n"
    (tmp_path / "data.yaml").write_text(f"train: one.txt\nval: [images/one, one.txt]\n{names}")
    listed = [sample.id for sample in samples(tmp_path)]
    assert listed == ["images/one/b.png", "images/one/a.png"]
    assert len(samples(tmp_path, "val")) == 5


def test_points_of_cvat_and_tracks_of_a_video(tmp_path: Path) -> None:
    draw(tmp_path / "images")
    spots = (
        '<points label="wheel" points="8.00,6.00;16.00,24.00" occluded="0" z_order="5">\n</points>'
    )
    box = '<box label="plate" xtl="4.0" ytl="6.0" xbr="30.0" ybr="40.0" occluded="0"></box>'
    image = f'<image id="0" name="a.png" width="64" height="48">\n{box}{spots}<tag label="good"/></image>'
    text = f'<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version>{image}'
    file = tmp_path / "annotations.xml"
    file.write_text(f'{text}<image id="1" name="b.png" width="80" height="60"/></annotations>')
    one, two = samples(tmp_path, task="points")
    assert (
        one.truth.points == (Point(0.125, 0.125, "wheel"), Point(0.25, 0.5, "wheel"))
        and one.meta["others"] == 2
    )
    assert two.truth.none
    assert [len(s.truth.boxes or ()) for s in samples(tmp_path)] == [1, 0]
    file.write_text('<annotations><track id="0" label="car"><box frame="0"/></track></annotations>')
    with pytest.raises(UserError, match="got tracks of a video: export as CVAT for images"):
        samples(tmp_path)


def test_an_image_of_labelme_lies_beside_its_json_or_in_it(tmp_path: Path) -> None:
    shape = {"label": "disc", "points": [[4, 6], [30, 40]], "group_id": None, "flags": {}}
    tree = {"version": "5.5.0", "flags": {}, "shapes": [{**shape, "shape_type": "rectangle"}]}
    tree |= {"imagePath": "a.png", "imageHeight": 48, "imageWidth": 64}
    for folder in ("one", "two"):
        draw(tmp_path / folder)
        write(tmp_path / folder / "a.json", {**tree, "imageData": None})
    assert [s.media[0].path for s in samples(tmp_path)] == [
        str(tmp_path / "one/a.png"),
        str(tmp_path / "two/a.png"),
    ]
    inside = base64.b64encode(png(IMAGES[0])).decode()
    write(tmp_path / "alone/a.json", {**tree, "imagePath": "..\\gone.png", "imageData": inside})
    (sample,) = samples(tmp_path / "alone")
    assert sample.media[0].data == png(IMAGES[0])


@pytest.mark.parametrize(("low", "x1"), [(1, 0.0), (0, 0.0), (4, 3 / 64)])
def test_pixels_of_voc_count_from_1_but_where_a_box_begins_at_0(
    tmp_path: Path, low: int, x1: float
) -> None:
    draw(tmp_path)
    box = f"<xmin>{low}</xmin><ymin>6</ymin><xmax>32</xmax><ymax>40</ymax>"
    entry = f"<object><name>disc</name><bndbox>{box}</bndbox></object>"
    (tmp_path / "a.xml").write_text(f"<annotation><filename>a.png</filename>{entry}</annotation>")
    (sample,) = samples(tmp_path)
    top = 6 / 48 if low == 0 else 5 / 48
    assert sample.truth.boxes == (Box(x1, top, 0.5, 40 / 48, "disc"),)


def test_boxes_of_ms_swift_are_in_the_image_that_image_id_says(tmp_path: Path) -> None:
    draw(tmp_path)
    turns = [{"role": "user", "content": "<image><image>Find the <ref-object>."}]
    turns += [{"role": "assistant", "content": "<bbox><bbox>"}]
    objects = {"ref": ["disc"], "bbox": [[40, 20, 72, 52], [10, 10, 30, 30]], "image_id": [1, 1]}
    row = {"messages": turns, "images": ["a.png", "b.png"], "objects": objects}
    (sample,) = samples(write(tmp_path / "train.jsonl", [row]))
    assert sample.truth.image == 1 and sample.text == "Find the disc."
    assert sample.truth.boxes is not None and sample.truth.boxes[0] == Box(
        0.5, 1 / 3, 0.9, 52 / 60, "disc"
    )
    write(tmp_path / "train.jsonl", [{**row, "objects": {**objects, "image_id": [0, 1]}}])
    with pytest.raises(UserError, match="expected places in one image, got"):
        samples(tmp_path / "train.jsonl")


def test_what_dataset_info_cannot_give_is_said(tmp_path: Path) -> None:
    info = {
        "hub": {"hf_hub_url": "somebody/something"},
        "pairs": {"file_name": "pairs.json", "ranking": True},
        "away": {"file_name": "/home/somebody/away.json"},
    }
    write(tmp_path / "dataset_info.json", info)
    assert recognised(tmp_path) == recognised(tmp_path / "dataset_info.json") == ["dataset_info"]
    for split, message in (
        ("hub", "data set 'hub': expected file_name"),
        ("pairs", "preference data have no right answer"),
        ("away", "key 'away.file_name': expected a path below"),
        ("train", "no split 'train'; there is: hub, pairs, away"),
    ):
        with pytest.raises(UserError, match=message):
            samples(tmp_path, split)
