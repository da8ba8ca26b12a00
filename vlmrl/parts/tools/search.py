"""Search over a collection of page images by their text: the pages of documents, of a book, of slides."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from vlmrl.errors import MediaError, UserError, import_extra
from vlmrl.interaction.tool import Part, Refused, Shown, Tool, View
from vlmrl.media.access import Access, confine
from vlmrl.media.image import load_image
from vlmrl.schema import Media, Space

WORDS = re.compile(r"[぀-ヿ一-鿿]|[^\W぀-ヿ一-鿿]+")
"""A word, or a character of a script without spaces."""
PATHS = "images.json"


@dataclass(frozen=True)
class Search(Tool):
    """Search a collection of pages and see the page whose text fits the query best.

    `pages` is a JSONL file, one page a line: {"image": "p1.png", "text": "its text, read by OCR, or a
    caption"}. Images lie in its folder or below. The index (BM25, Lucene's form) is built when a run
    starts and kept on disk. Needs `pip install 'vlmrl-perception[search]'`.

    Raises:
        UserError: the file is missing or wrong, an image is missing or outside of the folder, or the
            index cannot be written.
    """

    pages: str
    """The JSONL file."""
    index: str = ""
    """Folder of the index; empty: `<pages>.bm25`."""

    def schemas(self, space: Space = "norm1") -> list[dict[str, Any]]:
        """Build the index if there is none, and return the function."""
        _open(self.pages, self.index)
        return super().schemas(space)

    def prepare(self) -> None:
        """Load the index."""
        _open(self.pages, self.index)

    def __call__(
        self,
        view: View,
        query: Annotated[str, "words that the page should have"],
        rank: Annotated[int, "1 for the page that fits best, 2 for the next one"] = 1,
    ) -> list[Part]:
        """Return the page with its number; the log keeps the name of its file, without its ending.

        Raises:
            MediaError: its image cannot be read.
        """
        words, (scorer, images) = _words(query), _open(self.pages, self.index)
        known = [word for word in words if word in scorer.vocab_dict]
        scores = scorer.get_scores(known) if known else np.zeros(len(images))
        order = np.argsort(-scores, kind="stable")  # equal pages in their order
        fitting = int((scores > 0).sum())
        if not fitting:
            raise Refused("no page has a word of the query")
        if not 1 <= rank <= fitting:
            raise Refused(f"rank: expected 1 to {fitting}, the pages with a word of the query")
        page = int(order[rank - 1])
        access = Access(root=str(Path(self.pages).parent))
        image = load_image(Media("image", path=images[page]), access)
        shown = Shown(image, name=Path(images[page]).stem)
        return [f"Page {page + 1} of {len(images)}:", shown]


def _words(text: str) -> list[str]:
    return WORDS.findall(text.lower())


@functools.cache
def _open(pages: str, index: str) -> tuple[Any, list[str]]:
    """Return the BM25 scorer and the path of each page's image; build the index if it is missing."""
    bm25s = import_extra("bm25s", "search")
    try:
        data = Path(pages).read_bytes()
    except OSError as error:
        raise UserError(f"search: pages: {pages}: {error.strerror}") from error
    # Named by the content of the pages, so that a folder that is there is whole and up to date.
    folder = Path(index or f"{pages}.bm25") / hashlib.sha256(data).hexdigest()[:16]
    if not folder.is_dir():
        _build(bm25s, pages, data, folder)
    names: list[str] = json.loads((folder / PATHS).read_text(encoding="utf-8"))
    images = [str(Path(pages).parent / name) for name in names]
    return bm25s.BM25.load(folder, mmap=True), images


def _build(bm25s: Any, pages: str, data: bytes, folder: Path) -> None:
    """Write the index under another name, then give it its own.

    It names images as the pages do, so that a collection may be moved with its index.
    """
    names, texts = [], []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            name, text = _page(f"search: {pages}, line {number}", Path(pages).parent, line)
            names.append(name)
            texts.append(_words(text))
    if not any(texts):
        raise UserError(f"search: {pages}: expected pages with text, got none")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        scorer = bm25s.BM25()
        scorer.index(texts, show_progress=False)
        scorer.save(temporary, show_progress=False)
        (temporary / PATHS).write_text(json.dumps(names), encoding="utf-8")
        temporary.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # unless another process was faster
            raise UserError(f"search: index: {folder.parent}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _page(where: str, folder: Path, line: bytes) -> tuple[str, str]:
    """Return the name of a page's image, which is there, and its text."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: is not JSON: {error}") from error
    image, text = (row.get("image"), row.get("text")) if isinstance(row, dict) else (None, None)
    if not isinstance(image, str) or not isinstance(text, str):
        raise UserError(
            f'{where}: expected {{"image": "p1.png", "text": "..."}}, got {line[:60]!r}'
        )
    try:
        path = confine(str(folder / image), str(folder))
    except MediaError as error:
        raise UserError(f"{where}: {error}") from error
    if not path.is_file():
        raise UserError(f"{where}: the image {image!r} is missing")
    return image, text
