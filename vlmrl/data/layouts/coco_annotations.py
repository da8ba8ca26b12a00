"""The images of a file like COCO's, each with its annotations, decoded when asked for.

What is held is where each image and annotation stands in the file, and which belong together: about
100 bytes an annotation, whatever its polygons.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from vlmrl.data.files import raw_json
from vlmrl.data.files.rows import WHERE
from vlmrl.data.layouts.base import DataPlace
from vlmrl.errors import UserError

__all__ = ["CocoIndex", "CocoRows"]

log = logging.getLogger(__name__)


class _Named(msgspec.Struct):
    id: Any = None


class _Owned(msgspec.Struct):
    image_id: Any = None


@dataclass(frozen=True)
class CocoIndex:
    """Where things stand: annotations `order[starts[i] : starts[i + 1]]` are of image i.

    `first` is the first annotation, `names` maps ids of categories to their names.
    """

    images: Sequence[Raw]
    annotations: Sequence[Raw]
    order: np.ndarray
    starts: np.ndarray
    first: Mapping[str, Any]
    names: Mapping[Any, str]

    @classmethod
    def of(cls, place: DataPlace) -> CocoIndex:
        """Index a file.

        Raises:
            UserError: its lists hold something else than objects; the message names file and key.
        """
        images = _items(place, "images")
        annotations = _items(place, "annotations")
        numbers = {name: n for n, name in enumerate(_field(place, "images", images, _Named))}
        owners = np.fromiter(
            (
                numbers.get(owner, len(images))
                for owner in _field(place, "annotations", annotations, _Owned)
            ),
            np.int32,
            len(annotations),
        )
        _warn_of_orphans(place, owners == len(images), annotations)
        order = np.argsort(owners, kind="stable").astype(np.int32)
        starts = np.searchsorted(owners[order], np.arange(len(images) + 1))
        first = raw_json.load(annotations[0]) if annotations else {}
        listed = (
            raw_json.load(place.document["categories"]) if "categories" in place.document else []
        )
        names = {c.get("id"): str(c.get("name")) for c in listed if isinstance(c, Mapping)}
        return cls(images, annotations, order, starts, first, names)


class CocoRows(Sequence[Mapping[str, Any]]):
    """The images, each as {"image", "objects"}; `non_empty` leaves out those without annotations."""

    def __init__(self, place: DataPlace, index: CocoIndex, non_empty: bool) -> None:
        self._name = place.path.name
        self._index = index
        counts = np.diff(index.starts)
        self._kept = np.flatnonzero(counts) if non_empty else np.arange(len(counts))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: Any) -> Any:
        """Return the image at an index with its annotations."""
        at, held = self._kept[index], self._index
        image = raw_json.load(held.images[at])
        own = held.order[held.starts[at] : held.starts[at + 1]]
        objects = [raw_json.load(held.annotations[number]) for number in own]
        return {
            "image": image,
            "objects": objects,
            WHERE: f"{self._name} image {image.get('id')}",
        }


def _warn_of_orphans(place: DataPlace, orphans: np.ndarray, annotations: Sequence[Raw]) -> None:
    """Say how many annotations belong to no image: those of a subset's other images, or wrong ids."""
    if orphans.any():
        first = raw_json.load(annotations[int(orphans.argmax())])
        log.warning(
            "%s: %d of %d annotations are left out: no image has their `image_id` (%r, for one)",
            place.path, orphans.sum(), len(orphans), first.get("image_id"),
        )  # fmt: skip


def _items(place: DataPlace, key: str) -> Sequence[Raw]:
    try:
        return raw_json.cut(place.document[key], list[Raw])
    except ValueError as error:
        raise UserError(f"{place.path}: key {key!r}: expected a list: {error}") from error


def _field(place: DataPlace, key: str, items: Sequence[Raw], of: type[msgspec.Struct]) -> Any:
    """Yield the one field of each item."""
    decode = msgspec.json.Decoder(of).decode
    (name,) = of.__struct_fields__
    for number, item in enumerate(items):
        try:
            yield getattr(decode(item), name)
        except ValueError as error:
            raise UserError(f"{place.path}: key {key!r}, item {number}: {error}") from error
