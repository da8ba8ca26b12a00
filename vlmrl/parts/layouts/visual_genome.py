"""Visual Genome's region descriptions."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.data.files.rows import WHERE, Rows
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.errors import UserError
from vlmrl.parts.layouts.annotated_objects import locate, xyxy


@dataclass(frozen=True)
class VisualGenome(Layout):
    """`region_descriptions.json`: images with described regions; a row is a region.

    A region: {"region_id": 1382, "image_id": 1, "x": 421, "y": 57, "width": 82, "height": 139, "phrase":
    "the clock is green"}, in pixels from 0. The image is `<image_id>.jpg`, in any folder below (as
    published, VG_100K and VG_100K_2).

    Source: https://homes.cs.washington.edu/~ranjay/visualgenome/api_readme.html.
    """

    title: ClassVar[str] = "Visual Genome regions"
    origin: ClassVar[str] = "Visual Genome, Krishna et al. 2017, arXiv 1602.07332"
    fields: ClassVar[Mapping[str, str]] = {
        "question": "phrase",
        "boxes": "width",
        "image": "image_id",
    }
    verifiers: ClassVar[tuple[str, ...]] = ("box_iou",)

    question: str = "Locate this region: {phrase}"
    """The question; `{phrase}` stands for the region's description."""

    def recognise(self, place: DataPlace) -> str | None:
        """Return why a file is Visual Genome's."""
        if not place.has_keys("regions", "id"):
            return None
        regions = place.head[0]["regions"]
        fits = isinstance(regions, list) and all("phrase" in region for region in regions)
        return "rows have `regions` with `phrase`" if fits else None

    def rows(self, place: DataPlace, split: str) -> Rows:
        """Return the regions of all images."""
        return RegionRows(place.rows(split))

    def read(self, row: Mapping[str, Any], place: DataPlace) -> dict[str, Any]:
        """Return a region under our keys."""
        region = row["region"]
        stated = [region.get(key) for key in ("x", "y", "width", "height")]
        box = xyxy(stated, "x, y, width, height")
        phrase = region.get("phrase")
        if not isinstance(phrase, str) or not phrase.strip():
            raise UserError(f"key 'phrase': expected a text, got {phrase!r:.60}")
        # `.jpg` as published, else a `.png` that someone made of it
        name, home = region.get("image_id", row["image"]), place.media_home
        images = [locate(home, f"{name}{suffix}", "image_id") for suffix in (".jpg", ".png")]
        return {
            "id": region.get("region_id"),
            "image": next((image for image in images if (home / image).is_file()), images[0]),
            "question": self.question.replace("{phrase}", phrase.strip()),
            "boxes": [box],
            "box_space": "pixel",
        }


class RegionRows(Sequence[Mapping[str, Any]]):
    """The regions of images, one after the other; 8 bytes of memory an image.

    An image that cannot be read is one bad row.
    """

    def __init__(self, images: Rows) -> None:
        self._images = images
        self._ends = list(itertools.accumulate(map(self._count, range(len(images)))))
        self._last: tuple[int, Mapping[str, Any]] = (-1, {})

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        at = bisect.bisect_right(self._ends, index)
        number = index - (self._ends[at - 1] if at else 0)
        last, image = self._last
        if last != at:
            image = self._images[at]
            if not isinstance(image.get("regions"), list):
                raise UserError(f"{image[WHERE]}: key 'regions': expected a list")
            self._last = (at, image)
        where = f"{image[WHERE]} region {number}"
        return {"region": image["regions"][number], "image": image.get("id"), WHERE: where}

    def _count(self, at: int) -> int:
        try:
            regions = self._images[at].get("regions")
        except UserError:
            return 1
        return len(regions) if isinstance(regions, list) else 1
