"""What the rows of a source ask and show: the tasks that they state a truth for, with verifiers that fit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vlmrl import plugins
from vlmrl.data.files.hub_download import locate
from vlmrl.data.files.opening import file_split, open_rows
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.features.check.path_check import LOOK
from vlmrl.media.decode import decode
from vlmrl.schema import Sample
from vlmrl.schema.media import PilImage

VERIFIERS = {
    "boxes": ("box_iou", "detection"),
    "choice": ("choice",),
    "count": ("count", "number"),
    "answer": ("number", "exact", "text"),
}
"""Task -> verifiers that grade it, the one preferred first."""
NAMES = {
    "id": ("id", "uid", "question_id"),
    "image": ("image", "image_path", "img", "file", "file_name", "filename"),
    "question": ("question", "problem", "prompt", "query", "text", "instruction"),
    "options": ("options", "choices"),
    "answer": ("answer", "label", "solution", "response", "target"),
    "boxes": ("boxes", "bboxes", "bbox", "box"),
    "number": ("count", "number"),
}
"""Our key -> names that columns of tables have for it."""


@dataclass(frozen=True)
class DataLook:
    """What was seen in the first rows of a source."""

    tasks: dict[str, str]
    """Each task that all of them state a truth for -> the verifier that fits it, the likeliest task first."""
    size: tuple[int, int] | None
    """Width and height in pixels of the largest image; None: there is none."""
    has_demos: bool
    """Whether their right answers can be written out, for a cold start."""

    def __str__(self) -> str:
        """One line."""
        largest = "no image" if self.size is None else "images up to {}x{}".format(*self.size)
        tasks = ", ".join(f"{task} (verifier {name})" for task, name in self.tasks.items())
        return f"tasks: {tasks or 'none of ours'}; {largest}"


def look(source: Source) -> DataLook:
    """Return what the first rows of a source ask and show; bad rows are left to the check.

    Raises:
        UserError: none of them is good.
    """
    samples: list[Sample] = []
    sizes: list[tuple[int, int]] = []
    for row in range(min(len(source.rows), LOOK)):
        with contextlib.suppress(UserError):
            sample = source.sample(row)
            shown = decode(sample, source.access, source.reading)
            sizes += [image.size for image in shown if isinstance(image, PilImage)]
            samples.append(sample)
    if not samples:
        raise UserError(
            f"{source.name}: none of its first {LOOK} rows is good; see `vlmrl data check`"
        )
    largest = max(sizes, key=lambda size: size[0] * size[1], default=None)
    demos = all(sample.demo is not None for sample in samples)
    return DataLook(dict(_tasks(source, samples)), largest, demos)


def propose_columns(path: str) -> dict[str, str]:
    """Return our keys with the columns of a table that have a usual name for them; empty: no table."""
    try:
        home = locate(path)
        first: dict[str, Any] = dict(open_rows(home, file_split(home))[0])
    except (UserError, IndexError):
        return {}
    columns = {
        key: column for key, names in NAMES.items() if (column := _first(names, first)) is not None
    }
    if "options" in columns and "answer" in columns:
        columns["choice"] = columns.pop("answer")
    return columns


def _first(names: tuple[str, ...], row: dict[str, Any]) -> str | None:
    return next((name for name in names if name in row), None)


def _tasks(source: Source, samples: list[Sample]) -> Iterator[tuple[str, str]]:
    fitting = source.card.fitting_verifiers()
    labelled = any(box.label for s in samples for box in s.truth.boxes or ())
    several = any(len(s.truth.boxes or ()) != 1 for s in samples)
    for task, names in VERIFIERS.items():
        ordered = names[::-1] if task == "boxes" and (labelled or several) else names
        for name in ordered:
            applies = plugins.build("verifier", name).applies_to
            if (not fitting or name in fitting) and all(map(applies, samples)):
                yield task, name
                break
