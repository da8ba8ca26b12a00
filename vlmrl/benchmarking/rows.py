"""The rows of a benchmark's split as its data is published: which files, which rows, which columns.

What is computed of a row is computed when the row is asked for; only a benchmark that chooses rows,
or makes several of one, is read once to count them.
"""

from __future__ import annotations

import ast
import io
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco

from vlmrl.data.files.opening import file_split, open_rows
from vlmrl.data.files.rows import WHERE, JoinedRows, Rows
from vlmrl.errors import UserError
from vlmrl.system.files import read_json

# --------------------------------------------------------------------------------------------------
# Values of a published row that stand there in another form: lists as text, masks as images.


MAX_CHARS = 20_000
"""Longest list that is read."""


def texts_of(row: Mapping[str, object], column: str) -> list[str]:
    """Return the texts of a column with a list of them as Python writes it; nothing is evaluated.

    Raises:
        UserError: the column holds anything else.
    """
    return [str(value) for value in _listed(row, column, (str, int, float))]


def numbers_of(row: Mapping[str, object], column: str) -> list[float]:
    """Return the numbers of a column with a list of them, or with such a list as Python writes it.

    Raises:
        UserError: the column holds anything else.
    """
    return [float(value) for value in _listed(row, column, (int, float))]


def _listed(row: Mapping[str, object], column: str, kinds: tuple[type, ...]) -> list[Any]:
    value = row.get(column)
    where = f"{row.get(WHERE, 'row')}: column {column!r}: expected a list"
    if isinstance(value, str):
        if len(value) > MAX_CHARS:
            raise UserError(f"{where} of at most {MAX_CHARS} characters, got {len(value)}")
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise UserError(f"{where}, got {value!r:.60}") from error
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list) or not all(
        isinstance(item, kinds) and not isinstance(item, bool) for item in value
    ):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UserError(f"{where} of {names}, got {value!r:.60}")
    return value


def letter_of(row: Mapping[str, Any], answer: str, options: str) -> str:
    """Return the letter of the option whose text is the answer, even if that text is itself a letter.

    Raises:
        UserError: no option in column `options` is the text in column `answer`.
    """
    texts = [*row[options]]
    if row[answer] not in texts:
        where = f"{row.get(WHERE, 'row')}: column {answer!r}"
        raise UserError(
            f"{where}: expected one of the options {texts!r:.100}, got {row[answer]!r:.60}"
        )
    return string.ascii_uppercase[texts.index(row[answer])]


def mask_of(row: Mapping[str, object], column: str) -> dict[str, Any]:
    """Return a mask as run lengths: an image, of which pixels from half brightness on count, or bits.

    Raises:
        UserError: the column holds neither.
    """
    mask = coco.encode(np.asfortranarray(_bits(row, column), dtype=np.uint8))
    return {"size": [int(n) for n in mask["size"]], "counts": mask["counts"].decode("ascii")}


def box_of_mask(row: Mapping[str, object], column: str) -> list[float]:
    """Return the box xyxy in pixels around a mask; an empty one has none, and is an error.

    Raises:
        UserError: the column holds no mask, or an empty one.
    """
    high, wide = np.nonzero(_bits(row, column))
    if not len(high):
        where = f"{row.get(WHERE, 'row')}: column {column!r}"
        raise UserError(f"{where}: expected a mask with a pixel in it, got an empty one")
    return [float(n) for n in (wide.min(), high.min(), wide.max() + 1, high.max() + 1)]


def _bits(row: Mapping[str, object], column: str) -> npt.NDArray[np.bool_]:
    """Return the pixels of a mask, [height, width]."""
    value = row.get(column)
    try:
        if isinstance(value, (list, np.ndarray)):
            bits = np.array([np.asarray(line, dtype=bool) for line in value])
            if bits.ndim == 2:
                return bits
            raise ValueError(f"lists of shape {bits.shape}")
        data = value.get("bytes") if isinstance(value, Mapping) else value
        with Image.open(io.BytesIO(data)) as image:  # type: ignore[arg-type]
            bright = np.asarray(image.convert("L") if image.mode == "P" else image)
    except (OSError, TypeError, ValueError, Image.DecompressionBombError) as error:
        where = f"{row.get(WHERE, 'row')}: column {column!r}"
        raise UserError(f"{where}: expected an image of a mask, got {error}") from error
    if bright.ndim == 3:
        bright = bright[:, :, 0]
    full = 1 if bright.dtype == bool else 255
    return np.asarray(np.round(bright / full) > 0)


# --------------------------------------------------------------------------------------------------
# The sentences of annotations that list them by video, as rows of a benchmark.
#
# {"3MSZA": {"duration": 30.96, "timestamps": [[24.3, 30.4]], "sentences": ["person turns on a light."]}}


def moment_rows(file: Path) -> list[dict[str, Any]]:
    """Return one row a sentence: `video`, `sentence`, `number`, `duration` and `timestamp` in seconds.

    Raises:
        UserError: there is no such file, or it is not of this form.
    """
    videos = read_json(file)
    try:
        return [
            {
                **{"video": video, "sentence": str(sentence), "number": number},
                **{"duration": float(annotation["duration"]), "timestamp": [*map(float, span)]},
                WHERE: f"{file.name} {video} item {number}",
            }
            for video, annotation in videos.items()
            for number, (sentence, span) in enumerate(
                zip(annotation["sentences"], annotation["timestamps"], strict=True)
            )
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: expected an object of videos with duration, timestamps and sentences: {error!r}"
        ) from error


# --------------------------------------------------------------------------------------------------
# The steps of episodes, each a list in a file of its own, as rows of a benchmark: AITZ.


EARLIER = "__earlier__"
"""Key of a step with the steps before it in its episode."""


def episode_rows(folder: Path) -> list[dict[str, Any]]:
    """Return one row a step of the JSON lists in a folder and below it, in the order of their paths.

    Raises:
        UserError: there is no such file, or one that is no list of objects.
    """
    episodes = [[*open_rows(file, file_split(file))] for file in sorted(folder.rglob("*.json"))]
    if not episodes:
        raise UserError(f"{folder}: expected JSON files with the steps of episodes, got none")
    return [
        {**step, EARLIER: steps[:number]} for steps in episodes for number, step in enumerate(steps)
    ]


def image_size(row: Mapping[str, object], name: str) -> tuple[int, int]:
    """Return width and height of an image that lies beside the data file of a row.

    Raises:
        UserError: there is no such image.
    """
    path = file_of(row).parent / name
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: expected an image, got {error}") from error


# --------------------------------------------------------------------------------------------------
# The images of COCO's one annotation file, and of LVIS's, as rows of a benchmark.


def coco_rows(file: Path) -> list[dict[str, Any]]:
    """Return one row an image: `file`, `width`, `height`, `boxes` (xywh in pixels) and `labels`.

    `asked` lists the classes to look for, separated by commas: all; in LVIS those that are known to
    be in the image or not to be. As JSON: `categories` (the same), `crowds`, `verified` and `partial`
    (see `vlmrl.benchmarking.scorers`).

    Raises:
        UserError: there is no such file, or it is not of this form.
    """
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        names = {entry["id"]: str(entry["name"]) for entry in whole["categories"]}
        objects: dict[Any, list[Mapping[str, Any]]] = {}
        for entry in whole["annotations"]:
            objects.setdefault(entry["image_id"], []).append(entry)
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
    single = [annotation for annotation in objects if not annotation.get("iscrowd")]
    asked = [*names.values()]
    if (
        "coco_url" in image and "file_name" not in image
    ):  # LVIS: it ends with the folder and the file
        file = "/".join(PurePosixPath(str(image["coco_url"])).parts[-2:])
    else:
        file = str(image["file_name"])
    row = {
        "id": str(image["id"]),
        "file": file,
        "width": image["width"],
        "height": image["height"],
        "boxes": [annotation["bbox"] for annotation in single],
        "labels": [names[annotation["category_id"]] for annotation in single],
        "crowds": json.dumps(
            [
                [_corners(annotation["bbox"]), names[annotation["category_id"]]]
                for annotation in objects
                if annotation not in single
            ]
        ),
    }
    if "neg_category_ids" in image:
        absent = [names[number] for number in image["neg_category_ids"]]
        partial = [names[number] for number in image["not_exhaustive_category_ids"]]
        asked = sorted({*row["labels"], *absent})
        row |= {"verified": json.dumps(asked), "partial": json.dumps(partial)}
    return {**row, "asked": ", ".join(asked), "categories": json.dumps(asked)}


def _corners(box: Sequence[float]) -> list[float]:
    x, y, width, height = box
    return [x, y, x + width, y + height]


# --------------------------------------------------------------------------------------------------
# The images of Visual-RFT's lists of classes as rows of a benchmark: a `.pth` file, and names beside it.


_DATA = "/data/"
"""Ends the part of an image's path that is the authors' own."""


def class_rows(file: Path) -> list[dict[str, Any]]:
    """Return one row an image: `file` below the authors' folder `data`, and the `name` of its class.

    The file is a list of `{path: {"label": number}}` as torch saves it; the names of the classes are
    the lines of the text file of the same stem. Nothing but tensors and plain values is loaded.

    Raises:
        UserError: there is no such file, or it is not of this form.
    """
    import torch  # slow to import

    try:
        names = file.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
        listed = torch.load(file, weights_only=True)
        rows = []
        for number, entry in enumerate(listed):
            ((path, facts),) = entry.items()
            name = names[int(facts["label"])].strip()
            below = str(path).rpartition(_DATA)[2]
            rows.append({"file": below, "name": name, WHERE: f"{file.name} item {number}"})
        return rows
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except Exception as error:  # what torch raises of damage has no common class
        raise UserError(
            f"{file}: expected images and labels as Visual-RFT has them: {error}"
        ) from error


# --------------------------------------------------------------------------------------------------
# The rows of a split as its data is published: which files, which rows, which columns.


INDEX = "__index__"
"""Key of a row, and of a sample's `meta`, with the number of the row in its split."""
EACH = "__each__"
"""Key of a row that is one of several columns (`Benchmark.each`), with the name of its column."""
LAYOUTS = {
    "coco": coco_rows,
    "moments": moment_rows,
    "classes": class_rows,
    "episodes": episode_rows,
}
"""Layouts that are no table, by name."""


def file_of(row: Mapping[str, object]) -> Path:
    """Return the data file that a row stands in: some layouts tell its task by the file alone."""
    where = str(row[WHERE])
    return Path(re.split(r" (?:item|row) \d+$|:\d+$", where)[0])


@dataclass(frozen=True)
class Published:
    """How the published files become rows: see `vlmrl.benchmarking.base.Benchmark`."""

    files: tuple[str, ...]
    only: Mapping[str, str]
    each: str | tuple[str, ...]
    layout: str
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    beside: tuple[str, ...] = ()


def published_rows(path: Path, split: str, how: Published) -> PublishedRows:
    """Return the rows of a split: each adapted, under `INDEX` its number.

    Raises:
        UserError: there is no such file or split.
    """
    named = [file for name in how.files for file in sorted(path.glob(name))]

    def opened(file: Path) -> Rows:
        # A file that the benchmark names holds its split, whatever its name says.
        return open_rows(file, file_split(file) if file in named and file.is_file() else split)

    parts = [LAYOUTS.get(how.layout, opened)(file) for file in named or [path]]
    beside = open_rows(path / how.beside[0], split) if how.beside else ()
    return PublishedRows(parts[0] if len(parts) == 1 else JoinedRows(parts), how, beside)


class PublishedRows(Sequence[Mapping[str, Any]]):
    """Rows in which every value has a column of its own; `published` is how many the files have."""

    def __init__(self, rows: Rows, how: Published, beside: Rows = ()) -> None:
        self._rows, self._how, self._beside = rows, how, beside
        self._numbers = {str(row[how.beside[2]]): at for at, row in enumerate(beside)}
        self._chosen = _choose(rows, how) if how.only or how.each else None
        self.published = len(rows)

    def __len__(self) -> int:
        return len(self._rows) if self._chosen is None else len(self._chosen)

    def __getitem__(self, index: Any) -> Any:
        number = range(len(self))[index]
        at, item = (number, 0) if self._chosen is None else self._chosen[number]
        row = _item(self._with_beside(self._rows[at]), self._how, item)
        where = f"{row[WHERE]} item {item}" if self._how.each else row[WHERE]
        return {**self._how.adapt(row), WHERE: where, INDEX: number}

    def _with_beside(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row with the columns of the row beside it that it has not itself."""
        if not self._how.beside:
            return row
        folder, column, _ = self._how.beside
        if (at := self._numbers.get(str(row.get(column)))) is None:
            raise UserError(
                f"{row[WHERE]}: column {column!r}: expected a row of {folder}, got {row.get(column)!r:.60}"
            )
        return {**self._beside[at], **row}


def _choose(rows: Rows, how: Published) -> list[tuple[int, int]]:
    """Return the number of each chosen row, once for each item of its column `each`, with the item's.

    A column of `only` that a row lacks is one that is added to it.
    """
    chosen = []
    for at in range(len(rows)):
        published = rows[at]
        listed = published[how.each] if isinstance(how.each, str) and how.each else how.each
        for item in range(len(listed) if how.each else 1):
            row = _item(published, how, item)
            facts = row if how.only.keys() <= row.keys() else how.adapt(row)
            if all(str(facts.get(column)) == value for column, value in how.only.items()):
                chosen.append((at, item))
    return chosen


def _item(row: Mapping[str, Any], how: Published, item: int) -> Mapping[str, Any]:
    """Return a row with one item of its column `each`, or the name of one of these columns."""
    if isinstance(how.each, str):
        return {**row, how.each: row[how.each][item]} if how.each else row
    return {**row, EACH: how.each[item]} if how.each else row
