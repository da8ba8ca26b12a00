"""The table of `docs/train/parity.md`, from the record that `performance/family_parity.py` writes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tables import code, escape, header, row

RECORD = Path(__file__).parents[2] / "performance" / "parity.yaml"
COLUMNS: Mapping[str, str] = {
    "logits": "logits",
    "gradient": "gradient",
    "LoRA": "LoRA",
    "frozen": "frozen towers",
    "shared": "shared: log-probs",
    "shared gradient": "shared: gradient",
    "fsdp2": "fsdp2, two ranks",
    "hf": "engine `hf`",
    "tools": "second turn",
    "vllm": "`vllm`",
    "vllm_server": "`vllm_server`",
}
"""Column of the record -> its title."""
MEDIA = ("text", "image", "video", "audio")
LARGE = 1e-4
"""From here on a difference is no rounding: the tolerance of the parity probe in float32."""


@functools.cache
def record() -> Mapping[str, Any]:
    """Return the record: `parts` -> versions and date, `cells` -> family -> kind of media -> column."""
    return dict(yaml.safe_load(RECORD.read_text(encoding="utf-8")))


def draw() -> str:
    """Return the table, why cells are refused, and with what each part was measured."""
    refusals: dict[str, int] = {}
    lines = [*table(refusals), ""]
    lines += [f"{number}. {escape(reason)}" for reason, number in refusals.items()]
    return "\n".join([*lines, "", *measured()])


def table(refusals: dict[str, int]) -> Iterator[str]:
    """Yield a row for each family and kind of media; refusals get their numbers."""
    yield from header("family", "media", *COLUMNS.values())
    for family, by_medium in sorted(record()["cells"].items()):
        for medium in sorted(by_medium, key=MEDIA.index):
            cells = (cell(by_medium[medium].get(column), refusals) for column in COLUMNS)
            yield row(code(family), medium, *cells)


def cell(value: float | str | None, refusals: dict[str, int]) -> str:
    """Return a cell: a difference, bold where it is none of rounding, a refusal's number, or nothing."""
    if value is None:
        return ""
    if isinstance(value, str):
        kind = "fails" if value.startswith("fails: ") else "refused"
        return f"{kind} ({refusals.setdefault(value, len(refusals) + 1)})"
    shown = f"{value:.1e}" if value else "0"
    return f"**{shown}**" if value >= LARGE else shown


def measured() -> Iterator[str]:
    """Yield a table of the date and the versions of each part."""
    packages = sorted({name for part in record()["parts"].values() for name in part} - {"date"})
    yield from header("part", "date", *packages)
    for name, part in record()["parts"].items():
        yield row(code(name), part["date"], *(part.get(package, "") for package in packages))
