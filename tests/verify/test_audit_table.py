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


def test_scored_rows_show_the_answers_that_differ_whole_in_80_columns() -> None:
    layout = "<think>I see it.</think><answer>{}</answer>"
    boxes = ['{"bbox_2d": [144, 150, 240, 252]}', '{"bbox_2d": [192, 150, 288, 252]}']
    rows = tuple(
        ScoredCompletion("example 10", what, score, "", layout.format(box))
        for what, score, box in zip(("right", "wrong"), (1.0, 0.333), boxes, strict=True)
    )
    giant = Finding("a megabyte", "example 1", "fails: killed", None, 0.0, 1.0, "n\\n" * 33)
    report = Report("box_iou", rows, (giant,), {"a megabyte": 1}, {}, 1000.0)
    out = io.StringIO()
    Console(file=out, width=80).print(*tables(report), sep="\n")
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and "I see it" not in out.getvalue()
    assert all(
        any(box in line and what in line for line in lines)
        for what, box in zip(("right", "wrong"), boxes, strict=True)
    )
    assert sum("n\\n" in line for line in lines) == 1
