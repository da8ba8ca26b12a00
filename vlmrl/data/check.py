"""Looking at data before training on it: check every row, explain one, list the cards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from vlmrl import plugins
from vlmrl.data.cards.box_checks import StatedPlace, noting_places
from vlmrl.data.loader import Make
from vlmrl.data.quarantine import row_id
from vlmrl.data.source import Source
from vlmrl.data.truth_statistics import TruthStatistics
from vlmrl.errors import UserError
from vlmrl.media.access import reference
from vlmrl.media.decode import decode
from vlmrl.media_types import Audio, Decoded, PilImage, Video, described
from vlmrl.schema import Frame, Media, Sample, Space, Truth
from vlmrl.system.atomic_files import write_lines
from vlmrl.truths import prompting
from vlmrl.truths.base import kinds
from vlmrl.truths.json_form import convert, to_json

__all__ = ["CheckedRow", "ask", "check_and_print", "explain", "list_cards"]

SHOWN = 20
"""Bad rows that a summary prints in full."""
CAUSES = 10
"""Causes of bad rows that a summary prints."""
HOW = re.compile(r"</?(?:think|answer|tool_call)>|\\boxed\b|bbox_2d|\bJSON\b", re.IGNORECASE)
"""What in a question says how to lay out the answer, as the instruction of a template does."""
QUOTED = re.compile(r"""((?:column|key) '[^']*')|'[^']*'|"[^"]*\"""")
"""Quoted text; the name of a column or key is kept in the cause of a bad row."""


@dataclass(frozen=True)
class CheckedRow:
    """A row as training would see it: its report line, what it states, and what is odd about it.

    `sample` is None where the row is bad; then `media` is the first that can be found, if any can.
    """

    source: Source
    index: int
    line: dict[str, Any]
    sample: Sample | None
    media: tuple[Media, ...]
    decoded: tuple[Decoded, ...]
    stated: tuple[StatedPlace, ...]
    odd: tuple[str, ...] = ()


def check(source: Source, make: Make | None = None) -> Iterator[dict[str, Any]]:
    """Yield one report line per row, each loaded and decoded as training would; order as in the data.

    A line is `{"id", "ok", "reason", "turns", "says_how", "media": [{"kind", "width", "height",
    "frames", "fps", "duration", "rate"}], "tokens"}`; `turns` counts those before the question,
    `says_how` is what in the question says how to answer (None: nothing), `tokens` is the prompt's
    length if `make` builds prompts, else None.
    """
    return (row.line for row in check_rows(source, make))


def check_rows(source: Source, make: Make | None = None) -> Iterator[CheckedRow]:
    """Yield every row, loaded and decoded as training would; order as in the data."""
    for index in range(len(source.rows)):
        line: dict[str, Any] = {"id": row_id(source, index) or f"row {index}"}
        stated: list[StatedPlace] = []
        try:
            with noting_places() as stated:
                sample = source.sample(index)
            line["id"] = sample.id
            decoded = decode(sample, source.access, source.reading)
            tokens = len(make(sample, decoded).encoded.ids) if make else None
        except UserError as error:
            bad = {"ok": False, "reason": str(error), "turns": 0, "says_how": None}
            line |= {**bad, "media": [], "tokens": None}
            found = _find_medium(source, index)
            yield CheckedRow(source, index, line, None, *found, tuple(stated))
            continue
        media = [_media(*pair) for pair in zip(sample.media, decoded, strict=True)]
        how = HOW.search(sample.text)
        good: dict[str, Any] = {"ok": True, "reason": None, "turns": _count_turns(sample)}
        good["says_how"] = None if how is None else how[0]
        line |= {**good, "media": media, "tokens": tokens}
        known = (sample, sample.media, tuple(decoded))
        yield CheckedRow(source, index, line, *known, tuple(stated))


def _find_medium(source: Source, index: int) -> tuple[tuple[Media, ...], tuple[Decoded, ...]]:
    """Return the first medium of a bad row, and it decoded; nothing where it cannot be had.

    Why not is the reason for which the row is bad, or is no matter next to it.
    """
    try:
        path = source.card.group(source.rows[index])
        if path is None:
            return (), ()
        folder = "" if Path(path).exists() else source.card.media_root() or ""
        media = (reference(path, folder),)
        shown = Sample(path, source.name, media, Truth(none=True))
        return media, tuple(decode(shown, source.access, source.reading))
    except UserError:
        return (), ()


def _count_turns(sample: Sample) -> int:
    """Count the turns before the question; an example has one more, its answer."""
    shown = sum(len(example.turns) + 1 for example in sample.examples)
    return bool(sample.system) + shown + len(sample.history)


def _media(medium: Media, decoded: Decoded) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if isinstance(decoded, PilImage | Video):
        known["width"], known["height"] = decoded.size
    if isinstance(decoded, Video):
        known |= {"frames": len(decoded.frames), "fps": decoded.fps, "duration": decoded.duration}
    if isinstance(decoded, Audio):
        known |= {"rate": decoded.rate, "duration": decoded.duration}
    unknown = dict.fromkeys(("width", "height", "frames", "fps", "duration", "rate"))
    return {"kind": medium.kind, **unknown, **known}


def check_and_print(
    sources: Sequence[Source],
    out: Path | None = None,
    make: Make | None = None,
    see: Callable[[CheckedRow], None] | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Check sources, print bad rows and a summary of each, write the lines to `out`; how many are bad.

    `see` is shown every row, bad ones too; `say` is given each line of the summary.

    Raises:
        UserError: `out` cannot be written.
    """
    found = []
    for source in sources:
        known, lines = TruthStatistics(), []
        for row in check_rows(source, make):
            odd = known.add(row.sample, row.decoded, row.stated)
            lines.append(row.line)
            if see is not None:
                see(replace(row, odd=tuple(odd)))
        found.append((source, lines, known))
    if out is not None:
        write_lines(out, [line for _, lines, _ in found for line in lines])
    for each in found:
        for text in _summarise(*each):
            say(text)
    return sum(not line["ok"] for _, lines, _ in found for line in lines)


def _summarise(
    source: Source, lines: Sequence[dict[str, Any]], known: TruthStatistics
) -> Iterator[str]:
    """Yield bad rows and their causes, then what can be said of all rows of a source."""
    bad = [line for line in lines if not line["ok"]]
    for line in bad[:SHOWN]:
        yield f"bad  {line['id']}: {line['reason']}"
    if len(bad) > SHOWN:
        yield f"... and {len(bad) - SHOWN} more bad rows"
    causes = Counter(cause(line["reason"]) for line in bad)
    for text, count in causes.most_common(CAUSES) if len(causes) < len(bad) else ():
        yield f"bad  {count} rows: {text}"
    if len(causes) > CAUSES and len(causes) < len(bad):
        yield f"... and {len(causes) - CAUSES} more causes"
    good = len(lines) - len(bad)
    yield f"{source.name} {source.split}: {len(lines)} rows, {good} good, {len(bad)} bad"
    if told := [line for line in lines if line["says_how"]]:
        yield (
            f"warning: {len(told)} questions already say how to answer, the first is "
            f"{told[0]['id']} ({told[0]['says_how']!r}); the template's instruction is appended to them "
            "unless the source has instruct: false"
        )
    if any(turns := [line["turns"] for line in lines]):
        yield f"turns before the question: {sum(map(bool, turns))} rows, up to {max(turns)} turns"
    yield from _about_media([medium for line in lines for medium in line["media"]])
    if tokens := [line["tokens"] for line in lines if line["tokens"] is not None]:
        yield f"prompt tokens: {min(tokens)} to {max(tokens)}"
    yield from known.lines()


def _about_media(media: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield how many media of each kind there are, and their sizes or durations."""
    sizes = Counter(f"{m['width']}x{m['height']}" for m in media if m["kind"] == "image")
    if sizes:
        common = ", ".join(f"{size} ({n})" for size, n in sizes.most_common(5))
        yield f"images: {sum(sizes.values())}, {len(sizes)} sizes; most often {common}"
    for kind in ("video", "audio"):
        if seconds := [m["duration"] for m in media if m["kind"] == kind]:
            yield f"{kind}: {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f} s"


def cause(reason: str) -> str:
    """Return why a row is bad without what differs from row to row: places, quoted texts, numbers."""
    plain = QUOTED.sub(lambda found: found[1] or "'...'", reason)
    words = ["..." if "/" in word else word for word in plain.split()]
    text = re.sub(r"\d+(\.\d+)?", "N", " ".join(words))
    return re.sub(r"^(\S+:N: |\.\.\.:? |row N:? )+", "", text)


def ask(sample: Sample, space: Space) -> str:
    """Return what is appended to a question where no config says otherwise."""
    shown = sample.num_images
    return prompting.instruct(sample.template, sample.truth, space, num_images=shown)


def explain(
    source: Source,
    index: int,
    ask: Callable[[Sample, Space], str] = ask,
    render: Callable[[Sample], str] | None = None,
) -> str:
    """Describe one row as training sees it: parts, truth, demonstration, and every box in every space.

    What the card takes the data for comes first. `ask` writes what is appended to a question for a
    model of some space, `render` the whole prompt as the model reads it.

    Raises:
        UserError: no such row, or the row is bad.
    """
    if not 0 <= index < len(source.rows):
        count = len(source.rows)
        raise UserError(f"{source.name} {source.split} has rows 0 to {count - 1}, not {index}")
    sample = source.sample(index)
    decoded = decode(sample, source.access, source.reading)
    lines = [f"data      {said}"] if (said := source.card.describe()) else []
    lines += [f"rows      {len(source.rows)} in split {source.split}"]
    lines += [f"sample    {sample.id} (source {sample.source}, row {index})"]
    lines += [*_turn_lines(sample, iter(decoded))]
    if render is not None:
        lines += [f"prompt    {render(sample)!r}"]
    elif instruction := ask(sample, "pixel"):
        lines += [f"appended  {instruction!r}"]
    lines += [f"template  {sample.template}", *_truth_lines(sample.truth)]
    first = None if sample.main_medium is None else decoded[sample.main_medium]
    width, height = first.size if isinstance(first, PilImage | Video) else (None, None)
    frames = [Frame(width, height, space) for space in get_args(Space) if space != "resized"]
    if width is not None:
        lines += _place_lines(sample.truth, frames)
    return "\n".join(lines + _demo_lines(sample, frames))


def _turn_lines(sample: Sample, shown: Iterator[Decoded]) -> Iterator[str]:
    """Yield a line for each part, and one before each turn if there is more than the question."""
    turns = [(f"example   {e.id}, {t.role}", t) for e in sample.examples for t in e.turns]
    turns += [(f"turn      {turn.role}", turn) for turn in sample.turns]
    if sample.system:
        yield f"system    {sample.system}"
    for name, turn in turns:
        if len(turns) > 1:
            yield name
        for part in turn.parts:
            if isinstance(part, Media):
                yield f"{part.kind:<9} {part.name}, {described(next(shown))}"
            else:
                yield f"text      {part}"


def _truth_lines(truth: Truth) -> list[str]:
    """Return what is set of a truth; places are counted, and shown on their own."""
    lines = [f"truth     is about image {truth.image}, counted from 0"] if truth.image else []
    for name, value in truth.stated().items():
        if kinds()[name].placed and kinds()[name].listed:
            lines.append(f"truth     {len(value)} {name}")
        elif value is not False:
            lines.append(f"truth     {name}: {value}")
    return lines


def _place_lines(truth: Truth, frames: list[Frame]) -> list[str]:
    """Return every place of a truth in every space, as JSON."""
    lines = []
    for kind in kinds().values():
        for item in truth.value(kind.name) or () if kind.placed and kind.listed else ():
            lines.append(f"{kind.name:<9}")
            for frame in frames:
                lines.append(f"  {frame.space:<9} {_shorten(to_json(convert(item, frame)))}")
    return lines


def _shorten(value: Any) -> Any:
    """Return JSON values with four digits a number."""
    if isinstance(value, list):
        return [_shorten(part) for part in value]
    if isinstance(value, dict):
        return {key: _shorten(part) for key, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _demo_lines(sample: Sample, frames: list[Frame]) -> list[str]:
    """Describe the demonstration in each space; one line if it has no coordinates."""
    if sample.demo is None:
        return ["demo      none: this row cannot serve the cold start"]
    if sample.main_medium is None:
        frames = [Frame(space="norm1")]
    written = {f.space: prompting.demonstrate(sample.demo, sample.template, f) for f in frames}
    if len(set(written.values())) == 1:
        return [f"demo      {next(iter(written.values()))!r}"]
    return ["demo", *(f"  {space:<9} {text!r}" for space, text in written.items())]


def list_cards() -> str:
    """Describe the shipped cards: what each is, origin, licence, splits, and verifiers that fit."""
    lines = []
    for name in plugins.names("card"):
        card = plugins.load("card", name)
        lines += [
            f"{name}: {(card.__doc__ or '').strip().splitlines()[0]}",
            f"    origin     {card.origin}" + (f" ({card.revision})" if card.revision else ""),
            f"    licence    {card.licence or 'see the data'}",
            f"    splits     {', '.join(card.splits)}",
            f"    verifiers  {', '.join(card.verifiers) or 'any that the truth has fields for'}",
        ]
    return "\n".join(lines)
