"""The contract of a public benchmark: one short file under `benchmarks/` that declares, and computes nothing.

A benchmark says where its published data is and in which layout, how each harness asks, how each
harness scores (by the name of an official scorer), and by which strict verifier we judge. One
generation serves both numbers.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlmrl import plugins
from vlmrl.benchmarking.rows import INDEX, Published, PublishedRows, published_rows
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.config import RewardConfig
from vlmrl.data.card import Card
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.schema import Media, Sample

OURS = "ours"
"""The protocol of our own prompt: the plain question, and the template's instruction."""


@dataclass(frozen=True)
class Official:
    """How a harness asks and scores: `name@version` is the protocol.

    `ask` is its prompt, with `{question}`, `{capitalized}` (as Python capitalizes it: the rest in lower
    case), `{options}` (lines `A. text`), `{letters}` (`A, B`) and any column that is mapped to none of
    our keys; `ask_open` is its prompt where a row has no options; `without` is a text to take out of
    the question; `system` is the text of its system turn. `interleaved` puts images where the prompt
    says `<image 1>`, else they come first: in their order, or with `numbered` the one of that number.
    `mark` is a text of which each one in the prompt stands for the next image, and images beyond the
    marks are left out. `max_tokens` is its limit. `scorer` names one of
    `vlmrl.benchmarking.scorers`. `aggregate` names one of
    `vlmrl.benchmarking.aggregates`, `by` the column it takes means over. `unread` says what
    an answer scores in which the rule finds nothing: `wrong`, or `expected` where the harness draws an
    option at random, which is the chance to be right. `unit` is how the harness prints the number;
    `also` names more aggregates to print, each with its column as `all_of_groups by column`. `judge` is
    the model that the harness asks about answers that its rule cannot read; without one our number is a
    lower bound of the harness's. `points`: it gives a share of the points, not right or wrong.
    `template` is how its prompt lays a completion out; its rule is given the answer, or by `whole` the
    completion with its tags, for rules that look for the tags themselves. `task` is the harness's name
    of the benchmark, where it scores a log of our answers to the same rows (`--export`); for VLMEvalKit
    its class and its name, with a blank between.
    """

    protocol: str
    ask: str
    max_tokens: int
    scorer: str
    aggregate: str = "mean"
    by: str = ""
    unread: Literal["wrong", "expected"] = "wrong"
    unit: Literal["fraction", "percent", "sum"] = "fraction"
    also: tuple[str, ...] = ()
    without: str = ""
    ask_open: str = ""
    interleaved: bool = False
    numbered: bool = False
    mark: str = ""
    judge: str = ""
    points: bool = False
    template: str = "none"
    whole: bool = False
    system: str = ""
    task: str = ""


@dataclass(frozen=True)
class Strict:
    """The verifier that cannot be gamed, with its options, and the aggregates of its scores."""

    verifier: str
    options: Mapping[str, Any]
    aggregate: str = "mean"
    by: str = ""
    also: tuple[str, ...] = ()

    def reward(self) -> RewardConfig:
        """Return the verifier as a reward, as a config names it."""
        return RewardConfig(verifier=self.verifier, options=dict(self.options))


@dataclass(frozen=True)
class Known:
    """A published value, as its source prints it, and by which protocol it was found there."""

    model: str
    value: float
    protocol: str
    source: str


@dataclass(frozen=True)
class Benchmark:
    """Base of benchmarks. A subclass declares the class variables; `path` is the only option.

    Class variables: `origin`, `licence`, `hub` (id of the published data), `checked` (what of the
    declaration was compared with which source, and when; empty: nothing but the harness), `split`,
    `count` (rows of the split as published; another number is an error), `splits` (other splits and
    their counts, opened as `name:split`), `files` (folders or files of the published data that hold the
    split, or patterns of files, such as `mmsu/*.parquet`; empty: all), `only` (column, published or
    added, -> value of the rows that count), `each` (column with a list, each item of which is a row; or
    several columns, each of which is a row that says under `EACH` which), `beside` (folder of the
    published data whose rows' columns a row has as well, the column of the row that names one of them,
    and theirs that it names), `layout` (`coco`: one file with images, annotations and categories;
    `moments`: one object with the sentences of each video; `classes`: Visual-RFT's lists; `episodes`: a
    list of steps a file; see `vlmrl.benchmarking.rows` for all of them), `columns`
    (our key -> column of the published layout, as in the card `table`), `options_in_image` (the image
    shows the options, which our own prompt then does not list), `box_space`, `box_format`,
    `cluster` (column that rows share which are not independent, such as their image; empty: every row
    for itself), `groups` (columns by which results are reported), `officials`, `strict` and `known`
    (published values).
    """

    origin: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    hub: ClassVar[str] = ""
    checked: ClassVar[str] = ""
    split: ClassVar[str] = "test"
    count: ClassVar[int] = 0
    splits: ClassVar[Mapping[str, int]] = {}
    files: ClassVar[tuple[str, ...]] = ()
    only: ClassVar[Mapping[str, str]] = {}
    each: ClassVar[str | tuple[str, ...]] = ""
    beside: ClassVar[tuple[str, ...]] = ()
    layout: ClassVar[Literal["table", "coco", "moments", "classes", "episodes"]] = "table"
    columns: ClassVar[Mapping[str, str]] = {}
    options_in_image: ClassVar[bool] = False
    box_space: ClassVar[str | None] = None
    box_format: ClassVar[str] = "xyxy"
    cluster: ClassVar[str] = ""
    groups: ClassVar[tuple[str, ...]] = ()
    officials: ClassVar[tuple[Official, ...]] = ()
    strict: ClassVar[Strict]
    known: ClassVar[tuple[Known, ...]] = ()

    path: str
    """A local copy of the published data: a folder with the files of the split, or one file."""

    def adapt(self, row: Mapping[str, object]) -> Mapping[str, Any]:
        """Return a row of the published layout with every value in a column of its own."""
        return row

    def protocols(self) -> tuple[str, ...]:
        """Return the protocols by which this benchmark can be run."""
        return (*(official.protocol for official in self.officials), OURS)

    def official(self, protocol: str) -> Official | None:
        """Return how a harness asks and scores, None for `ours`.

        `lmms_eval` means the one version of it that there is.

        Raises:
            UserError: this benchmark has no such protocol; the message names those it has.
        """
        if protocol == OURS:
            return None
        fits = [o for o in self.officials if protocol in (o.protocol, o.protocol.split("@")[0])]
        if len(fits) != 1:
            known = ", ".join(self.protocols())
            raise UserError(
                f"benchmark {name_of(self)!r} has no protocol {protocol!r}; it has: {known}"
            )
        return fits[0]


class BenchmarkCard(Card):
    """A benchmark as a card: its rows as samples, asked by one protocol."""

    def __init__(self, benchmark: Benchmark, protocol: str) -> None:
        """Map the columns by the card `table`."""
        self.benchmark = benchmark
        self.official = benchmark.official(protocol)
        self.change: Callable[[Sample], Sample] = lambda sample: sample
        """What a control does to a sample before it is asked."""
        self.table: Card = plugins.build(
            "card",
            "table",
            {
                "path": benchmark.path,
                "columns": dict(benchmark.columns),
                "box_space": benchmark.box_space,
                "box_format": benchmark.box_format,
                # A harness's own prompt says where they stand.
                "list_options": self.official is None and not benchmark.options_in_image,
            },
        )

    def rows(self, split: str) -> PublishedRows:
        """Return the rows of the benchmark's split.

        Raises:
            UserError: there are none, or a column of the published layout is missing.
        """
        benchmark = self.benchmark
        path = Path(benchmark.path)
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; {_how_to_get(benchmark, path)}")
        how = Published(
            benchmark.files,
            benchmark.only,
            benchmark.each,
            benchmark.layout,
            benchmark.adapt,
            benchmark.beside,
        )
        rows = published_rows(path, split, how)
        there = rows[0] if len(rows) else {}
        for key, column in benchmark.columns.items():
            if there and column not in there:
                raise UserError(
                    f"{benchmark.path}: expected column {column!r} ({key} of benchmark "
                    f"{name_of(benchmark)!r}), got {', '.join(sorted(there))}"
                )
        return rows

    def to_sample(self, row: Mapping[str, object], source: str) -> Sample:
        """Return a row as a sample that is asked by the protocol."""
        sample = self.table.to_sample(row, source)
        sample = self.change(replace(sample, meta={**sample.meta, INDEX: row[INDEX]}))
        if self.official is None:
            return sample
        media = [part for part in sample.parts if isinstance(part, Media)]
        asked = _ask(self.official, sample)
        parts: list[str | Media] = [*media, asked]
        if self.official.interleaved and media:
            interleave = _interleave_by_number if self.official.numbered else _interleave
            parts = list(interleave(asked, media))
        elif self.official.mark:
            parts = list(_at_marks(asked, self.official.mark, media))
        system = self.official.system or sample.system
        return replace(sample, parts=tuple(parts), template=self.official.template, system=system)

    def media_root(self) -> str | None:
        """Return the folder of the data."""
        return self.table.media_root()


def _how_to_get(benchmark: Benchmark, path: Path) -> str:
    name = name_of(benchmark).partition(":")[0]
    if repository_of(benchmark.hub) is None or name not in plugins.names("benchmark"):
        return f"get the data at {benchmark.hub or benchmark.origin}"
    where = "" if path.parent == Path("data") else f" --to {path.parent}"
    return f"get the data by `vlmrl data fetch {name}{where}`"


def repository_of(hub: str) -> str | None:
    """Return the id `owner/name` that `Benchmark.hub` begins with; None if the data are not on the hub."""
    match = re.match(r"([\w.-]+/[\w.-]+)(?=$|[ ,])", hub)
    return match[1] if match else None


def open_benchmark(name: str, path: str) -> Benchmark:
    """Return a benchmark by name, or one of its other splits by `name:split`; its data is at `path`.

    Raises:
        UserError: there is no such benchmark or split; the message suggests the nearest name.
    """
    name, split = plugins.split_of(name)
    benchmark = plugins.build("benchmark", name, {"path": path})
    if not isinstance(benchmark, Benchmark):
        raise UserError(f"benchmark {name!r}: expected a Benchmark, got {type(benchmark).__name__}")
    for official in benchmark.officials:
        if official.scorer not in SCORERS:
            raise UserError(
                f"benchmark {name!r}: no official scorer is named {official.scorer!r}"
                f"{nearest(official.scorer, list(SCORERS))}"
            )
    return _other_split(benchmark, split) if split and split != benchmark.split else benchmark


def _other_split(benchmark: Benchmark, split: str) -> Benchmark:
    if split not in benchmark.splits:
        known = ", ".join((benchmark.split, *benchmark.splits))
        raise UserError(f"benchmark {name_of(benchmark)!r} has no split {split!r}; it has: {known}")
    kind = type(benchmark)
    declared = {"split": split, "count": benchmark.splits[split], "__module__": kind.__module__}
    return type(kind.__name__, (kind,), declared)(benchmark.path)


def name_of(benchmark: Benchmark) -> str:
    """Return the name of a benchmark: that of its file, and its split if it is not the first."""
    name = plugins.name_of(type(benchmark))
    return f"{name}:{benchmark.split}" if benchmark.split in benchmark.splits else name


def published_values(label: str) -> tuple[Known, ...]:
    """Return the values published of a benchmark that has this name; none for a file's."""
    name = label.partition(":")[0]
    has_name = name in plugins.names("benchmark")
    return tuple(plugins.load("benchmark", name).known) if has_name else ()


def _ask(official: Official, sample: Sample) -> str:
    """Return the prompt of a harness for a sample; braces in the data stay as they are."""
    question = " ".join(part for part in sample.parts if isinstance(part, str))
    question = question.replace(official.without, "") if official.without else question
    options = sample.truth.options or ()
    lettered = zip(string.ascii_uppercase, options, strict=False)
    filled = {
        **{column: str(value) for column, value in sample.meta.items()},
        "question": question,
        "capitalized": question.capitalize(),
        "options": "\n".join(f"{letter}. {text}" for letter, text in lettered),
        "letters": ", ".join(string.ascii_uppercase[: len(options)]),
    }
    ask = official.ask if options or not official.ask_open else official.ask_open
    return re.sub(r"\{(\w+)\}", lambda mark: filled[mark[1]], ask)


def _interleave(asked: str, media: Sequence[Media]) -> Iterator[str | Media]:
    """Yield images after the text before their mark, as lmms-eval does for MMMU.

    The images are taken in their order whatever the number in a mark; of more marks than images the
    text between the last ones is left out.
    """
    texts = [text.strip() for text in re.split(r"<image [1-7]>", asked)]
    for number, medium in enumerate(media):
        if number < len(texts) - 1 and texts[number]:
            yield texts[number]
        yield medium
    yield texts[-1]


def _interleave_by_number(asked: str, media: Sequence[Media]) -> Iterator[str | Media]:
    """Yield text as it stands, and images where their number is named, as VLMEvalKit does for MMMU.

    An image that is named twice stands twice; without a name in the text all come first.
    """
    texts = re.split(r"<image (\d)>", asked)
    numbers = sorted({*texts[1::2]})
    if not numbers:
        yield from media
    for at, text in enumerate(texts):
        if at % 2:
            yield media[numbers.index(text)]
        elif text:
            yield text


def _at_marks(asked: str, mark: str, media: Sequence[Media]) -> Iterator[str | Media]:
    """Yield the texts between marks as they are, and an image at each mark for which there is one."""
    left = iter(media)
    for number, text in enumerate(asked.split(mark)):
        if number:
            yield from itertools.islice(left, 1)
        if text:
            yield text
