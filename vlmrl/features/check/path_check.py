"""`vlmrl data check PATH`: what data are taken for, all their splits, and the source to write in a config."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from vlmrl.config import SourceConfig
from vlmrl.data import example_data
from vlmrl.data.annotations import noting_places
from vlmrl.data.source import (
    Source,
    card_of,
    held_out_split,
    is_data,
    open_card,
    open_source,
    target,
)
from vlmrl.data.units import SPACES, UnitTally, read_place
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.schema import Space

LOOK = 200
"""Rows whose places say in which space they are."""
HELD_BACK = "10%"
"""Share of `train` that the source keeps for the evaluation where no split does."""


@dataclass(frozen=True)
class CheckedPath:
    """The sources of all splits of a path, with lines to say before and after their check."""

    sources: list[Source]
    before: list[str]
    after: list[str]
    config: dict[str, Any]
    """The source that trains on these data, as a config writes it."""
    guess: Space | None = None
    """The space that is taken for places because none is stated."""


def is_path(data: str) -> bool:
    """Return whether a target names a data file or folder, and none of its splits."""
    name, split = target(data)
    return not split and is_data(example_data.resolve(name))


def open_path(data: str, options: Mapping[str, Any], root: str | None) -> CheckedPath:
    """Open all splits of a data file or folder, as the card that reads it.

    Where no space is known for places the likeliest is taken, and said: a config has to state it.

    Raises:
        UserError: no card, layout or split fits.
    """
    name, stated = card_of(SourceConfig(card=data, options=dict(options)))
    label = SourceConfig(card=data).label
    splits = open_card(name, stated).splits_there()
    written = {"path": data, **options}
    if not splits:
        source = open_source(SourceConfig(card=name, options=stated), Access(root))
        return CheckedPath([source], [], [], {"card": name, "options": written})
    before = [open_card(name, stated).describe() or f"card {name}"]
    guess = None
    if name == "auto" and "box_space" not in stated:
        guess, line = _likely_space(stated, splits[0], root)
        before += [line] if line else []
        if guess is not None:
            stated, written = {**stated, "box_space": guess}, {**written, "box_space": guess}
    configs = [SourceConfig(name=label, card=name, options=stated, split=s) for s in splits]
    sources = [open_source(config, Access(root)) for config in configs]
    tree, note = _source_tree(name, written, sources)
    text = yaml.safe_dump([tree], sort_keys=False, default_flow_style=None, width=1000)
    lines = [f"    {line}" for line in text.splitlines()]
    after = [f"for a config ({note}):", "data:", "  train:", *lines]
    return CheckedPath(sources, before, after, tree, guess)


def _likely_space(
    options: dict[str, Any], split: str, root: str | None
) -> tuple[Space | None, str]:
    """Return the space that the first places are in if none is stated, and a line about it."""
    with noting_places() as stated:
        _read_rows(SourceConfig(card="auto", options=options, split=split), root)
    if stated:
        return None, ""
    pixels = SourceConfig(card="auto", options={**options, "box_space": "pixel"}, split=split)
    with noting_places() as stated:
        _read_rows(pixels, root)
    if not stated:
        return None, ""
    tally = UnitTally("pixel")
    for mark in stated:
        tally.add(read_place(mark, None))
    words = ", ".join(
        f"{space} {tally.count - tally.misfits[name]} (up to {100 * tally.reach[name]:.3g} % of the image)"
        for space, name in SPACES.items()
    )
    line = f"no space is stated for places; of {tally.count} there fit as {words}"
    fitting = [s for s, name in SPACES.items() if not tally.misfits[name]]
    if not fitting:
        return None, f"{line}: state box_space"
    space = max(fitting, key=lambda s: tally.reach[SPACES[s]])
    return space, f"{line}: likely {space}, which is taken here; a config has to state it"


def _read_rows(config: SourceConfig, root: str | None) -> None:
    source = open_source(config, Access(root))
    for row in range(min(len(source.rows), LOOK)):
        with contextlib.suppress(UserError):  # the check of all rows names it
            source.sample(row)


def _source_tree(
    card: str, options: dict[str, Any], sources: list[Source]
) -> tuple[dict[str, Any], str]:
    """Return the source of a config that trains on these data, and what it evaluates, in words."""
    splits = [source.split for source in sources]
    train = "train" if "train" in splits else splits[0]
    held_out = held_out_split(sources[0].card)
    tree: dict[str, Any] = {"card": card, "options": options}
    if held_out in splits and held_out != train:
        return tree | ({} if train == "train" else {"split": train}), f"{held_out} is evaluated"
    tree |= {"split": f"{train}[{HELD_BACK}:]", "held_out": f"{train}[:{HELD_BACK}]"}
    return tree, "no split is for the evaluation: a part is kept for it"
