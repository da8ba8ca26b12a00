"""A source: the rows of one card's split, ready to become samples.

Its rows are those of the split, cut or whole, and with a condition (`where`) those of whose numbers it
holds. A row's number is its place among them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import HELD_OUT, Config, DataConfig, SourceConfig, tree
from vlmrl.data.card import Card, read_split, select
from vlmrl.data.files.rows import DEMO, WHERE, RowsView, narrowed, number
from vlmrl.data.sampler import SourceRows
from vlmrl.errors import UserError, about_row, import_extra
from vlmrl.media.access import Access, Reading, giving_access
from vlmrl.schema import Rewards, Rollouts, Sample, Template

if TYPE_CHECKING:
    from vlmrl.data.conditions import Condition

MAX_EXAMPLES = 8
"""Most solved samples before a question: each brings its media into every prompt."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of one card's split. `name` is what curves and the quarantine call it."""

    name: str
    card: Card
    split: str
    rows: Sequence[Mapping[str, Any]]
    weight: float = 1.0
    """Share in a mixture, relative to the other sources."""
    template: str | Template | None = None
    """Answer template of its samples; None: the card's choice."""
    access: Access = field(default_factory=Access)
    """What its media may be read from."""
    reading: Reading = field(default_factory=Reading)
    """How its media are read."""
    system: str = ""
    """Text of the system turn of rows that have none of their own."""
    examples: tuple[Sample, ...] = ()
    """Solved samples that come before each question, but for a row that is one of them."""

    def sample(self, index: int) -> Sample:
        """Return row `index` as a sample; no media is opened.

        Raises:
            UserError: the row is bad; the message says where it is.
            MissingExtra: the row has audio, and what reads audio is not installed.
        """
        where = f"{self.name} {self.split} row {index}"
        with about_row(where):
            row = self.rows[index]
            where = row.get(WHERE, where)
        try:
            with about_row("the card"), giving_access(self.access):
                sample = self.card.to_sample(row, self.name)
                _ = sample.main_medium  # refused here if the truth names an image that there is not
                if sample.rewards:  # few rows name verifiers of their own
                    from vlmrl.data.row_forms import check_applies

                    check_applies(sample)
        except UserError as error:
            raise type(error)(f"{where}: {error}") from error
        kinds = {medium.kind for medium in sample.media}
        if "audio" in kinds or ("video" in kinds and self.reading.with_audio):
            import_extra("soundfile", "audio")
            import_extra("soxr", "audio")
        if DEMO in row:
            sample = replace(sample, demo=row[DEMO])
        if self.system and not sample.system:
            sample = replace(sample, system=self.system)
        if self.examples:
            others = tuple(example for example in self.examples if example.id != sample.id)
            sample = replace(sample, examples=others)
        return sample if self.template is None else replace(sample, template=self.template)


def access_of(data: DataConfig) -> Access:
    """Return what a config lets its sources open."""
    return Access(
        data.media_root,
        data.allow_urls,
        data.allow_private_urls,
        data.url_timeout_s,
        data.url_cache,
        data.max_media_mb,
    )


def access_to(source: SourceConfig, data: DataConfig) -> Access:
    """Return what one source of a config may open."""
    return _rooted(access_of(data), open_card(source.card, source.options))


def _rooted(access: Access, card: Card) -> Access:
    """Return the access; without a root, the card's media folder is it."""
    return access if access.root else replace(access, root=card.media_root())


def reading_of(data: DataConfig) -> Reading:
    """Return how a config wants media read."""
    limits = (data.decode_timeout_s, data.decode_memory_mb, data.max_image_pixels)
    return Reading(data.video, data.audio, *limits, with_audio=bool(data.video.audio))


def require_published(config: SourceConfig) -> None:
    """Check that the folder of a source's published data exists.

    Raises:
        UserError: it does not; the message names the command that gets the data.
    """
    published = config.published
    if published is not None and not Path(published.to).exists():
        raise UserError(
            f"source {config.label!r}: {published.to}: no such folder; get the data, {published.hub} of the "
            "hub, by `vlmrl data fetch` and the config's name"
        )


def open_source(
    config: SourceConfig, access: Access | None = None, reading: Reading | None = None
) -> Source:
    """Open the source that a config describes; without a root in `access`, the card's media folder is it.

    Raises:
        UserError: there is no such card, option, file or split, or no row in it.
    """
    require_published(config)
    card = open_card(config.card, config.options)
    condition = read_condition(config)
    split, rows = config.split, select(card, config.split)[: config.limit]
    if config.ratings is not None:
        from vlmrl.data.ratings import with_ratings  # what few sources name is loaded with them

        rows, digest = with_ratings(rows, Path(config.ratings), rated_as(config))
        split = f"{split} rated {digest}"
    if config.demonstrations is not None:
        from vlmrl.data.demonstrations import with_demonstrations

        rows, digest = with_demonstrations(rows, Path(config.demonstrations), rated_as(config))
        split = f"{split} demonstrated {digest}"
    if condition is not None:
        from vlmrl.data.conditions import matching

        positions = matching(rows, condition, f"{config.label} {split}")
        # What is called so is these very rows: for a resume, and for the list of bad rows.
        split, rows = f"{split} where {condition.text}", RowsView(rows, positions)
    if not len(rows):
        raise UserError(f"source {config.label!r}: split {split!r} has no rows")
    source = Source(
        config.label,
        card,
        split,
        rows,
        config.weight,
        read_template(config),
        _rooted(access or Access(), card),
        reading or Reading(),
    )
    if config.few_shot is None:
        return source
    return replace(source, examples=_examples(source, config.few_shot))


def rated_as(config: SourceConfig) -> dict[str, Any]:
    """Return what a file of ratings says of a source: name, card, options and whole split."""
    split = read_split(config.split)["name"]
    options = config.model_dump(mode="json")["options"]
    return {"name": config.label, "card": config.card, "options": options, "split": split}


def _examples(source: Source, split: str) -> tuple[Sample, ...]:
    where = f"source {source.name!r}, few_shot {split!r}"
    try:
        rows = select(source.card, split)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if not 1 <= len(rows) <= MAX_EXAMPLES:
        raise UserError(
            f"{where}: expected 1 to {MAX_EXAMPLES} rows, got {len(rows)}; cut it, as in "
            f"'{split.partition('[')[0]}[:2]'"
        )
    shown = replace(source, split=split, rows=rows)
    samples = tuple(shown.sample(index) for index in range(len(rows)))
    for sample in samples:
        if sample.demo is None:
            raise UserError(f"{where}: sample {sample.id!r} has no demonstration of its answer")
    return samples


def read_template(config: SourceConfig) -> str | Template | None:
    """Return the template that a source names: a shipped one by name, its own from a file or mapping.

    Raises:
        UserError: there is no such template or file, or it states no template.
    """
    chosen = config.template
    try:
        if isinstance(chosen, str) and chosen.endswith((".yaml", ".yml")):
            return templates.read(tree.read_mapping(Path(chosen)), chosen)
        if isinstance(chosen, str):
            templates.template(chosen)
            return chosen
        return None if chosen is None else templates.read(chosen)
    except UserError as error:
        raise UserError(f"source {config.label!r}: {error}") from error


def run_template(config: Config) -> str | Template:
    """Return the template of a run's completions: its first training source's, else that of its samples.

    Raises:
        UserError: the source names none, and no row of it can be read.
    """
    first = config.data.train[0]
    if (named := read_template(first)) is not None:
        return named
    source = open_configured(config, first)
    for index in range(len(source.rows)):
        try:
            return source.sample(index).template
        except UserError as error:
            last = error
    raise UserError(f"source {first.label!r}: no row of it can be read; the last: {last}")


def read_condition(config: SourceConfig) -> Condition | None:
    """Return the condition on a source's rows; None if there is none.

    Raises:
        UserError: it is not written as one.
    """
    if config.where is None:
        return None
    from vlmrl.data.conditions import Condition

    try:
        return Condition(config.where)
    except UserError as error:
        raise UserError(f"source {config.label!r}: where: {error}") from error


def open_card(name: str, options: Mapping[str, object] | None = None) -> Card:
    """Open a card by name; a data file or folder means `table` if `columns` are given.

    Else it means `auto` where a layout is recognised, and `records` for rows with question and answer.

    Raises:
        UserError: no such card, file or option.
    """
    name, options = card_of(SourceConfig(card=name, options=dict(options or {})))
    card = plugins.build("card", name, options)
    if not isinstance(card, Card):
        raise UserError(f"card {name!r}: expected a class derived from vlmrl.data.card.Card")
    return card


def card_of(config: SourceConfig) -> tuple[str, dict[str, Any]]:
    """Return the name of the card that reads a source, and its options.

    Raises:
        UserError: they name example data that is not on this machine.
    """
    from vlmrl.data import example_data

    name, options = example_data.resolve(config.card), example_data.resolve(config.options)
    if not is_data(name):
        return name, options
    from vlmrl.data.layout_recognition import card_of_path  # data without a card

    return card_of_path(name, options), {"path": name, **options}


def is_data(name: str) -> bool:
    """Return whether a name means a data file or folder, there or not; a card's name never does."""
    if ":" in name or name.endswith(".py") or name in plugins.names("card"):
        return False
    from vlmrl.data.files.opening import FORMATS  # a card has no need of the readers of files

    return "/" in name or Path(name).suffix in FORMATS or Path(name).exists()


def open_target(
    text: str, options: Mapping[str, object] | None = None, root: str | None = None
) -> Source:
    """Open the source that `CARD_OR_FILE[:split]` on a command line means, e.g. `shapes:train[:80%]`.

    Without a split: the one a file's name says, else `train`.

    Raises:
        UserError: no such card, file or split.
    """
    from vlmrl.data import example_data
    from vlmrl.data.files.opening import file_split

    name, split = target(text)
    file = example_data.resolve(name)
    split = split or (file_split(Path(file)) if is_data(file) else "train")
    return open_source(
        SourceConfig(card=name, options=dict(options or {}), split=split), Access(root)
    )


def open_config(settings: Config) -> list[Source]:
    """Open every training source of a config, and its held-out sources.

    Raises:
        UserError: no such card, option, file or split; the message says which part of the config asks.
    """
    return [
        *(open_configured(settings, source) for source in settings.data.train),
        *open_held_out(settings),
    ]


def open_held_out(settings: Config) -> list[Source]:
    """Open the sources of a config's evaluation, which may be none.

    Raises:
        UserError: as for `open_source`; the message says that the evaluation asks.
    """
    try:
        return [open_configured(settings, source) for source in evaluated(settings)]
    except UserError as error:
        assert settings.evaluation is not None
        if settings.evaluation.sources:
            raise UserError(f"evaluation.sources: {error}") from error
        raise UserError(
            f"evaluation: {error}. Without evaluation.sources the split {HELD_OUT[0]!r} of the training "
            f"sources is evaluated, else {', '.join(map(repr, HELD_OUT[1:]))}: name sources, or a split as "
            "`held_out` of the source, or set evaluation=null"
        ) from error


def evaluated(settings: Config) -> list[SourceConfig]:
    """Return the sources of a config's evaluation, each with a split that its data have.

    Raises:
        UserError: there is no such card, option or file.
    """
    sources = settings.held_out
    if not sources or (settings.evaluation and settings.evaluation.sources):
        return sources
    pairs = zip(sources, settings.data.train, strict=True)
    return [s if train.held_out else _with_own_split(s) for s, train in pairs]


def _with_own_split(source: SourceConfig) -> SourceConfig:
    require_published(source)
    split = held_out_split(open_card(source.card, source.options))
    return source.model_copy(update={"split": split})


def held_out_split(card: Card) -> str:
    """Return the first of `HELD_OUT` that a card's data have; `test`, to be refused, if they have none."""
    known = card.splits_there()
    return next((split for split in HELD_OUT if split in known), HELD_OUT[0])


def other_splits(settings: Config) -> Iterator[str]:
    """Yield a line for each source of which another split than `test` is evaluated without being named."""
    for stated, source in zip(settings.held_out, evaluated(settings), strict=True):
        if source.split != stated.split:
            yield f"source {source.label!r} has no split {stated.split!r}: {source.split!r} is evaluated"


def open_configured(settings: Config, source: SourceConfig) -> Source:
    """Open a source of a config, under its rules of where media may be."""
    data = settings.data
    opened = open_source(source, access_of(data), reading_of(data))
    return replace(opened, system=data.system)


def target(text: str) -> tuple[str, str]:
    """Return card and split of `CARD_OR_FILE[:split]`; the split is empty where none is named."""
    from vlmrl.data import example_data

    if text.startswith(example_data.PREFIX):  # whose colon begins no split
        name, split = target(text.removeprefix(example_data.PREFIX))
        return example_data.PREFIX + name, split
    head, bracket, cut = text.partition("[")  # a cut may hold a colon
    name, colon, split = head.rpartition(":")
    outside = name.endswith(".py") or ("." in name and not is_data(name) and ":" not in name)
    if not colon or outside:  # no split, but perhaps `file.py:Name` or `package.module:Name`
        return text, ""
    return name, split + bracket + cut


# --------------------------------------------------------------------------------------------------
# Columns of numbers for samplers: difficulties and the like, read once for all rows of a source.


def known_rows(source: Source) -> SourceRows:
    """Return what samplers know of a source."""
    column = functools.partial(_read_column, source)
    return SourceRows(source.name, len(source.rows), source.weight, column)


def mean_rewards(rollouts: Rollouts, rewards: Rewards) -> list[float | None]:
    """Return the mean reward of each prompt of a row, over what the policy wrote and is valid.

    None if that is nothing.
    """
    means: list[float | None] = []
    scored = zip(rollouts.completions, rewards.total.tolist(), rewards.valid.tolist(), strict=True)
    for prompt, (group, totals, valid) in zip(rollouts.batch.prompts, scored, strict=True):
        if prompt.place is None:
            continue
        each = zip(group, totals, valid, strict=True)
        own = [total for completion, total, ok in each if ok and completion.origin == "policy"]
        means.append(sum(own) / len(own) if own else None)
    return means


def token_diversities(rollouts: Rollouts) -> list[float]:
    """Return of each prompt of a row the share of different ones among all runs of 3 tokens, in [0, 1].

    Those of what the policy wrote; 0 if there is none. Source: Li et al. 2016, "A Diversity-Promoting
    Objective Function", arXiv 1510.03055 (distinct-n).
    """
    shares: list[float] = []
    for prompt, group in zip(rollouts.batch.prompts, rollouts.completions, strict=True):
        if prompt.place is None:
            continue
        ids = [c.token_ids for c in group if c.origin == "policy"]
        runs = [
            run for written in ids for run in zip(written, written[1:], written[2:], strict=False)
        ]
        shares.append(len(set(runs)) / max(1, len(runs)))
    return shares


def _read_column(source: Source, name: str) -> np.ndarray:
    """Return a column [rows] float32; NaN for a row that cannot be read, which is refused when drawn."""
    rows = narrowed(source.rows, [name.partition(".")[0]])
    values = np.full(len(rows), np.nan, np.float32)
    for position in range(len(rows)):
        try:
            row = rows[position]
        except UserError:
            continue
        try:
            values[position] = number(row, name)
        except UserError as error:
            where = row.get(WHERE, f"{source.name} {source.split} row {position}")
            raise UserError(f"{where}: {error}") from error
    return values
