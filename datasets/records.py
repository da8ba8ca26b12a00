"""Read JSONL records with a task, a question, an answer and boxes in pixels, media next to the file.

Source: the layout of this project's example data (examples/data/README.md). One JSON object a line: `id`,
`task`, `images`, `videos` or `audios` (paths relative to the folder), `question`, `answer` (a string),
`tags` (what the cold start writes in tags of the template: {"think": "...", "info": "..."}),
and where they apply `boxes` ([x1, y1, x2, y2] in pixels of the upright image), `labels`, `count`,
`width`, `height`, `image_index` (which image the boxes are in, from 0), `span` ([start, end] in
seconds), `options` (texts); `system` and `history` for a conversation
(`vlmrl.data.row_forms`).

The truth of a row is what its question asks for, as its answer shows: a box list means boxes, a
`span` a span, an integer next to `count` a number, one of the options that the row states a choice,
anything else a text (and a number too, if it reads as one). Boxes that only back up another answer go to
`meta["boxes"]`.

A row states options under the key `options` or `choices` (a list, or "(A) cat (B) dog"; not where its
`problem_type` is another than "multiple choice"), or in its question: "Answer with one of: cat, dog.",
"Answer "yes" or "no".", or "(A) cat (B) dog Answer with the letter.". Options that the question does
not list are put under it. Letters that the question does not ask for make no choice.

Rows of Video-R1, R1-AQA and VideoChat-R1 (grounded questions) are read under their own keys
(`vlmrl.data.row_forms`).
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from vlmrl.data import demonstrations, multiple_choice, row_forms
from vlmrl.data.annotations import check_inside
from vlmrl.data.card import Card
from vlmrl.data.files.opening import open_rows, splits
from vlmrl.data.files.rows import VARIANT, WHERE, Rows, RowsView, Variants
from vlmrl.data.row_forms import under_our_keys
from vlmrl.errors import UserError
from vlmrl.media import augmentation
from vlmrl.media.access import Access, access_given, reference
from vlmrl.media.decode import decode
from vlmrl.schema import Box, Demo, Frame, Media, MediaKind, Sample, Truth
from vlmrl.schema.media import PilImage
from vlmrl.truths import json_form

_PIXELS = r"\[x1, y1, x2, y2\] in pixels"
_LABELLED = re.compile(
    r'Return a JSON list of \{"label", "box"\}[;,]?(?: with)? label (?:is )?one of '
    r"(?P<names>[^;.]+?)"
    rf"(?:;| and) box (?:is )?{_PIXELS}"
)
_ONE_OF = re.compile(r"Answer with one of: (?P<names>[^.]+)\.$")
_EITHER = re.compile(r'Answer "(?P<first>[^"]+)" or "(?P<second>[^"]+)"\.$')
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")


@dataclass(frozen=True)
class Records(Card):
    """Rows of a folder (`<split>.jsonl`) or of one JSONL file."""

    origin: ClassVar[str] = "a folder or file of yours; `example:cards` is one"
    licence: ClassVar[str] = "see the data's own README"
    verifiers: ClassVar[tuple[str, ...]] = (
        "box_iou", "detection", "point", "count", "number", "choice", "exact", "ocr", "format",
    )  # fmt: skip

    path: str
    """Folder of `<split>.jsonl` files, or one JSONL file."""
    tasks: tuple[str, ...] = ()
    """Values of `task` whose rows are kept; empty: all."""
    native: bool = True
    """Drop "[x1, y1, x2, y2] in pixels" and "[start, end] in seconds" from the questions, since the
    instruction says how to answer."""
    loose: float = 0.0
    """Push each side of a demonstration's box outwards by up to this share of the image; 0: exact."""
    grid: int = 0
    """Then grow it to the lines of a grid of this many cells across and down, so that a small model
    has few numbers to learn; 0: no grid."""
    seed: int = 0
    """Seed of the draws for `loose` and `variants`."""
    variants: int = 0
    """Show each image with boxes in this number of ways: turned, mirrored, cropped, in other light; 0: as
    it is."""
    side: int = 0
    """Squeeze each image to a square of this many pixels a side (`variants` needs one); 0: as it is."""
    ramp: float = 0.0
    """Share of a ramp of colour that tells a model built from scratch where each part of an image lies."""

    def __post_init__(self) -> None:
        if self.grid < 0:
            raise ValueError(f"grid: expected a number of cells or 0, got {self.grid}")
        if not 0 <= self.loose < 1:
            raise ValueError(f"loose: expected a share of the image in [0, 1), got {self.loose}")
        if not 0 <= self.ramp < 1:
            raise ValueError(f"ramp: expected a share of the colours in [0, 1), got {self.ramp}")
        if self.variants < 0 or self.side < 0 or ((self.variants or self.ramp) and not self.side):
            raise ValueError(
                f"expected variants and side of at least 0, and a side with variants or a ramp, got "
                f"variants {self.variants}, side {self.side}, ramp {self.ramp}"
            )

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a split that have one of the tasks; broken lines stay, to be reported."""
        rows = self._of_tasks(open_rows(Path(self.path), split), split)
        return Variants(rows, self.variants) if self.variants else rows

    def _of_tasks(self, rows: Rows, split: str) -> Rows:
        if not self.tasks:
            return rows
        tasks = [_task(rows, i) for i in range(len(rows))]
        for task in self.tasks:
            if task not in tasks:
                there = ", ".join(sorted({t for t in tasks if t}))
                raise UserError(f"{self.path}: {split} has no task {task!r}; there are: {there}")
        return RowsView(
            rows, [i for i, task in enumerate(tasks) if task is None or task in self.tasks]
        )

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        """Turn one row into a sample."""
        row = under_our_keys(row)
        for key in ("question", "answer"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise UserError(f"key {key!r}: expected a text, got {row.get(key)!r:.60}")
        options = _read_options(row)
        about = json_form.read_image(row.get("image_index", 0), "key 'image_index'")
        truth = replace(_truth(row, options), image=about)
        name = row.get("id")
        if not isinstance(name, str | int):
            raise UserError(f"key 'id': expected a text or integer, got {name!r:.60}")
        media = tuple(reference(path, self._folder, kind) for kind, path in _media(row))
        meta = _meta(row, truth)
        if self.variants:
            name = f"{name}-{row[VARIANT]}"
        if self.side:
            media, truth = self._shown(Sample(str(name), source, media, truth, meta=meta))
            meta["size"] = (self.side, self.side)
        rng = random.Random(f"{self.seed} {name}")
        question = _native(row["question"]) if self.native else row["question"]
        if options:
            question = multiple_choice.with_options(question, options)
        demo = demonstrations.demonstration(
            truth, (0.0, self.loose / 2, self.loose), rng, self.grid
        )
        grounded = truth.choice is not None and truth.spans is not None
        return Sample(
            id=str(name),
            source=source,
            parts=(*media, question),
            truth=truth,
            template="think_answer_glue" if grounded else "think_answer",
            demo=_with_tags(
                row, Demo(text=truth.choice, evidence=truth.spans) if grounded else demo
            ),
            meta=meta,
            system=row_forms.read_system(row.get("system")),
            history=row_forms.read_history(row.get("history"), self._folder),
        )

    def splits_there(self) -> tuple[str, ...]:
        """Return the splits of the path."""
        return splits(Path(self.path))

    def media_root(self) -> str:
        """Return the folder of the data."""
        return str(self._folder)

    def group(self, row: Mapping[str, Any]) -> str | None:
        """Return the first medium: its questions stay together."""
        media = _media(under_our_keys(row))
        return str(media[0][1]) if media else None

    def corpus(self) -> list[str]:
        """Return questions and answers of the split `train`."""
        plain = replace(self, variants=0, side=0, ramp=0.0)  # no text depends on the images
        return demonstrations.corpus(plain, plain.rows("train"))

    def _shown(self, plain: Sample) -> tuple[tuple[Media, ...], Truth]:
        """Return the one image of a row as it is shown, and the truth with its boxes there."""
        boxes = plain.truth.boxes
        if [medium.kind for medium in plain.media] != ["image"] or boxes is None:
            raise UserError("option `side` is for rows with one image whose answer is boxes")
        (image,) = decode(plain, access_given(Access(self.media_root())))
        assert isinstance(image, PilImage)
        if self.variants:
            rng = random.Random(f"{self.seed} {plain.id}")
            image, boxes = augmentation.augment(image, boxes, self.side, rng)
        else:
            image = augmentation.squeeze(image, self.side)
        if self.ramp:
            image = augmentation.with_ramp(image, self.ramp)
        shown = Media("image", data=augmentation.as_bmp(image))
        return (shown,), replace(plain.truth, boxes=boxes)

    @property
    def _folder(self) -> Path:
        path = Path(self.path)
        return path if path.is_dir() else path.parent


def _task(rows: Sequence[Mapping[str, Any]], index: int) -> str | None:
    """Return the task of a row; None if the row cannot be read or has none."""
    try:
        return rows[index].get("task")
    except UserError:
        return None


def _media(row: Mapping[str, Any]) -> list[tuple[MediaKind, Any]]:
    """Return the row's media by kind: images, then videos, then audio."""
    kinds: dict[str, MediaKind] = {"images": "image", "videos": "video", "audios": "audio"}
    media: list[tuple[MediaKind, Any]] = []
    for key, kind in kinds.items():
        paths = row.get(key) or []
        if not isinstance(paths, list):
            raise UserError(f"key {key!r}: expected a list of paths, got {paths!r:.60}")
        media += [(kind, path) for path in paths]
    return media


def _truth(row: Mapping[str, Any], stated: tuple[str, ...]) -> Truth:
    answer = row["answer"].strip()
    if row.get("boxes") is not None and _is_json_list(answer):
        boxes = _boxes(row)
        return Truth(boxes=boxes, none=not boxes)
    if row.get("span") is not None:
        return json_form.read({"spans": [row["span"]]}, Frame())
    if options := stated or multiple_choice.asked(row["question"]):
        truth = multiple_choice.choice_truth(options, answer)
        if row.get("spans") is None:
            return truth
        spans = json_form.read({"spans": row["spans"]}, Frame()).spans
        return replace(truth, spans=spans)
    if options := _options(row["question"]):
        if answer not in options:
            raise UserError(
                f"key 'answer': expected one of the options {', '.join(options)}, got {answer!r}"
            )
        return Truth(choice=answer, options=options, text=(answer,))
    if row.get("count") is not None:
        return json_form.read({"number": row["count"]}, Frame())
    if _NUMBER.fullmatch(answer) and math.isfinite(value := float(answer.replace(",", ""))):
        return Truth(text=(answer,), number=value)
    return Truth(text=(answer,))


def _read_options(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that the row states under their own key; empty: none, it is no choice."""
    for key in ("options", "choices"):
        if row.get(key) and row.get("problem_type", "multiple choice") == "multiple choice":
            try:
                return multiple_choice.options_of(row[key])
            except UserError as error:
                raise UserError(f"key {key!r}: {error}") from error
    return ()


def _with_tags(row: Mapping[str, Any], demo: Demo | None) -> Demo | None:
    """Return the demonstration with what the row states under `tags`: {"think": ..., "info": ...}."""
    stated = row.get("tags")
    if stated is None or demo is None:
        return demo
    if not isinstance(stated, Mapping) or not all(isinstance(t, str) for t in stated.values()):
        raise UserError(f"key 'tags': expected texts by tag, got {stated!r:.60}")
    return replace(demo, thought=stated.get("think", demo.thought), contents=dict(stated))


def _is_json_list(answer: str) -> bool:
    if not answer.startswith("["):
        return False
    try:
        json.loads(answer)
    except ValueError:
        return False
    return True


def _boxes(row: Mapping[str, Any]) -> tuple[Box, ...]:
    boxes, labels = row.get("boxes"), row.get("labels")
    if not isinstance(boxes, list):
        raise UserError(f"key 'boxes': expected a list of boxes, got {boxes!r:.60}")
    if labels is None:
        labels = [None] * len(boxes)
    if not isinstance(labels, list) or len(labels) != len(boxes):
        raise UserError(f"key 'labels': expected {len(boxes)} labels, got {labels!r:.60}")
    size = (row.get("width"), row.get("height"))
    if not all(isinstance(side, int) and side > 0 for side in size):
        raise UserError(f"keys 'width', 'height': expected pixels, got {size!r:.60}")
    frame = Frame(row["width"], row["height"], space="pixel")
    check_inside(boxes, frame)
    stated = [{"box": box, "label": name} for box, name in zip(boxes, labels, strict=True)]
    return json_form.read({"boxes": stated}, frame).boxes or ()


def _options(question: str) -> tuple[str, ...]:
    if match := _ONE_OF.search(question):
        return tuple(name.strip() for name in match["names"].split(","))
    match = _EITHER.search(question)
    return (match["first"], match["second"]) if match else ()


def _native(question: str) -> str:
    """Return the question without the space and layout of its answer, which the instruction gives."""
    question = _LABELLED.sub(r"Label each with one of \g<names>", question)
    question = question.removesuffix(" Answer as [start, end] in seconds.")
    return re.sub(rf" as {_PIXELS}", "", question)


def _meta(row: Mapping[str, Any], truth: Truth) -> dict[str, Any]:
    """Return the row's other plain values, the stated size, and boxes that are not the answer."""
    used = ("id", "question", "answer", "width", "height", "system", "history")
    plain: dict[str, Any] = {
        k: v for k, v in row.items() if k not in used and isinstance(v, str | int | float)
    }
    plain["where"] = plain.pop(WHERE, "")
    if truth.boxes:
        plain["size"] = (row["width"], row["height"])
    if truth.boxes is None and row.get("boxes"):
        plain["boxes"] = _boxes(row)
    return plain
