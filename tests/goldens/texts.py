"""Goldens of texts that users read: help, lists, the schema of configs, a report."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import surfaces
import typer
from made import Golden
from PIL import Image
from typer.testing import CliRunner

HERE = Path(__file__).parent
RUN = HERE / "run"
EMBEDDED = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")


def make_help(folder: Path) -> Golden:
    """Hash the help of each command, and each list of what a config can name."""
    golden = Golden("help")
    for words in _commands((), typer.main.get_command(surfaces.app)):
        golden.add(" ".join(("vlmrl", *words)), _say(*words, "--help"))
    for what in (*map(_plural, surfaces.plugins.KINDS), "configs"):
        golden.add(f"vlmrl list {what}", _say("list", what))
    return golden


def _plural(kind: str) -> str:
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def _commands(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command, groups of commands included."""
    yield words
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _commands((*words, name), below)


def _say(*words: str) -> str:
    result = CliRunner().invoke(surfaces.app, [*words], prog_name="vlmrl", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def make_schema(folder: Path) -> Golden:
    """Hash each section of the schema of configs."""
    golden = Golden("schema")
    schema = json.loads(_say("config", "schema"))
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            for name, section in value.items():
                golden.add(f"{key} {name}", section)
        else:
            golden.add(key, value)
    return golden


def make_report(folder: Path) -> Golden:
    """Hash the report of the stored run, its style and scripts by themselves."""
    golden = Golden("report")
    run = folder / "run"
    shutil.copytree(RUN, run)
    _say("report", str(run))
    page = (run / "report.html").read_text(encoding="utf-8")
    for tag in ("style", "script"):
        parts = page.split(f"<{tag}")
        inside = [part.partition(f"</{tag}>") for part in parts[1:]]
        golden.add(tag, [before for before, _, _ in inside], run)
        page = parts[0] + "".join(f"<{tag}>{after}" for _, _, after in inside)
    golden.add("page", EMBEDDED.sub(_hash_pixels, page), run)
    golden.add("files", sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()))
    return golden


def _hash_pixels(match: re.Match[str]) -> str:
    """Say what an image shows: how it is compressed depends on the version of a library."""
    image = Image.open(io.BytesIO(base64.b64decode(match[1]))).convert("RGBA")
    return f"image {image.size} {hashlib.sha256(image.tobytes()).hexdigest()[:16]}"
