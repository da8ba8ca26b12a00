"""`vlmrl try`: ask a model one question about media, and show where its answer points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vlmrl.commands.serving.answer_page import places_of, write_page
from vlmrl.commands.serving.asked_model import ServedModel
from vlmrl.commands.serving.terminal import show_image
from vlmrl.config import PluginRef
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.media_types import PilImage
from vlmrl.schema import Completion, Media, MediaKind, Prompt, Sample, Truth
from vlmrl.truths.drawn import draw_places

__all__ = ["kind_of", "try_model"]

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
