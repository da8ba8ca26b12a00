"""Write the table of tests/README.md from the docstrings of the test files: `make tests-table`."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

TESTS = Path(__file__).parent
README = TESTS / "README.md"
BEGIN = "<!-- written by `make tests-table`; edit the docstrings instead -->\n"
WHOLE = "the repository"
"""The room of test files that lie directly under tests/."""


@functools.cache
def rows() -> list[tuple[str, str, str]]:
    """Return room, path and first docstring sentence of every test file, ordered by room."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        where = path.relative_to(TESTS)
        room = str(where.parent) if len(where.parts) > 1 else WHOLE
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found.append((room, str(where), " ".join(text.split("\n\n")[0].split())))
    return sorted(found, key=lambda row: (row[0] != WHOLE, row))


def table() -> str:
    """Return the table in Markdown, each room named once."""
    lines = ["| Room | Tests | What they hold |", "|---|---|---|"]
    last = None
    for room, path, text in rows():
        name = Path(path).name
        escaped = text.replace("|", "\\|")
        lines.append(f"| {'' if room == last else room} | [`{name}`]({path}) | {escaped} |")
        last = room
    return "\n".join(lines) + "\n"


def with_table(readme: str) -> str:
    """Return the text of the README with the current table after its marker."""
    return readme.split(BEGIN)[0] + BEGIN + "\n" + table()


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
