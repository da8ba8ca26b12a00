"""The page of coverage: each published system with its state, what shows it, and what is missing.

`coverage.yaml` is the data; what it names is looked up, so that a part that is gone fails the build.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import part_pages
import yaml
from pydantic import BaseModel, ConfigDict, Field
from tables import escape, header, link_paper, link_part, row

from vlmrl import plugins

FILE = Path(__file__).with_name("coverage.yaml")
MEANT = {
    "runs": "the published method trains from a config; data, sizes and base may be others",
    "partly": "a part of the method is not built",
    "out": "it cannot be trained here",
}
"""State -> what it means."""


class Figure(BaseModel):
    """A published figure: of which recipe, what, from where, and the benchmarks here that ask the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    figure: str
    source: str
    benchmarks: list[str] = []


class System(BaseModel):
    """A line of the table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(alias="system")
    papers: list[str] = []
    state: Literal["runs", "partly", "out"]
    recipes: list[str] = []
    parts: dict[str, list[str]] = {}
    pages: list[str] = []
    note: str = ""
    figures: list[Figure] = []

    @property
    def anchor(self) -> str:
        """The end of a link to its line."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


@functools.cache
def read_systems() -> Sequence[System]:
    """Return every system of the file.

    Raises:
        ValidationError: a key is unknown, lacks or has another type.
    """
    return [System.model_validate(one) for one in yaml.safe_load(FILE.read_text("utf-8"))]


def table() -> str:
    """Return the count of each state, then the table."""
    systems = read_systems()
    counted = Counter(system.state for system in systems)
    lines = [*header("state", "systems", "what it means")]
    lines += [row(state, str(counted[state]), meant) for state, meant in MEANT.items()]
    lines += ["", *header("system", "state", "shown by", "missing or different")]
    for system in systems:
        links = map(link_paper, system.papers)
        name = f'<a id="{system.anchor}"></a>**{escape(system.name)}**'
        lines.append(
            row(
                " ".join([name, *links]),
                system.state,
                ", ".join(shown(system)),
                escape(system.note),
            )
        )
    return "\n".join(lines)


def shown(system: System) -> Iterator[str]:
    """Yield the links of what shows a system; the page is in `recipes/`."""
    for recipe in system.recipes:
        yield f"[`recipes/{recipe}`]({recipe}.md)"
    for kind, names in system.parts.items():
        for name in names:
            plugins.check(kind, name)
            yield link_part(part_pages.FOLDERS[kind], name)
    for page in system.pages:
        yield f"[{Path(page).stem.replace('_', ' ')}](../{page})"


def shown_benchmark(name: str) -> str:
    """Return the link of a benchmark from a page in `recipes/`."""
    plugins.check("benchmark", name)
    return link_part("benchmarks", name)


def parts_by_kind() -> Mapping[str, set[str]]:
    """Return every part that the file names, by kind."""
    found: dict[str, set[str]] = {}
    for system in read_systems():
        for kind, names in system.parts.items():
            found.setdefault(kind, set()).update(names)
        found.setdefault("benchmark", set()).update(n for f in system.figures for n in f.benchmarks)
    return found
