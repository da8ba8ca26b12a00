"""Which layout a data file or folder has: every layout is asked, and the answer is shown, not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vlmrl import plugins
from vlmrl.data.files.hub_download import locate
from vlmrl.data.layout import DataPlace, Layout
from vlmrl.data.row_forms import PUBLISHED
from vlmrl.errors import UserError


@dataclass(frozen=True)
class Match:
    """A layout that fits a place, and why."""

    name: str
    reason: str


def matches(place: DataPlace) -> list[Match]:
    """Return the layouts that fit, less those that another one of them narrows."""
    by_name: dict[str, Match] = {}
    narrowed: set[str] = set()
    for name in plugins.names("layout"):
        layout = plugins.load("layout", name)
        if reason := layout().recognise(place):
            by_name[name] = Match(name, reason)
            narrowed.update(layout.narrows)
    return [match for name, match in by_name.items() if name not in narrowed]


def card_of_path(path: str, options: Mapping[str, object]) -> str:
    """Return the name of the card that reads a data file or folder: table, records or auto."""
    if "columns" in options:
        return "table"
    if "layout" in options:
        return "auto"
    data = DataPlace(locate(path))
    first = data.head[0] if data.head else {}
    if any(first.keys() >= keys for keys in PUBLISHED):
        return "records"
    if matches(data):
        return "auto"
    own = not first or first.keys() >= {"question", "answer"}
    return "records" if own and not data.document else "auto"


def choose(
    place: DataPlace, name: str | None = None, options: Mapping[str, object] | None = None
) -> tuple[Layout, Match]:
    """Return the layout called `name`, or the one that fits, built with these options, and why.

    Raises:
        UserError: there is no such path, layout or option; or none fits, or more than one.
    """
    if not place.path.exists():
        raise UserError(f"{place.path}: no such file or folder")
    if name is not None:
        match = Match(name, "the config says so")
    else:
        candidates = matches(place)
        if len(candidates) != 1:
            raise UserError(f"{place.path}: {_undecided(place, candidates)}")
        match = candidates[0]
    return plugins.build("layout", match.name, options), match


def _undecided(place: DataPlace, found: list[Match]) -> str:
    if found:
        fits = "; ".join(f"{match.name} ({match.reason})" for match in found)
        return f"more than one layout fits: {fits}; write layout: {found[0].name}, or another"
    if place.head:
        seen = f"its rows have the keys {', '.join(place.head[0])}"
    elif place.document:
        seen = f"it is one object with the keys {', '.join([*place.document][:10])}"
    elif place.names:
        seen = f"it holds {', '.join(place.names[:5])}{' ...' if len(place.names) > 5 else ''}"
    else:
        place.rows("train")  # says why it cannot be read
        seen = "it has no rows"
    known = ", ".join(plugins.names("layout"))
    return (
        f"no layout fits: {seen}; write layout: with one of {known}, or map its columns with "
        "the card table"
    )
