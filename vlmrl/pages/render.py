"""Render offline pages: a template with its scripts and our style inline, and numbers as a reader wants them.

A page loads nothing, and its content policy lets no script run but these. Texts of models and data are
escaped by jinja2's autoescape.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vlmrl.runs.metrics import Unit

SHARED = Path(__file__).parent
"""The folder of what all pages have: the base template, media, style and script."""


def render(folder: Path, template: str, *scripts: str, **values: Any) -> str:
    """Return the page that a template of `folder` makes of the values, with scripts and style inline."""
    return (
        templates(folder)
        .get_template(template)
        .render(
            style=Markup((SHARED / "style.css").read_text(encoding="utf-8")),
            script=Markup(_code(folder, scripts)),
            script_hash=script_hash(folder, *scripts),
            **values,
        )
    )


def script_hash(folder: Path, *scripts: str) -> str:
    """Return what a content policy calls these scripts, as one."""
    digest = hashlib.sha256(_code(folder, scripts).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _code(folder: Path, scripts: Sequence[str]) -> str:
    files = (next(f for f in (folder / s, SHARED / s) if f.is_file()) for s in scripts)
    return "".join(file.read_text(encoding="utf-8") for file in files)


@functools.cache
def templates(folder: Path) -> Environment:
    """Return the templates of a folder, beside those that all pages share."""
    environment = Environment(
        loader=FileSystemLoader([folder, SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "score": _score}
    return environment


def number(value: float | None, unit: Unit = "", digits: int = 3) -> str:
    """Format a number for a reader: with this many digits (all before the point), and the unit."""
    if value is None or not math.isfinite(value):
        return "-"
    scaled = 100 * value if unit == "share" else value
    text = f"{scaled:,.{max(digits, len(str(int(abs(scaled)))))}g}"
    return text + {"": "", "share": "%", "s": " s"}[unit]


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
