"""The page of `vlmrl try`: what was shown, what was answered, and the places of the answer drawn on it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmrl.pages.media import Album, MediaView, Sheet, canvas_of, shapes, view
from vlmrl.pages.render import render
from vlmrl.runs.rollout_rows import store_media
from vlmrl.schema import Completion, Prompt, Truth
from vlmrl.system.atomic_files import write_bytes
from vlmrl.truths.drawn import read_places
from vlmrl.truths.json_form import to_json

__all__ = ["places_of", "write_page"]

IMAGE_BYTES = 24_000_000
"""Budget of all embedded media, in characters of their data URIs."""


@dataclass(frozen=True, slots=True)
class Answered(Sheet):
    """One completion on the page."""

    text: str
    thought: str | None
    answer: str | None
    note: str


def places_of(completion: Completion, prompt: Prompt) -> Truth:
    """Return the boxes, points or spans that an answer states, whichever can be read first.

    Coordinates are read in the space of the prompt's frame; spans are looked for where a medium lasts.
    """
    if not prompt.media:
        return Truth()
    return read_places(completion.answer or completion.text, prompt.frame)


def write_page(path: Path, model: str, prompt: Prompt, answers: Sequence[Completion]) -> None:
    """Write one offline page; text of models and questions is escaped.

    Raises:
        UserError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        album = Album(Path(folder), IMAGE_BYTES)
        media = store_media(Path(folder), prompt.sample, prompt.media)
        views = tuple(view(medium, album) for medium in media)
    canvas = canvas_of(views, prompt.sample.main_medium)
    page = render(
        Path(__file__).parent,
        "answer.html",
        model=model,
        question=prompt.sample.conversation,
        prompt=prompt.text,
        width=420,
        sheets=[_answered(completion, prompt, views, canvas) for completion in answers],
        images=album.images.values(),
        left_out=album.left_out,
    )
    write_bytes(path, page.encode("utf-8", "replace"))


def _answered(
    completion: Completion, prompt: Prompt, views: tuple[MediaView, ...], canvas: MediaView | None
) -> Answered:
    cut = "cut at the limit of --max-tokens" if completion.finish_reason == "length" else ""
    return Answered(
        text=completion.text,
        thought=completion.parsed.thought,
        answer=completion.answer,
        note=cut,
        views=views,
        canvas=canvas,
        truth_shapes=shapes(to_json(places_of(completion, prompt)), canvas),
    )
