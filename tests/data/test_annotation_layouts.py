"""Layouts of annotation tools beside pycocotools: masks, keypoints, captions, spaces, hostile files."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from vlmrl.answers.masks import encoded
from vlmrl.config import SourceConfig
from vlmrl.data.source import Source, open_source
from vlmrl.errors import UserError
from vlmrl.schema import Sample

SIZE = (60, 80)
"""Height and width of the drawn image b.png."""


def open_layout(path: Path, split: str = "train", **options: Any) -> Source:
    options = {"path": str(path), **options}
    return open_source(SourceConfig(card="auto", options=options, split=split))


def samples(path: Path, split: str = "train", **options: Any) -> list[Sample]:
    source = open_layout(path, split, **options)
    return [source.sample(index) for index in range(len(source.rows))]


def pixels(mask: Any) -> np.ndarray:
    return coco_mask.decode(encoded(mask, SIZE))


def image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", SIZE[::-1]).save(path)
    return path


def write_coco(folder: Path, annotations: list[dict[str, Any]], **of_image: Any) -> Path:
    tree = {
        "images": [{"id": 5, "file_name": "b.png", "height": 60, "width": 80, **of_image}],
        "annotations": [{"image_id": 5, "category_id": 1, **a} for a in annotations],
        "categories": [{"id": 1, "name": "person"}],
    }
    for number, annotation in enumerate(tree["annotations"], start=1):
        annotation["id"] = number
    image(folder / "b.png")
    file = folder / "train.json"
    file.write_text(json.dumps(tree))
    return file


# ------------------------------------------------------------------------------------------ COCO


RING = [10.0, 10.0, 40.5, 12.25, 33.0, 41.0]
SECOND = [50.0, 20.0, 70.0, 20.0, 70.0, 50.0, 50.0, 50.0]
RUNS = {"size": [60, 80], "counts": [600, 30, 30, 30, 4110]}


def test_masks_and_boxes_are_those_of_pycocotools(tmp_path: Path) -> None:
    square = np.zeros(SIZE, np.uint8, order="F")
    square[10:20, 30:50] = 1
    packed = coco_mask.encode(square)
    packed = {"size": packed["size"], "counts": packed["counts"].decode()}
    shapes = [[RING], [RING, SECOND], RUNS, packed]
    file = write_coco(tmp_path, [{"segmentation": s, "bbox": [1, 2, 30, 4.5]} for s in shapes])
    (masked,) = samples(file, task="segmentation")
    right = COCO(str(file))
    assert len(masked.truth.masks or ()) == len(shapes)
    for mask, annotation in zip(masked.truth.masks or (), right.anns.values(), strict=True):
        assert np.array_equal(pixels(mask), right.annToMask(annotation))
    (boxed,) = samples(file)
    for box, annotation in zip(boxed.truth.boxes or (), right.anns.values(), strict=True):
        x, y, width, height = annotation["bbox"]
        found = (box.x1 * 80, box.y1 * 60, (box.x2 - box.x1) * 80, (box.y2 - box.y1) * 60)
        assert found == pytest.approx((x, y, width, height))
        assert box.label == right.cats[annotation["category_id"]]["name"]


def test_crowds_are_left_out_and_counted_and_an_empty_image_shows_nothing(tmp_path: Path) -> None:
    (crowd,) = samples(write_coco(tmp_path, [{"bbox": [0, 0, 9, 9], "iscrowd": 1}]))
    assert crowd.truth.none and crowd.truth.boxes == ()
    assert crowd.meta["crowds"] == 1


def test_keypoints_and_captions_are_asked_where_the_file_holds_them(tmp_path: Path) -> None:
    spots = [8, 6, 2, 0, 0, 0, 40, 30, 1]
    file = write_coco(tmp_path, [{"keypoints": spots, "num_keypoints": 2, "area": 480}])
    (sample,) = samples(file)
    (person,) = sample.truth.value("keypoints")
    assert person.spots == ((0.1, 0.1, 2), (0.0, 0.0, 0), (0.5, 0.5, 1))
    assert person.area == pytest.approx(0.1)
    (sample,) = samples(write_coco(tmp_path, [{"caption": "A dog."}, {"caption": "One dog."}]))
    assert sample.truth.text == ("A dog.", "One dog.")


def test_lvis_names_its_image_by_an_address(tmp_path: Path) -> None:
    file = write_coco(tmp_path, [{"bbox": [1, 2, 3, 4]}])
    tree = json.loads(file.read_text())
    del tree["images"][0]["file_name"]
    tree["images"][0]["coco_url"] = "http://images.cocodataset.org/val2017/000000000005.jpg"
    file.write_text(json.dumps(tree))
    image(tmp_path / "coco/val2017/000000000005.jpg")
    (sample,) = samples(file)
    assert sample.media[0].path == str(tmp_path / "coco/val2017/000000000005.jpg")


def test_of_images_of_one_name_the_one_in_the_folder_of_the_file_s_split_is_meant(
    tmp_path: Path,
) -> None:
    file = write_coco(tmp_path, [{"bbox": [1, 2, 3, 4]}], file_name="c.png")
    image(tmp_path / "train/c.png")
    image(tmp_path / "test/c.png")
    (sample,) = samples(file)
    assert sample.media[0].path == str(tmp_path / "train/c.png")


def test_an_image_that_lies_in_two_folders_is_not_guessed(tmp_path: Path) -> None:
    file = write_coco(tmp_path, [{"bbox": [1, 2, 3, 4]}], file_name="c.png")
    image(tmp_path / "first/c.png")
    image(tmp_path / "second/c.png")
    with pytest.raises(
        UserError, match=r"image 5: key 'file_name': 'c.png' lies in several folders"
    ):
        samples(file)
    (sample,) = samples(file, root=str(tmp_path / "second"))
    assert sample.media[0].path == str(tmp_path / "second/c.png")


def test_annotations_of_no_image_are_counted(tmp_path: Path, caplog) -> None:
    file = write_coco(tmp_path, [{"bbox": [1, 2, 3, 4]}])
    tree = json.loads(file.read_text())
    tree["annotations"].append({**tree["annotations"][0], "image_id": 77})
    file.write_text(json.dumps(tree))
    (sample,) = samples(file)
    assert len(sample.truth.boxes) == 1
    assert "1 of 2 annotations are left out" in caplog.text and "77" in caplog.text


# ----------------------------------------------------------------------------------- other tools


def test_polygons_of_yolo_cvat_labelme_and_label_studio_are_one_mask(tmp_path: Path) -> None:
    corners = [(10, 12), (40, 15), (32, 48)]
    flat = [n for corner in corners for n in corner]
    rle = coco_mask.merge(coco_mask.frPyObjects([flat], *SIZE))
    shares = [(x / 80, y / 60) for x, y in corners]
    yolo, cvat, labelme, studio = (tmp_path / n for n in ("yolo", "cvat", "labelme", "studio"))
    image(yolo / "images/train/b.png")
    (yolo / "data.yaml").write_text("train: ../train/images/../images/train\nnames: {0: person}\n")
    (yolo / "labels/train").mkdir(parents=True)
    line = " ".join(str(n) for corner in shares for n in corner)
    (yolo / "labels/train/b.txt").write_text(f"0 {line}\n")
    image(cvat / "b.png")
    points = ";".join(f"{x},{y}" for x, y in corners)
    (cvat / "annotations.xml").write_text(
        f'<annotations><image name="b.png" width="80" height="60"><polygon label="person" '
        f'points="{points}"/><points label="p" points="1,1"/></image></annotations>'
    )
    image(labelme / "b.png")
    shape = {"label": "person", "points": corners, "shape_type": "polygon"}
    tree = {"shapes": [shape], "imagePath": "b.png", "imageHeight": 60, "imageWidth": 80}
    (labelme / "b.json").write_text(json.dumps(tree))
    image(studio / "upload/b.png")
    percent = [[100 * x, 100 * y] for x, y in shares]
    value = {"points": percent, "polygonlabels": ["person"]}
    result = [{"type": "polygonlabels", "value": value}, {"type": "choices", "value": {}}]
    task = {"id": 1, "data": {"img": "/data/upload/b.png"}, "annotations": [{"result": result}]}
    (studio / "tasks.json").write_text(json.dumps([task]))
    for path in (yolo, cvat, labelme, studio / "tasks.json"):
        (sample,) = samples(path, task="segmentation")
        (mask,) = sample.truth.masks or ()
        assert np.array_equal(pixels(mask), coco_mask.decode(rle)), path
        (sample,) = samples(path)
        (box,) = sample.truth.boxes or ()
        found = (box.x1, box.y1, box.x2, box.y2)
        assert found == pytest.approx((10 / 80, 12 / 60, 40 / 80, 48 / 60)), path
        assert box.label == "person"


def test_brush_masks_of_cvat_are_drawn_where_they_stand(tmp_path: Path) -> None:
    image(tmp_path / "b.png")
    mask = '<mask label="cell" rle="1, 3, 2, 2" left="10" top="20" width="4" height="2"/>'
    (tmp_path / "annotations.xml").write_text(
        f'<annotations><image name="b.png" width="80" height="60">{mask}</image></annotations>'
    )
    (sample,) = samples(tmp_path, task="segmentation")
    right = np.zeros(SIZE, np.uint8)
    right[20:22, 10:14] = [[0, 1, 1, 1], [0, 0, 1, 1]]
    assert np.array_equal(pixels((sample.truth.masks or ())[0]), right)


def test_refcoco_as_lmms_lab_copies_it(tmp_path: Path) -> None:
    image(tmp_path / "b.png")
    row = {"question_id": "1", "image": "b.png", "question": "Describe.", "iscrowd": 0}
    row |= {
        "answer": ["left man", "man in red"],
        "bbox": [8.0, 6.0, 32.0, 24.0],
        "segmentation": [],
    }
    (tmp_path / "val.jsonl").write_text(json.dumps(row) + "\n")
    (sample,) = samples(tmp_path / "val.jsonl", "val")
    (box,) = sample.truth.boxes or ()
    assert (box.x1, box.y1, box.x2, box.y2) == (0.1, 0.1, 0.5, 0.5)
    assert "Locate: left man" in sample.text
    assert sample.meta["expressions"] == ["left man", "man in red"]


def test_an_image_of_yolo_without_labels_shows_nothing(tmp_path: Path) -> None:
    importlib.import_module("helpers.layout_writers.yolo").write(tmp_path)
    (tmp_path / "labels/train/c.txt").unlink()
    assert samples(tmp_path)[2].truth.none


# --------------------------------------------------------------------------------- hostile files


BOMB = '<!DOCTYPE a [<!ENTITY x "aaaaaaaaaa"><!ENTITY y "&x;&x;&x;&x;">]>'
STEAL = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>'


@pytest.mark.parametrize("doctype", [BOMB, STEAL])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_xml_with_entities_is_refused_in_one_line(
    doctype: str, encoding: str, tmp_path: Path
) -> None:
    importlib.import_module("helpers.layout_writers.pascal_voc").write(tmp_path)
    file = tmp_path / "Annotations/b.xml"
    text = f'<?xml version="1.0" encoding="{encoding}"?>{doctype}<annotation>&x;</annotation>'
    file.write_bytes(text.encode(encoding))
    source = open_layout(tmp_path, "trainval")
    with pytest.raises(
        UserError, match=r"b\.xml: cannot be read as XML: a document type"
    ) as caught:
        source.sample(1)
    assert "\n" not in str(caught.value)
    assert source.sample(0).truth.boxes


@pytest.mark.parametrize("rle", ["", "8,x", "-1,9", "3,4", "9999999999,1"])
def test_run_lengths_that_do_not_fill_their_rectangle_are_refused(rle: str, tmp_path: Path) -> None:
    image(tmp_path / "b.png")
    mask = f'<mask label="cell" rle="{rle}" left="10" top="20" width="4" height="2"/>'
    (tmp_path / "annotations.xml").write_text(
        f'<annotations><image name="b.png" width="80" height="60">{mask}</image></annotations>'
    )
    with pytest.raises(UserError, match=r"image b\.png: <mask>: key 'rle'"):
        samples(tmp_path, task="segmentation")
