"""Data in the forms that people have at the first try: read as slow independent code reads them."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pycocotools.coco import COCO

from vlmrl.config import SourceConfig, parse
from vlmrl.data.source import Source, evaluated, open_held_out, open_source, other_splits
from vlmrl.errors import UserError
from vlmrl.media.decode import decode
from vlmrl.schema.media import PilImage

SIZES = {"train": [(64, 48), (80, 60), (50, 50)], "val": [(60, 40), (32, 90)]}
CATEGORIES = [{"id": 3, "name": "disc"}, {"id": 7, "name": "square"}]


def source_of(split: str = "train", **options: Any) -> Source:
    return open_source(SourceConfig(card="auto", options=options, split=split))


def boxes_of(source: Source) -> list[list[tuple[str, list[float]]]]:
    """Label and xyxy pixels of every box, by the size of the image that is decoded."""
    found = []
    for index in range(len(source.rows)):
        sample = source.sample(index)
        (image,) = decode(sample, source.access, source.reading)
        assert isinstance(image, PilImage)
        scale = (*image.size, *image.size)
        boxes = sample.truth.boxes or ()
        pixels = [[round(n * s, 6) for n, s in zip(b.xyxy, scale, strict=True)] for b in boxes]
        found.append([(str(b.label), box) for b, box in zip(boxes, pixels, strict=True)])
    return found


def write_images(folder: Path, sizes: list[tuple[int, int]], before: str = "") -> None:
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        Image.new("RGB", size, "white").save(folder / f"{before}{number}.png")


def coco_file(file: Path, split: str, before: str = "") -> Path:
    """Write annotations of a split: image 0 has two boxes, image 1 a crowd and a box, others none."""
    sizes = enumerate(SIZES[split])
    images = [
        {"id": 10 + n, "file_name": f"{before}{n}.png", "width": w, "height": h}
        for n, (w, h) in sizes
    ]
    stated = [(11, 7, [2.5, 3, 10, 20.25], 0), (10, 3, [1, 2, 30, 20], 0), (10, 7, [8, 8, 9, 9], 0)]
    stated.append((11, 3, [0, 0, 30, 30], 1))
    annotations = [
        {"id": n, "image_id": image, "category_id": kind, "bbox": box, "iscrowd": crowd, "area": 1}
        for n, (image, kind, box, crowd) in enumerate(stated)
    ]
    tree = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(tree))
    return file


def by_pycocotools(file: Path) -> list[list[tuple[str, list[float]]]]:
    """The same as `boxes_of`, as COCO's own reader gives it."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(file))
    found = []
    for image in coco.getImgIds():
        own = coco.loadAnns(coco.getAnnIds(imgIds=image, iscrowd=False))
        names = [coco.loadCats(a["category_id"])[0]["name"] for a in own]
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (a["bbox"] for a in own)]
        found.append(list(zip(names, boxes, strict=True)))
    return found


@pytest.mark.parametrize("images", ["{split}2017", "images/{split}2017", "{split}"])
def test_a_folder_as_coco_has_it_is_read_as_pycocotools_reads_it(
    tmp_path: Path, images: str
) -> None:
    """Both folders have files of the same names, and there are captions beside the boxes."""
    for split, sizes in SIZES.items():
        write_images(tmp_path / images.format(split=split), sizes)
        file = coco_file(tmp_path / f"annotations/instances_{split}2017.json", split)
        captions = {"images": json.loads(file.read_text())["images"]}
        captions["annotations"] = [{"id": 1, "image_id": 10, "caption": f"A {split} disc."}]
        (tmp_path / f"annotations/captions_{split}2017.json").write_text(json.dumps(captions))
    (tmp_path / "annotations/image_info_test2017.json").write_text('{"images": []}')
    for split in SIZES:
        expected = by_pycocotools(tmp_path / f"annotations/instances_{split}2017.json")
        assert boxes_of(source_of(split, path=str(tmp_path))) == expected
        assert boxes_of(source_of(split, path=str(tmp_path / "annotations"))) == expected
        captioned = source_of(split, path=str(tmp_path), task="caption")
        assert [captioned.sample(0).truth.text] == [(f"A {split} disc.",)] and len(
            captioned.rows
        ) == 1
    with pytest.raises(UserError, match=r"no split 'test'; there is: train, val"):
        source_of("test", path=str(tmp_path))


def test_a_folder_of_roboflow_has_its_files_beside_the_images(tmp_path: Path) -> None:
    for split, name in (("train", "train"), ("val", "valid")):
        write_images(tmp_path / name, SIZES[split])
        coco_file(tmp_path / name / "_annotations.coco.json", split)
    source = source_of("valid", path=str(tmp_path))
    assert boxes_of(source) == by_pycocotools(tmp_path / "valid/_annotations.coco.json")


def test_files_of_several_kinds_are_asked_about(tmp_path: Path) -> None:
    for kind in ("dogs", "cats"):
        coco_file(tmp_path / f"{kind}_train.json", "train")
    with pytest.raises(
        UserError, match=r"annotation files of several kinds, 'cats', 'dogs': name a file"
    ):
        source_of(path=str(tmp_path))


@pytest.mark.parametrize("folders", [("", ""), ("a/", "b/"), ("", "b/")])
def test_two_files_are_a_map_of_splits(tmp_path: Path, folders: tuple[str, str]) -> None:
    files = {}
    for split, folder in zip(("train", "val"), folders, strict=True):
        write_images(tmp_path / folder / f"{split}_images", SIZES[split], split)
        files[split] = str(coco_file(tmp_path / folder / f"boxes_of_{split}.json", split, split))
    path = {"train": files["train"], "test": files["val"]}
    for split, file in path.items():
        source = source_of(split, path=path)
        assert (boxes_of(source), source.split) == (by_pycocotools(Path(file)), split)
    with pytest.raises(UserError, match=r"path has no split 'val'; there are: train, test"):
        source_of("val", path=path)


def test_a_map_over_folders_that_lie_apart_needs_a_root(tmp_path: Path) -> None:
    path = {s: str(coco_file(tmp_path / f"{s}/deep/boxes.json", s)) for s in SIZES}
    with pytest.raises(UserError, match=r"lie in .*: set root, the folder of all media"):
        source_of(path=path)
    assert source_of(path=path, root=str(tmp_path)).access.root == str(tmp_path)


# ------------------------------------------------------------------------- what is evaluated unasked


RUN: dict[str, Any] = {"model": {"path": "somewhere"}, "rewards": ["detection"]}


def evaluated_splits(
    card: str, options: dict[str, Any], **more: Any
) -> tuple[list[str], list[str]]:
    """The split of each held-out source, and what is said about it."""
    tree = {**RUN, "data": {"train": [{"card": card, "options": options, **more}]}}
    settings = parse(tree)
    return [source.split for source in open_held_out(settings)], [*other_splits(settings)]


@pytest.mark.parametrize(
    "there", [["test", "val"], ["val", "valid"], ["valid"], ["validation"], []]
)
def test_without_a_test_split_the_validation_split_is_evaluated_and_said(
    tmp_path: Path, there: list[str]
) -> None:
    row = '{"id": 1, "question": "How many?", "answer": "3"}\n'
    for split in ["train", *there]:
        (tmp_path / f"{split}.jsonl").write_text(row)
    expected = there[:1]
    said = f"source 'mine' has no split 'test': '{''.join(expected)}' is evaluated"
    columns = {"question": "question", "answer": "answer"}
    for card, options in (
        ("records", {"path": str(tmp_path)}),
        ("table", {"path": str(tmp_path), "columns": columns}),
        ("table", {"path": {s: str(tmp_path) for s in ("train", *there)}, "columns": columns}),
    ):
        if expected:
            found = evaluated_splits(card, options, name="mine")
            assert found == (expected, [] if expected == ["test"] else [said])
            named = evaluated_splits(card, options, held_out="train[:1]")
            assert named == (["train[:1]"], [])
        else:
            with pytest.raises(UserError, match=r"'test'.*else 'val', 'valid', 'validation': name"):
                evaluated_splits(card, options)
        if expected != ["test"]:  # named, it is not replaced
            with pytest.raises(UserError, match="'test'"):
                evaluated_splits(card, options, held_out="test")


def test_val_of_a_folder_in_a_published_layout_is_evaluated(tmp_path: Path) -> None:
    for split, sizes in SIZES.items():
        write_images(tmp_path / f"{split}2017", sizes)
        coco_file(tmp_path / f"annotations/instances_{split}2017.json", split)
    assert evaluated_splits("auto", {"path": str(tmp_path)})[0] == ["val"]
    sources = [{"card": "auto", "options": {"path": str(tmp_path)}, "split": "train"}]
    tree = {**RUN, "data": {"train": sources}, "evaluation": {"sources": sources}}
    assert [source.split for source in evaluated(parse(tree))] == ["train"]
    assert [*other_splits(parse(tree))] == []
    unset = parse({**tree, "evaluation": {"sources": None}})  # inherited, and not wanted
    assert [source.split for source in evaluated(unset)] == ["val"]


# ------------------------------------------------------------------------------------- CSV of boxes


HEADER = ["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"]
LINES = [  # an image's rows need not follow each other; the last shows nothing
    ["0.png", "64", "48", "disc", "1", "2", "31.5", "22"],
    ["1.png", "80", "60", "square", "2.5", "3", "12.5", "23.25"],
    ["0.png", "64", "48", "square", "8", "8", "17", "17"],
    ["2.png", "50", "50", "", "", "", "", ""],
]
BOXES = {
    "0.png": [("disc", [1.0, 2.0, 31.5, 22.0]), ("square", [8.0, 8.0, 17.0, 17.0])],
    "1.png": [("square", [2.5, 3.0, 12.5, 23.25])],
    "2.png": [],
}
"""What LINES say, by hand."""


def write_csv(file: Path, lines: list[list[str]]) -> None:
    file.write_text("".join(",".join(line) + "\n" for line in lines))


@pytest.mark.parametrize("order", [range(8), [4, 5, 6, 7, 3, 0, 1, 2]])
def test_rows_of_boxes_with_a_header_are_one_sample_an_image(
    tmp_path: Path, order: list[int]
) -> None:
    write_images(tmp_path / "images", SIZES["train"])
    write_csv(tmp_path / "train.csv", [[line[n] for n in order] for line in [HEADER, *LINES]])
    for path in (tmp_path, tmp_path / "train.csv"):
        source = source_of(path=str(path))
        assert boxes_of(source) == [*BOXES.values()]
        assert [source.sample(n).truth.none for n in range(3)] == [False, False, True]
        assert source.sample(1).text == "Detect all objects of these classes: disc, square."


def test_lines_of_retinanet_without_a_header_are_read_alike(tmp_path: Path) -> None:
    write_images(tmp_path / "train", SIZES["train"])
    bare = [[f"train/{line[0]}", *line[4:], line[3]] for line in LINES]
    write_csv(tmp_path / "boxes.csv", bare)
    assert boxes_of(source_of(path=str(tmp_path / "boxes.csv"))) == [*BOXES.values()]
    write_csv(
        tmp_path / "train/_annotations.csv", [[line[0], *line[4:], line[3]] for line in LINES]
    )
    (tmp_path / "boxes.csv").unlink()
    assert boxes_of(source_of(path=str(tmp_path))) == [*BOXES.values()]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ["0.png", "64", "48", "disc", "1", "2", "", "3"],
            r"\.csv:2: line 2: key 'xmax': expected a value",
        ),
        (["0.png", "64", "48", "", "1", "2", "4", "3"], r"line 2: key 'class': expected a value"),
        (["0.png", "64", "48", "disc", "9", "2", "4", "3"], "expected a box with x1 < x2"),
        (["0.png", "99", "48", "disc", "1", "2", "4", "3"], "the row says 99x48 pixels"),
        (["", "64", "48", "disc", "1", "2", "4", "3"], "line 2: key 'filename': expected a value"),
    ],
)
def test_a_wrong_row_of_boxes_is_named(tmp_path: Path, line: list[str], message: str) -> None:
    write_images(tmp_path / "images", SIZES["train"])
    write_csv(tmp_path / "train.csv", [HEADER, line])
    with pytest.raises(UserError, match=message):
        boxes_of(source_of(path=str(tmp_path)))


def test_a_table_takes_a_box_in_four_columns(tmp_path: Path) -> None:
    write_images(tmp_path / "images", SIZES["train"])
    names = ["file", "w", "h", "kind", "left", "top", "right", "bottom"]
    write_csv(tmp_path / "rows.csv", [names, *LINES])
    columns = {"image": "file", "width": "w", "height": "h", "box_labels": "kind"}
    columns = {**columns, "boxes": names[4:]}
    options = {"path": str(tmp_path / "rows.csv"), "prompt": "Find it.", "box_space": "pixel"}
    options["root"] = str(tmp_path / "images")
    source = open_source(SourceConfig(card="table", options={**options, "columns": columns}))
    expected = [[(line[3], [float(n) for n in line[4:]])] if line[4] else [] for line in LINES]
    assert boxes_of(source) == expected
    with pytest.raises(UserError, match=r"columns\.boxes: no column 'rigth'; did you mean 'right'"):
        wrong = {**columns, "boxes": ["left", "top", "rigth", "bottom"]}
        open_source(SourceConfig(card="table", options={**options, "columns": wrong}))
    for wrong in ({**columns, "boxes": names[4:7]}, {**columns, "box_labels": ["kind"]}):
        with pytest.raises(UserError, match="expected a column, or of `boxes` a list of four"):
            open_source(SourceConfig(card="table", options={**options, "columns": wrong}))
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text().replace("31.5", "wide"))
    source = open_source(SourceConfig(card="table", options={**options, "columns": columns}))
    with pytest.raises(UserError, match=r"rows\.csv:2: column 'right': expected a finite number"):
        source.sample(0)


# ------------------------------------------------------------------------------------ Label Studio


def write_tasks(folder: Path, addresses: list[str]) -> str:
    """Write an export with one box a task, in percent: a fifth of the image from its first tenth."""
    value = {
        "x": 10,
        "y": 10,
        "width": 20,
        "height": 20,
        "rotation": 0,
        "rectanglelabels": ["disc"],
    }
    result = [{"type": "rectanglelabels", "value": value}]
    annotations = [{"was_cancelled": False, "result": result}]
    tasks = [
        {"id": n, "data": {"image": address}, "annotations": annotations}
        for n, address in enumerate(addresses)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "export.json").write_text(json.dumps(tasks))
    return str(folder / "export.json")


def paths_of(source: Source) -> list[Path]:
    return [Path(source.sample(n).media[0].path or "") for n in range(len(source.rows))]


@pytest.mark.parametrize("root", [True, False])
def test_an_upload_of_label_studio_is_found_by_its_name_before(tmp_path: Path, root: bool) -> None:
    """`photo-1.jpg` has a hyphen of its own; under its long name a file is found first."""
    images = tmp_path / "photos" if root else tmp_path / "export/pictures"
    images.mkdir(parents=True)
    for name in ("photo-1.jpg", "b.jpg", "0a1b2c3d-c.jpg", "c.jpg"):
        Image.new("RGB", (40, 20), "white").save(images / name)
    addresses = ["/data/upload/1/ab12cd-photo-1.jpg", "/data/local-files/?d=photos/b.jpg"]
    addresses += ["/data/upload/12/0a1b2c3d-c.jpg"]
    path = write_tasks(tmp_path / "export", addresses)
    source = source_of(path=path, **({"root": str(images)} if root else {}))
    names = [images / name for name in ("photo-1.jpg", "b.jpg", "0a1b2c3d-c.jpg")]
    assert [found.resolve() for found in paths_of(source)] == [name.resolve() for name in names]
    assert boxes_of(source) == [[("disc", [4.0, 2.0, 12.0, 6.0])]] * 3


def test_an_upload_that_is_not_there_or_is_two_is_no_guess(tmp_path: Path) -> None:
    outside = tmp_path / "secret.jpg"
    Image.new("RGB", (40, 20), "white").save(outside)
    (tmp_path / "export").mkdir()
    Image.new("RGB", (40, 20), "white").save(tmp_path / "export/d.jpg")
    addresses = [
        "/data/upload/1/ab12cd34-photo.jpg",
        str(outside),
        "/data/local-files/?d=../secret.jpg",
    ]
    twice = ["/data/upload/1/00000000-d.jpg", "/data/upload/1/11111111-d.jpg"]
    source = source_of(path=write_tasks(tmp_path / "export", [*addresses, *twice]))
    messages = []
    for row in range(5):
        with pytest.raises(UserError) as caught:
            decode(source.sample(row), source.access, source.reading)
        messages.append(str(caught.value))
    assert "expected the image ab12cd34-photo.jpg or photo.jpg in or below" in messages[0]
    assert "set root to the folder of the images" in messages[0]
    assert "expected the image secret.jpg in or below" in messages[1]
    assert "outside" in messages[2]
    assert all("several uploads were called 'd.jpg'" in message for message in messages[3:])


# ----------------------------------------------------------------- a folder of LLaMA-Factory's


def write_chats(folder: Path, files: dict[str, str], formatting: str = "sharegpt") -> None:
    """Write name -> file of data sets whose only answer is their name, and their description."""
    entries: dict[str, Any] = {"of_a_hub_test": {"hf_hub_url": "somebody/something"}}
    for name, file in files.items():
        roles = ("user", "How many?"), ("assistant", name)
        rows: list[dict[str, Any]] = [{"messages": [{"role": r, "content": c} for r, c in roles]}]
        entries[name] = {"file_name": file, "formatting": formatting}
        tags = {"role_tag": "role", "content_tag": "content"}
        tags |= {"user_tag": "user", "assistant_tag": "assistant"}
        entries[name] |= {"columns": {"messages": "messages"}, "tags": tags}
        if formatting == "alpaca":
            rows = [{"instruction": "How many?", "input": "", "output": name}]
            entries[name] = {"file_name": file}
        (folder / file).write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(json.dumps(entries))


@pytest.mark.parametrize("formatting", ["sharegpt", "alpaca"])
@pytest.mark.parametrize(
    ("files", "splits"),
    [
        ({"cats": "train.json", "cats_test": "b.json"}, {"train": "cats", "test": "cats_test"}),
        ({"cats": "train.json", "mice": "test.json"}, {"train": "cats", "test": "mice"}),
        ({"cats": "cats.json"}, {"train": "cats", "cats": "cats"}),
        ({"cats": "a.json", "mice": "b.json"}, {"cats": "cats", "mice": "mice"}),
    ],
)
def test_a_folder_with_dataset_info_describes_itself(
    tmp_path: Path, formatting: str, files: dict[str, str], splits: dict[str, str]
) -> None:
    write_chats(tmp_path, files, formatting)
    for split, name in splits.items():
        source = source_of(split, path=str(tmp_path))
        assert [source.sample(n).truth.text for n in range(len(source.rows))] == [(name,)]
    if "train" not in splits:
        with pytest.raises(
            UserError, match=r"no split 'train'; there is: of_a_hub_test, cats, mice"
        ):
            source_of(path=str(tmp_path))
    if "test" in splits:
        assert evaluated_splits("auto", {"path": str(tmp_path)}) == (["test"], [])
