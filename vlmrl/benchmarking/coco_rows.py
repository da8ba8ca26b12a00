"""The images of COCO's one annotation file, and of LVIS's, as rows of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError

__all__ = ["coco_rows"]


def coco_rows(file: Path) -> list[dict[str, Any]]:
    """Return one row an image: `file`, `width`, `height`, `boxes` (xywh in pixels) and `labels`.

    `asked` lists the classes to look for, separated by commas: all; in LVIS those that are known to
    be in the image or not to be. As JSON: `categories` (the same), `crowds`, `verified` and `partial`
    (see `vlmrl.benchmarking.scorers.found_boxes`).

    Raises:
        UserError: there is no such file, or it is not of this form.
    """
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        names = {one["id"]: str(one["name"]) for one in whole["categories"]}
        objects: dict[Any, list[Mapping[str, Any]]] = {}
        for one in whole["annotations"]:
            objects.setdefault(one["image_id"], []).append(one)
        return [
            {**_row(image, objects.get(image["id"], []), names), WHERE: f"{file.name} {number}"}
            for number, image in enumerate(whole["images"])
        ]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: {error}") from error
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{file}: expected images, annotations and categories as COCO has them: {error!r}"
        ) from error


def _row(
    image: Mapping[str, Any], objects: Sequence[Mapping[str, Any]], names: Mapping[Any, str]
) -> dict[str, Any]:
    single = [one for one in objects if not one.get("iscrowd")]
    asked = [*names.values()]
    row = {
        "id": str(image["id"]),
        "file": _file(image),
        "width": image["width"],
        "height": image["height"],
        "boxes": [one["bbox"] for one in single],
        "labels": [names[one["category_id"]] for one in single],
        "crowds": json.dumps(
            [
                [_corners(one["bbox"]), names[one["category_id"]]]
                for one in objects
                if one not in single
            ]
        ),
    }
    if "neg_category_ids" in image:
        absent = [names[number] for number in image["neg_category_ids"]]
        partial = [names[number] for number in image["not_exhaustive_category_ids"]]
        asked = sorted({*row["labels"], *absent})
        row |= {"verified": json.dumps(asked), "partial": json.dumps(partial)}
    return {**row, "asked": ", ".join(asked), "categories": json.dumps(asked)}


def _file(image: Mapping[str, Any]) -> str:
    """Return the image's file; LVIS names its address, which ends with the folder and the file."""
    if "coco_url" in image and "file_name" not in image:
        return "/".join(PurePosixPath(str(image["coco_url"])).parts[-2:])
    return str(image["file_name"])


def _corners(box: Sequence[float]) -> list[float]:
    x, y, width, height = box
    return [x, y, x + width, y + height]
