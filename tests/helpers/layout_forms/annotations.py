"""Layouts of annotated objects. Field names as published; what is asked is the layout's own question."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from helpers.layout_forms.items import Form, Item, put_media
from vlmrl.schema import Frame, Truth
from vlmrl.truths import json_form

BOXES = ("box", "boxes")


def classes(items: Sequence[Item]) -> list[str]:
    return sorted({label for item in items for label in item.labels})


def numbered(items: Sequence[Item]) -> dict[str, int]:
    return {name: number for number, name in enumerate(classes(items), start=1)}


def xywh(box: Sequence[float]) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def outline(box: Sequence[float]) -> list[float]:
    x1, y1, x2, y2 = box
    return [x1, y1, x2, y1, x2, y2, x1, y2]


def coco_file(
    folder: Path, name: str, items: Sequence[Item], annotations: list[dict[str, Any]], **image: Any
) -> dict[str, Any]:
    images = [
        {"license": 1, "file_name": item.name, "height": item.size[1], "width": item.size[0]}
        | {"id": number}
        for number, item in enumerate(items)
    ]
    numbers = numbered(items).items()
    categories = [{"supercategory": "shape", "id": n, "name": label} for label, n in numbers]
    tree = {"info": {"year": 2017}, "licenses": [], "images": images, "annotations": annotations}
    file = folder / "annotations" / name
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**tree, "categories": categories}))
    return {"path": str(file)}


def objects(items: Sequence[Item]) -> list[dict[str, Any]]:
    ids = numbered(items)
    found: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        for box, label in zip(item.boxes, item.labels, strict=True):
            entry = {"id": len(found) + 1, "image_id": number, "category_id": ids[label]}
            area = {"bbox": xywh(box), "area": xywh(box)[2] * xywh(box)[3]}
            found.append({**entry, **area, "iscrowd": 0, "segmentation": [outline(box)]})
    return found


def coco(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "val2017", items)
    return coco_file(folder, "instances_val2017.json", items, objects(items))


def coco_masks(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    return coco(folder, items) | {"task": "segmentation"}


def coco_keypoints(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "val2017", items)
    found = objects(items)
    for entry in found:
        x, y, width, height = entry["bbox"]
        entry |= {"keypoints": [x, y, 2, x + width, y + height, 1], "num_keypoints": 2}
    return coco_file(folder, "person_keypoints_val2017.json", items, found)


def keypoints(item: Item) -> Truth:
    found = [
        {"keypoints": [[b[0], b[1], 2], [b[2], b[3], 1]], "area": xywh(b)[2] * xywh(b)[3]}
        for b in item.boxes
    ]
    return json_form.read({"keypoints": found}, Frame(*item.size))


def coco_captions(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "val2017", items)
    found = [
        {"image_id": number, "id": number + 1, "caption": item.answer}
        for number, item in enumerate(items)
    ]
    return coco_file(folder, "captions_val2017.json", items, found)


def lvis(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "val2017", items)
    options = coco_file(folder, "lvis_v1_val.json", items, objects(items))
    file = Path(options["path"])
    tree = json.loads(file.read_text())
    for image in tree["images"]:
        name = image.pop("file_name")
        image |= {"coco_url": f"http://images.cocodataset.org/val2017/{name}"}
        image |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
    for annotation in tree["annotations"]:
        del annotation["iscrowd"]
    for category in tree["categories"]:
        del category["supercategory"]
        category |= {"frequency": "r", "synset": "a.n.01", "synonyms": [category["name"]]}
    file.write_text(json.dumps(tree))
    return options


def objects365(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "train/patch0", items)
    options = coco_file(folder, "zhiyuan_objv2_train.json", items, objects(items))
    file = Path(options["path"])
    tree = json.loads(file.read_text())
    for image in tree["images"]:
        image |= {"file_name": f"images/v1/patch0/{image['file_name']}", "url": "", "license": 5}
    for annotation in tree["annotations"]:
        del annotation["segmentation"]
        annotation |= {"isfake": 0, "isreflected": 0}
    file.write_text(json.dumps(tree))
    return options


def pascal_voc(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "JPEGImages", items)
    (folder / "Annotations").mkdir()
    (folder / "ImageSets/Main").mkdir(parents=True)
    for item in items:
        width, height = item.size
        parts = [f"<annotation><folder>VOC2012</folder><filename>{item.name}</filename>"]
        parts.append(
            f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        )
        for (x1, y1, x2, y2), label in zip(item.boxes, item.labels, strict=True):
            corners = {"xmin": x1 + 1, "ymin": y1 + 1, "xmax": x2, "ymax": y2}
            box = "".join(f"<{key}>{value:g}</{key}>" for key, value in corners.items())
            parts.append(
                f"<object><name>{html.escape(label)}</name><pose>Unspecified</pose><truncated>0</truncated>"
                f"<difficult>0</difficult><bndbox>{box}</bndbox></object>"
            )
        file = (folder / "Annotations" / item.name).with_suffix(".xml")
        file.write_text("\n".join([*parts, "</annotation>"]))
    stems = "".join(f"{Path(item.name).stem}\n" for item in items)
    (folder / "ImageSets/Main/train.txt").write_text(stems)
    return {"path": str(folder)}


def yolo(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    return _yolo(folder, items, lambda b: [(b[0] + b[2]) / 2, (b[1] + b[3]) / 2, *xywh(b)[2:]])


def yolo_masks(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    return _yolo(folder, items, outline) | {"task": "segmentation"}


def _yolo(folder: Path, items: Sequence[Item], numbers: Any) -> dict[str, Any]:
    put_media(folder / "images/train", items)
    labels = folder / "labels/train"
    labels.mkdir(parents=True)
    names = classes(items)
    for item in items:
        width, height = item.size
        lines = []
        for box, label in zip(item.boxes, item.labels, strict=True):
            shares = [n / (height if i % 2 else width) for i, n in enumerate(numbers(box))]
            lines.append(" ".join(map(repr, (names.index(label), *shares))))
        (labels / item.name).with_suffix(".txt").write_text("\n".join(lines))
    listed = "".join(f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(names))
    (folder / "data.yaml").write_text(
        f"path: ../datasets/drawn # dataset root dir\ntrain: images/train\nval: images/train\ntest:\n"
        f"names:\n{listed}"
    )
    return {"path": str(folder)}


def box_rows(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "images", items)
    with (folder / "train.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow("filename,width,height,class,xmin,ymin,xmax,ymax".split(","))
        for item in items:
            for box, label in zip(item.boxes, item.labels, strict=True):
                table.writerow((item.name, *item.size, label, *box))
            if not item.boxes:
                table.writerow((item.name, *item.size, *[""] * 5))
    return {"path": str(folder)}


def refcoco(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    rows = [
        {
            "question_id": str(number),
            "image": {"bytes": item.media[0][1], "path": item.name},
            "question": "Please carefully observe the area circled in the image and come up with a "
            "caption for the area.",
            "answer": [item.phrase, "that one"],
            "segmentation": outline(item.boxes[0]),
            "bbox": xywh(item.boxes[0]),
            "iscrowd": 0,
            "file_name": f"COCO_train2014_{number:012}_0.jpg",
        }
        for number, item in enumerate(items)
    ]
    (folder / "data").mkdir()
    file = folder / "data/val-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return {"path": str(folder), "question": "{expression}"}


def refcoco_sentences(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "coco/train2014", items)
    rows = []
    for number, item in enumerate(items):
        annotation = {"bbox": xywh(item.boxes[0]), "iscrowd": 0, "image_id": number}
        sentence = {"raw": item.phrase, "sent": item.phrase, "sent_id": number, "tokens": []}
        rows.append(
            {
                "sent_ids": [number],
                "file_name": item.name,
                "ref_id": number,
                "split": "train",
                "sentences": [sentence],
                "raw_anns": json.dumps(annotation),
                "image_path": f"coco/train2014/{item.name}",
                "bbox": [*item.boxes[0]],
            }
        )
    file = folder / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return {"path": str(folder), "question": "{expression}"}


def visual_genome(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    (folder / "VG_100K").mkdir()
    images = []
    for number, item in enumerate(items, start=1):
        (folder / f"VG_100K/{number}.jpg").write_bytes(item.media[0][1])
        x, y, width, height = xywh(item.boxes[0])
        region = {"region_id": number, "width": width, "height": height, "image_id": number}
        images.append(
            {"regions": [{**region, "phrase": item.phrase, "y": y, "x": x}], "id": number}
        )
    (folder / "region_descriptions.json").write_text(json.dumps(images))
    return {"path": str(folder / "region_descriptions.json"), "question": "{phrase}"}


def labelme(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder, items)
    for item in items:
        shapes = [
            {"label": label, "points": [[*box[:2]], [*box[2:]]], "group_id": None}
            | {"description": "", "shape_type": "rectangle", "flags": {}, "mask": None}
            for box, label in zip(item.boxes, item.labels, strict=True)
        ]
        tree = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": item.name}
        tree |= {"imageData": None, "imageHeight": item.size[1], "imageWidth": item.size[0]}
        (folder / item.name).with_suffix(".json").write_text(json.dumps(tree))
    return {"path": str(folder)}


def regions(item: Item) -> list[dict[str, Any]]:
    found = []
    for box, label in zip(item.boxes, item.labels, strict=True):
        sides = item.size * 2
        x, y, width, height = (100 * n / s for n, s in zip(xywh(box), sides, strict=True))
        value = {"x": x, "y": y, "width": width, "height": height, "rotation": 0}
        found.append({**value, "rectanglelabels": [label]})
    return found


def label_studio(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "images", items)
    tasks = []
    for number, item in enumerate(items):
        results = [
            {"original_width": item.size[0], "original_height": item.size[1], "image_rotation": 0}
            | {"value": value, "id": f"r{n}", "from_name": "label", "to_name": "image"}
            | {"type": "rectanglelabels", "origin": "manual"}
            for n, value in enumerate(regions(item))
        ]
        annotation = {
            "id": number,
            "was_cancelled": False,
            "ground_truth": False,
            "result": results,
        }
        data = {"image": f"/data/local-files/?d=images/{item.name}"}
        tasks.append({"id": number, "data": data, "annotations": [annotation], "predictions": []})
    (folder / "project-1.json").write_text(json.dumps(tasks))
    return {"path": str(folder / "project-1.json")}


def label_studio_min(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    put_media(folder / "images", items)
    rows = [
        {"image": f"/data/upload/1/{item.name}", "id": n, "label": regions(item), "annotator": 1}
        for n, item in enumerate(items)
    ]
    (folder / "project-1-min.json").write_text(json.dumps(rows))
    return {"path": str(folder / "project-1-min.json")}


def cvat(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    box = '<box label="{}" source="manual" occluded="0" xtl="{}" ytl="{}" xbr="{}" ybr="{}" z_order="0">'
    return _cvat(folder, items, lambda name, b: f"{box.format(name, *b)}</box>")


def cvat_masks(folder: Path, items: Sequence[Item]) -> dict[str, Any]:
    def polygon(name: str, box: Sequence[float]) -> str:
        flat = outline(box)
        points = ";".join(f"{x},{y}" for x, y in zip(flat[::2], flat[1::2], strict=True))
        return f'<polygon label="{name}" occluded="0" points="{points}" z_order="0"></polygon>'

    return _cvat(folder, items, polygon) | {"task": "segmentation"}


def _cvat(folder: Path, items: Sequence[Item], shape: Any) -> dict[str, Any]:
    put_media(folder / "images", items)
    names = map(html.escape, classes(items))
    labels = "".join(f"<label><name>{name}</name></label>" for name in names)
    parts = ['<?xml version="1.0" encoding="utf-8"?>', "<annotations><version>1.1</version>"]
    parts.append(f"<meta><task><labels>{labels}</labels></task></meta>")
    for number, item in enumerate(items):
        size = f'width="{item.size[0]}" height="{item.size[1]}"'
        parts.append(f'<image id="{number}" name="{item.name}" {size}>')
        parts += [
            shape(html.escape(n), box) for n, box in zip(item.labels, item.boxes, strict=True)
        ]
        parts.append("</image>")
    (folder / "annotations.xml").write_text("\n".join([*parts, "</annotations>"]))
    return {"path": str(folder)}


def masks(item: Item) -> Truth:
    corners = [outline(box) for box in item.boxes]
    polygons = [[list(p) for p in zip(c[::2], c[1::2], strict=True)] for c in corners]
    return json_form.read({"masks": polygons}, Frame(*item.size))


def detect(item: Item) -> str:
    """The question of layouts that list their classes; of the drawn images."""
    return "Detect all objects of these classes: disc, square."


def detect_present(item: Item) -> str:
    """The question of layouts that name the classes of each image alone."""
    return f"Detect all objects of these classes: {', '.join(sorted(set(item.labels)))}."


def outline_all(item: Item) -> str:
    return "Outline all objects of these classes: disc, square."


def _objects(name: str, layout: str, write: Any, prompt: Any = detect, **more: Any) -> Form:
    return Form(name, layout, write, BOXES, prompt=prompt, keeps_prompt=False, **more)


def _referred(name: str, layout: str, write: Any) -> Form:
    return Form(name, layout, write, ("box",), prompt=lambda item: item.phrase, labels=False)


ANNOTATIONS = (
    _objects("COCO instances", "coco", coco),
    Form(
        "COCO captions",
        "coco",
        coco_captions,
        ("answer",),
        prompt=lambda item: "Describe the image in one sentence.",
        keeps_prompt=False,
        truth=lambda item: json_form.read({"text": item.answer}, Frame()),
    ),
    _objects(
        "COCO keypoints",
        "coco",
        coco_keypoints,
        lambda item: "Find the keypoints of every person.",
        truth=keypoints,
    ),
    _objects("LVIS", "coco", lvis),
    _objects("Objects365", "coco", objects365),
    _objects("Pascal VOC", "pascal_voc", pascal_voc, detect_present),
    _objects("YOLO", "yolo", yolo),
    _objects("CSV of boxes", "box_rows", box_rows),
    _referred("RefCOCO, Parquet", "refcoco", refcoco),
    _referred("Visual Genome regions", "visual_genome", visual_genome),
    _objects("Label Studio, JSON", "label_studio", label_studio, detect_present),
    _objects("CVAT for images 1.1", "cvat", cvat),
    _objects("Labelme", "labelme", labelme, detect_present),
)
MORE_ANNOTATIONS = (
    _objects("COCO, outlines", "coco", coco_masks, outline_all, truth=masks),
    _objects("YOLO, outlines", "yolo", yolo_masks, outline_all, truth=masks),
    _objects("CVAT, polygons", "cvat", cvat_masks, outline_all, truth=masks),
    _objects("Label Studio, JSON-MIN", "label_studio", label_studio_min, detect_present),
    _referred("RefCOCO, sentences", "refcoco", refcoco_sentences),
)
