"""RefCOCO, RefCOCO+ and RefCOCOg, as two common copies on the hub publish them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.files.rows import Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import locate, xyxy


@dataclass(frozen=True)
class Refcoco(Layout):
    """Rows with a `bbox` and the expressions that refer to it; the first of them is asked.

    `lmms-lab/RefCOCO`: `image`, `question`, `answer` (the expressions), `bbox` [x, y, width, height].
    `jxu124/refcoco`: `image_path`, `sentences` (each with `raw`), `raw_anns` (JSON with COCO's `bbox`).
    Pixels from 0. The other expressions are in `meta["expressions"]`. The authors' own files,
    `refs(unc).p`, are pickles, which can run code: they are never loaded.

    Source: https://huggingface.co/datasets/lmms-lab/RefCOCO, https://huggingface.co/datasets/jxu124/refcoco;
    https://github.com/lichengunc/refer.
    """

    title: ClassVar[str] = "RefCOCO, RefCOCO+, RefCOCOg"
    origin: ClassVar[str] = "RefCOCO, Yu et al. 2016, arXiv 1608.00272"
    fields: ClassVar[Mapping[str, str]] = {"boxes": "bbox", "question": "answer", "image": "image"}
    verifiers: ClassVar[tuple[str, ...]] = ("box_iou",)

    question: str = "Locate: {expression}"
    """The question; `{expression}` stands for what refers to the object."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why rows are RefCOCO's."""
        if place.has_keys("answer", "bbox", "segmentation", "iscrowd", "question_id"):
            return "rows have `answer`, `bbox`, `segmentation` and `iscrowd`"
        if place.has_keys("sentences", "raw_anns", "ref_id"):
            return "rows have `sentences`, `raw_anns` and `ref_id`"
        pickled = _pickle(place)
        return f"{pickled} is RefCOCO's own file" if pickled else None

    def splits(self, place: DataPlace) -> tuple[str, ...]:
        """Return the place's own splits; `train` where there are pickles."""
        return ("train",) if _pickle(place) else place.splits

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the rows of a copy.

        Raises:
            UserError: the place holds the authors' pickles.
        """
        if pickled := _pickle(place):
            raise UserError(
                f"{place.home / pickled}: a pickle can run code and is never loaded; take a copy in "
                "Parquet: hf://datasets/jxu124/refcoco or hf://datasets/lmms-lab/RefCOCO"
            )
        return place.rows(split)

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return a row under our keys."""
        copied = "raw_anns" in row
        key = "sentences" if copied else "answer"
        listed = row.get(key)
        texts = [s.get("raw", s.get("sent")) for s in listed or []] if copied else listed
        if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
            raise UserError(f"key {key!r}: expected a list of expressions, got {listed!r:.60}")
        annotation: Any = row
        if copied:
            value = row["raw_anns"]
            try:
                annotation = json.loads(value) if isinstance(value, str) else value
            except ValueError as error:
                raise UserError(f"key 'raw_anns': expected JSON, got {value!r:.60}") from error
            if not isinstance(annotation, Mapping):
                raise UserError(f"key 'raw_anns': expected an object, got {annotation!r:.60}")
        image = row.get("image")
        if copied:
            image = locate(place.media_home, row["image_path"], "image_path")
        return {
            "id": row.get("ref_id", row.get("question_id")),
            "image": image,
            "question": self.question.replace("{expression}", texts[0].strip()),
            "boxes": [xyxy(annotation.get("bbox"), "bbox")],
            "box_space": "pixel",
            "meta": {"expressions": texts},
        }


def _pickle(place: DataPlace) -> str | None:
    """Return the name of a file `refs(...).p`; None: there is none."""
    names = place.names if place.path.is_dir() else (place.path.name,)
    return next((n for n in names if re.fullmatch(r"(.*/)?refs\(\w+\)\.p", n)), None)
