"""Looking at data before training on it: check every row, explain one, list the cards."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from vlmrl import plugins
from vlmrl.data.annotations import StatedPlace, noting_places
from vlmrl.data.loader import Make
from vlmrl.data.multiple_choice import shows
from vlmrl.data.quarantine import row_id
from vlmrl.data.source import Source
from vlmrl.data.units import (
    SPACES,
    UnitTally,
    content_of,
    equal_ids,
    read_place,
    read_span,
)
from vlmrl.errors import UserError, about_row, shortened
from vlmrl.media.access import reference
from vlmrl.media.decode import decode
from vlmrl.schema import Frame, Media, Sample, Space, Truth
from vlmrl.schema.media import Audio, Decoded, PilImage, Video, described
from vlmrl.system.files import write_lines
from vlmrl.truths import prompting
from vlmrl.truths.base import kinds
from vlmrl.truths.json_form import convert, to_json

# --------------------------------------------------------------------------------------------------
# Statistics of the truths of a source: what a reader of rows cannot see and a training run suffers from.
#
# Sizes of boxes, those under a pixel, on the border, stated twice; points; spans against the duration of
# their medium; rows that repeat another; and whether the numbers fit the unit that the data are said to
# be in.


BORDER = 1e-6
"""Share of the image within which a place touches its border."""
BEYOND_S = 0.1
"""Seconds by which a span may end after its medium: containers round."""
WHOLE = 0.99
"""Share of the duration from which a span is all of it."""
KINDS = ("boxes", "points", "spans")


@dataclass
class TruthStatistics:
    """What is counted over the rows of one source; `add` each row, then print `lines`."""

    per_row: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in KINDS})
    """Kind -> how many each row states."""
    counts: Counter[str] = field(default_factory=Counter)
    """`boxes touch the border` and the like."""
    sizes: list[float] = field(default_factory=list)
    """Shares of the image that boxes cover."""
    lengths: list[float] = field(default_factory=list)
    """Seconds of spans."""
    units: dict[tuple[str, str], UnitTally] = field(default_factory=dict)
    """Kind and declared unit -> how values fit each unit."""
    seen: set[bytes] = field(default_factory=set)
    """Digests of rows."""

    def add(
        self, sample: Sample | None, decoded: Sequence[Decoded], stated: Sequence[StatedPlace]
    ) -> list[str]:
        """Count a row; return what is odd about it, in words. `sample` is None where the row is bad."""
        main = 0 if sample is None else sample.main_medium
        medium = decoded[main] if main is not None and decoded else None
        size = medium.size if isinstance(medium, PilImage | Video) else None
        for position in stated:
            kind = "boxes" if len(position.numbers) == 4 else "points"
            self._tally(kind, SPACES[position.frame.space]).add(read_place(position, size))
        if sample is None:
            return []
        odd = [*self._places(sample, size), *self._spans(sample, medium)]
        digest = content_of(sample)
        odd += ["repeats an earlier row"] if digest in self.seen else []
        self.counts["rows"] += digest in self.seen
        self.seen.add(digest)
        return odd

    def _tally(self, kind: str, unit: str) -> UnitTally:
        return self.units.setdefault((kind, unit), UnitTally(unit))

    def _places(self, sample: Sample, size: tuple[int, int] | None) -> Iterator[str]:
        boxes, points = sample.truth.boxes, sample.truth.points
        if boxes is not None:
            self.per_row["boxes"].append(len(boxes))
            self.sizes += [(b.x2 - b.x1) * (b.y2 - b.y1) for b in boxes]
            width, height = size or (math.inf, math.inf)
            sides = [min((b.x2 - b.x1) * width, (b.y2 - b.y1) * height) for b in boxes]
            yield from self._count("boxes under 1 px", sum(side < 1 - BORDER for side in sides))
            self.counts["boxes on the border"] += sum(_on_border(b.xyxy) for b in boxes)
            yield from self._count("boxes stated twice", len(boxes) - len(set(boxes)))
        if points is not None:
            self.per_row["points"].append(len(points))
            self.counts["points on the border"] += sum(_on_border((p.x, p.y)) for p in points)
            yield from self._count("points stated twice", len(points) - len(set(points)))

    def _spans(self, sample: Sample, medium: object) -> Iterator[str]:
        spans = sample.truth.spans
        if spans is None:
            return
        self.per_row["spans"].append(len(spans))
        self.lengths += [span.end - span.start for span in spans]
        yield from self._count("spans without length", sum(s.end <= s.start for s in spans))
        yield from self._count("spans stated twice", len(spans) - len(set(spans)))
        if not isinstance(medium, Video | Audio) or medium.duration <= 0:
            return
        duration, fps = medium.duration, medium.fps if isinstance(medium, Video) else None
        for span in spans:
            self._tally("spans", "seconds").add(read_span(span, duration, fps))
        whole = sum(span.end - span.start >= WHOLE * duration for span in spans)
        self.counts["spans over all of their medium"] += whole
        late = sum(span.end > duration + BEYOND_S for span in spans)
        yield from self._count("spans beyond the end of their medium", late)

    def _count(self, what: str, number: int) -> Iterator[str]:
        """Count something odd, and yield it in words if there is any."""
        self.counts[what] += number
        if number:
            yield f"{number} {what}"

    def lines(self) -> Iterator[str]:
        """Yield the statistics as lines of text, warnings last."""
        for kind, numbers in self.per_row.items():
            if numbers:
                yield self._about(kind, numbers)
        if self.counts["rows"]:
            yield f"warning: {self.counts['rows']} rows repeat an earlier row: media, question, truth"
        if tiny := self.counts["boxes under 1 px"]:
            yield f"warning: {tiny} boxes are smaller than a pixel on a side, which no answer can match"
        if late := self.counts["spans beyond the end of their medium"]:
            yield f"warning: {late} spans end after their medium"
        for (kind, _), tally in self.units.items():
            if verdict := tally.judge():
                yield f"warning: these {kind} {verdict}"

    def _about(self, kind: str, numbers: Sequence[int]) -> str:
        total = sum(numbers)
        parts = [f"{total} in {len(numbers)} rows, {min(numbers)} to {max(numbers)} a row"]
        if empty := sum(number == 0 for number in numbers):
            parts.append(f"{empty} rows have none")
        if kind == "boxes" and self.sizes:
            parts.append(f"each {_spread([100 * size for size in self.sizes])} % of its image")
        if kind == "spans" and self.lengths:
            parts.append(f"each {_spread(self.lengths)} s long")
        for what, number in self.counts.items():
            if number and what.startswith(f"{kind} "):
                share = f"{100 * number / max(1, total):.2g} %"
                parts.append(f"{number} ({share}) {what.removeprefix(f'{kind} ')}")
        for (of, unit), tally in self.units.items():
            if of == kind and tally.misfits[unit]:
                parts.append(f"{tally.misfits[unit]} of {tally.count} do not fit as {unit}")
        return f"{kind}: {'; '.join(parts)}"


def _spread(values: Sequence[float]) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{low:.3g} to {high:.3g} (median {middle:.3g})"


def _on_border(numbers: Sequence[float]) -> bool:
    return min(numbers) <= BORDER or max(numbers) >= 1 - BORDER


# --------------------------------------------------------------------------------------------------


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


def check_rows(source: Source, make: Make | None = None) -> Iterator[CheckedRow]:
    """Yield every row, loaded and decoded as training would; order as in the data.

    A line is `{"id", "missing", "ok", "reason", "turns", "says_how", "hides_options", "media": [{"kind",
    "width", "height", "frames", "fps", "duration", "rate"}], "tokens"}`; `missing` are paths of media
    that are not there, `turns` counts those before the question, `says_how` is what in the question says
    how to answer (None: nothing), `hides_options` whether it does not show the options of its choice,
    `tokens` is the prompt's length if `make` builds prompts, else None.
    """
    for index in range(len(source.rows)):
        line: dict[str, Any] = {"id": row_id(source, index) or f"row {index}", "missing": []}
        stated: list[StatedPlace] = []
        sample = None
        try:
            with noting_places() as stated:
                sample = source.sample(index)
            line["id"] = sample.id
            decoded = decode(sample, source.access, source.reading)
            with about_row(f"sample {sample.id!r:.200}"):
                tokens = len(make(sample, decoded).encoded.ids) if make else None
        except UserError as error:
            line |= {"ok": False, "reason": shortened(str(error)), "turns": 0, "says_how": None}
            line |= {"hides_options": False, "media": [], "tokens": None}
            paths = [m.path for m in sample.media if m.path] if sample else []
            line["missing"] = [path for path in paths if not os.path.exists(path)]
            medium = _find_medium(source, index)
            yield CheckedRow(source, index, line, None, *medium, tuple(stated))
            continue
        how = HOW.search(sample.text)
        # An example has one turn more than those before it, its answer.
        turns = sum(len(example.turns) + 1 for example in sample.examples)
        choice, options = sample.truth.choice, sample.truth.options
        line |= {
            "ok": True,
            "reason": None,
            "turns": bool(sample.system) + turns + len(sample.history),
            "says_how": how and how[0],
            "hides_options": bool(choice and options and not shows(sample.text, options, choice)),
            "media": [_media(*pair) for pair in zip(sample.media, decoded, strict=True)],
            "tokens": tokens,
        }
        known = (sample, sample.media, tuple(decoded))
        yield CheckedRow(source, index, line, *known, tuple(stated))


def _find_medium(source: Source, index: int) -> tuple[tuple[Media, ...], tuple[Decoded, ...]]:
    """Return the first medium of a bad row, and it decoded; nothing where it cannot be had.

    Why not is the reason for which the row is bad, or is no matter next to it.
    """
    try:
        with about_row(f"row {index}"):
            path = source.card.group(source.rows[index])
            if path is None:
                return (), ()
            folder = "" if Path(path).exists() else source.card.media_root() or ""
            media = (reference(path, folder),)
            shown = Sample(path, source.name, media, Truth(none=True))
            return media, tuple(decode(shown, source.access, source.reading))
    except UserError:
        return (), ()


def _media(medium: Media, decoded: Decoded) -> dict[str, Any]:
    keys = ("width", "height", "frames", "fps", "duration", "rate")
    line: dict[str, Any] = {"kind": medium.kind, **dict.fromkeys(keys)}
    if isinstance(decoded, PilImage | Video):
        line["width"], line["height"] = decoded.size
    if isinstance(decoded, Video):
        line |= {"frames": len(decoded.frames), "fps": decoded.fps, "duration": decoded.duration}
    if isinstance(decoded, Audio):
        line |= {"rate": decoded.rate, "duration": decoded.duration}
    return line


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
    checked = []
    for source in sources:
        known, lines = TruthStatistics(), []
        for row in check_rows(source, make):
            odd = known.add(row.sample, row.decoded, row.stated)
            lines.append(row.line)
            if see is not None:
                see(replace(row, odd=tuple(odd)))
        checked.append((source, lines, known))
    if out is not None:
        write_lines(out, [line for _, lines, _ in checked for line in lines])
    for each in checked:
        for text in _summarise(*each):
            say(text)
    return sum(not line["ok"] for _, lines, _ in checked for line in lines)


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
    if shared := equal_ids(line["id"] for line in lines):
        yield f"warning: {shared}"
    if asked := [line for line in lines if line["says_how"]]:
        yield (
            f"warning: {len(asked)} questions already say how to answer, the first is "
            f"{asked[0]['id']} ({asked[0]['says_how']!r}); the template's instruction is appended to them "
            "unless the source has instruct: false"
        )
    if hidden := [line for line in lines if line["hides_options"]]:
        yield (
            f"warning: {len(hidden)} questions do not show the options of their choice, the first is "
            f"{hidden[0]['id']}: a letter can only be guessed"
        )
    if any(turns := [line["turns"] for line in lines]):
        yield f"turns before the question: {sum(map(bool, turns))} rows, up to {max(turns)} turns"
    media = [medium for line in lines for medium in line["media"]]
    if missing := [path for line in lines for path in line["missing"]]:
        yield f"media: {len(media)} found, {len(missing)} missing, the first is {missing[0]}"
    sizes = Counter(f"{m['width']}x{m['height']}" for m in media if m["kind"] == "image")
    if sizes:
        common = ", ".join(f"{size} ({n})" for size, n in sizes.most_common(5))
        yield f"images: {sizes.total()}, {len(sizes)} sizes; most often {common}"
    for kind in ("video", "audio"):
        if seconds := [m["duration"] for m in media if m["kind"] == kind]:
            yield f"{kind}: {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f} s"
    if tokens := [line["tokens"] for line in lines if line["tokens"] is not None]:
        yield f"prompt tokens: {min(tokens)} to {max(tokens)}"
    yield from known.lines()


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
    lines = [f"data      {description}"] if (description := source.card.describe()) else []
    lines += [
        f"rows      {len(source.rows)} in split {source.split}",
        f"sample    {sample.id} (source {sample.source}, row {index})",
        *_turn_lines(sample, iter(decoded)),
    ]
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


def _truth_lines(truth: Truth) -> Iterator[str]:
    """Yield what is set of a truth; places are counted, and shown on their own."""
    if truth.image:
        yield f"truth     is about image {truth.image}, counted from 0"
    for name, value in truth.stated().items():
        if kinds()[name].placed and kinds()[name].listed:
            yield f"truth     {len(value)} {name}"
        elif value is not False:
            yield f"truth     {name}: {value}"


def _place_lines(truth: Truth, frames: list[Frame]) -> Iterator[str]:
    """Yield every place of a truth in every space, as JSON."""
    for kind in kinds().values():
        for item in truth.value(kind.name) or () if kind.placed and kind.listed else ():
            yield f"{kind.name:<9}"
            for frame in frames:
                yield f"  {frame.space:<9} {_shorten(convert(item, frame))}"


def _shorten(place: object) -> Any:
    """Return the JSON values of a place with four digits a number."""
    written = json.dumps(to_json(place))
    return json.loads(written, parse_float=lambda number: float(f"{float(number):.4g}"))


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
