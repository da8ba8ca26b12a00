"""The pages of the notebooks in docs/notebooks: their cells as text and code, with a link to the file.

Notebooks are kept without outputs, so a page has none: `tests/docs/test_notebooks.py` runs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = "notebooks"
SHELL = "%%bash -e\n"
LINK = re.compile(r"\]\((\w+)\.ipynb\)")
WRITTEN_FILE = re.compile(r"%%writefile (\S+)\n")


def files() -> list[Path]:
    """Return the notebooks by name."""
    return sorted((ROOT / "docs" / FOLDER).glob("*.ipynb"))


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the content of each page."""
    for file in files():
        yield f"{FOLDER}/{file.stem}.md", page(file)


def page(file: Path) -> str:
    """Return a notebook as Markdown; links to other notebooks lead to their pages."""
    title, *cells = map(_cell, json.loads(file.read_text(encoding="utf-8"))["cells"])
    link = f"This page is the notebook [{file.name}]({file.name}), without its outputs: run it in Jupyter."
    heading, _, rest = title.partition("\n")
    return "\n\n".join([heading, link, rest.strip(), *cells]) + "\n"


def _cell(cell: Mapping[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return LINK.sub(r"](\1.md)", text)
    if text.startswith(SHELL):
        return f"```sh\n{text.removeprefix(SHELL)}\n```"
    title = ""
    if match := WRITTEN_FILE.match(text):
        title, text = f' title="{match[1]}"', text[match.end() :]
    return f"```python{title}\n{text}\n```"
