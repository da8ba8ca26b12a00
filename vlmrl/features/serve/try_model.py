"""`vlmrl try`: ask a model one question about media, and show where its answer points."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from vlmrl.config import PluginRef
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.features.serve.asked_model import ServedModel
from vlmrl.media.access import Access
from vlmrl.pages.media import Album, Sheet, canvas_of, shapes, view
from vlmrl.pages.render import render
from vlmrl.runs.rollout_rows import store_media
from vlmrl.schema import Completion, Media, MediaKind, Prompt, Sample, Truth
from vlmrl.schema.media import PilImage
from vlmrl.system.files import write_bytes
from vlmrl.truths.drawn import draw_places, read_places
from vlmrl.truths.json_form import to_json

# --------------------------------------------------------------------------------------------------
# An image in the terminal: two pixels a character, in as many colours as it has.


MAX_COLUMNS = 80


def show_image(image: PilImage, console: Console) -> None:
    """Print an image, scaled to the width of the terminal; nothing where the output is no terminal."""
    if not console.is_terminal:
        return
    columns = min(console.width, MAX_COLUMNS, image.width)
    rows = max(1, round(image.height * columns / image.width / 2))
    small = image.convert("RGB").resize((columns, 2 * rows), Image.Resampling.BOX)
    pixels = np.asarray(small).tolist()  # [2 * rows, columns, 3]
    segments = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
            segments.append(Segment("▀", style))
        segments.append(Segment.line())
    console.print(Segments(segments), end="")


# --------------------------------------------------------------------------------------------------
# The page of `vlmrl try`: what was shown, what was answered, and the places of the answer drawn on it.


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
    sheets = [
        Answered(
            text=completion.text,
            thought=completion.parsed.thought,
            answer=completion.answer,
            note="cut at the limit of --max-tokens" if completion.finish_reason == "length" else "",
            views=views,
            canvas=canvas,
            truth_shapes=shapes(to_json(places_of(completion, prompt)), canvas),
        )
        for completion in answers
    ]
    page = render(
        Path(__file__).parent,
        "answer.html",
        model=model,
        question=prompt.sample.conversation,
        prompt=prompt.text,
        width=420,
        sheets=sheets,
        images=album.images.values(),
        left_out=album.left_out,
    )
    write_bytes(path, page.encode("utf-8", "replace"))


# --------------------------------------------------------------------------------------------------


KINDS: dict[MediaKind, tuple[str, ...]] = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".jp2"),
    "video": (".mp4", ".mkv", ".mov", ".webm", ".avi", ".m4v"),
    "audio": (".wav", ".flac", ".ogg", ".mp3", ".m4a"),
}
"""Endings of files by the kind of medium."""


def try_model(
    model: str,
    media: Sequence[Path],
    question: str,
    *,
    samples: int = 0,
    max_tokens: int = 512,
    plain: bool = False,
    engine: PluginRef = PluginRef(name="hf"),
    out: Path | None = None,
) -> None:
    """Print the greedy answer, or `samples` sampled ones, with its places drawn; write a page to `out`.

    A model of a run is asked as its training asked, unless `plain`.

    Raises:
        UserError: no such model or file, or the model cannot be shown it.
    """
    shown = tuple(Media(kind_of(path), path=str(path.resolve())) for path in media)
    sample = Sample("try", "try", (*shown, question), Truth(), template="none")
    asked = ServedModel(model, engine)
    try:
        ask = asked.prompt if plain else asked.prompt_as_trained
        prompt = ask(sample, Access(root="/"))
        sampling = Sampling(max(samples, 1), max_tokens, greedy=samples == 0)
        (answers,) = asked.answer([prompt], sampling)
    finally:
        asked.close()
    console = Console()
    for completion in answers:
        _show(completion, prompt, console)
    if out is not None:
        write_page(out, model, prompt, answers)
        print(f"page: {out}")


def kind_of(path: Path) -> MediaKind:
    """Return the kind of medium that a file's name says it is.

    Raises:
        UserError: it is no file, or its ending is of no kind that we know.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    for kind, endings in KINDS.items():
        if path.suffix.lower() in endings:
            return kind
    known = " ".join(ending for endings in KINDS.values() for ending in endings)
    raise UserError(f"{path}: expected an image, a video or an audio file ({known})")


def _show(completion: Completion, prompt: Prompt, console: Console) -> None:
    places = places_of(completion, prompt)
    main = prompt.sample.main_medium
    medium = None if main is None else prompt.media[main]
    if isinstance(medium, PilImage):
        show_image(draw_places(medium, places)[0], console)
    if completion.parsed.thought:
        print(f"thought: {completion.parsed.thought.strip()}")
    print(completion.text.strip() if completion.answer is None else completion.answer)
    if completion.finish_reason == "length":
        print(f"(cut after {len(completion.token_ids)} tokens: --max-tokens)")
