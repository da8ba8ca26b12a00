"""The table of layouts, measured when the site is built: drawn images written in each, and read back."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tables import header, row

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from helpers.layout_forms.table import FORMS, VARIANTS, Outcome, try_form


def table() -> list[str]:
    """Return the lines of the table, variants below the forms."""
    titles = ("published form", "layout", "recognised", "rows read", "truth", "prompt", "lines")
    with tempfile.TemporaryDirectory() as home:
        folders = (Path(home) / str(number) for number in range(len(FORMS) + len(VARIANTS)))
        outcomes = []
        for form, folder in zip((*FORMS, *VARIANTS), folders, strict=True):
            folder.mkdir()
            outcomes.append(try_form(form, folder))
    return [*header(*titles), *(_line(outcome) for outcome in outcomes)]


def _line(outcome: Outcome) -> str:
    name, layout = outcome.form.name, outcome.form.layout
    words = {True: "yes", False: "no"}
    truths, prompts = words[outcome.truths], words[outcome.prompts]
    link = f"[`{layout}`]({layout}.md)"
    counted = f"{outcome.rows} of {outcome.of}"
    return row(name, link, words[outcome.recognised], counted, truths, prompts, str(outcome.lines))
