"""The table of recipes: every published system with its config and the command that trains it."""

from __future__ import annotations

import re

from tables import code, escape, header, row

from vlmrl.config import tree

PAPER = re.compile(r"\((?:[^()]*, )?arXiv (?P<number>\d{4}\.\d{5})[^()]*\)\.?$")
FOLDER = "recipes/"


def table() -> str:
    """Return a row for each config of `configs/recipes`, from the first line of its file."""
    lines = header("system", "what is trained", "paper", "command")
    for name, path in sorted(tree.shipped().items()):
        if name.startswith(FOLDER):
            first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            system, _, what = first.partition(": ")
            found = PAPER.search(what)
            number = found["number"] if found else ""
            paper = f"[{number}](https://arxiv.org/abs/{number})" if number else ""
            said = PAPER.sub("", what).strip().rstrip(".")
            lines.append(row(escape(system), escape(said), paper, code(f"vlmrl train {name}")))
    return "\n".join(lines)
