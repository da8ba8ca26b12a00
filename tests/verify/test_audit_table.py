"""What `vlmrl verify` prints is readable in a terminal of 80 columns, and it says how far it is."""

from __future__ import annotations

import io

from rich.console import Console

from helpers.messages import require_named
from vlmrl.features.verify.attack_bench import Finding, Report, ScoredCompletion
from vlmrl.features.verify.audit_table import tables


def test_the_findings_are_whole_in_80_columns() -> None:
    problem = "paid more than an honest wrong answer"
    text = "every label of the vocabulary, one after another"
    finding = Finding("list the whole vocabulary", "example 1", problem, 0.58, 0.0, 1.0, text)
    row = ScoredCompletion("example 1", "right", 1.0, "", "<answer>dog</answer>")
    report = Report("labels", (row,), (finding,), {"list the whole vocabulary": 1}, {}, 1000.0)
    out = io.StringIO()
    Console(file=out, width=80).print(*tables(report), sep="\n")
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(out.getvalue().split())
    # The cells of a row wrap beside each other, so that only their words follow one another.
    require_named(shown, "0.580", "0.000", "1.000", "vocabulary", *problem.split(), *text.split())
    assert "…" not in shown
