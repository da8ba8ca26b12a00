"""A report of the attack bench as tables for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vlmrl.verify import Finding, Report

MAX_ROWS = 40


def tables(report: Report) -> Iterator[RenderableType]:
    """The scored rows, the attacks that were paid (one line each, the worst shown), a summary."""
    yield _rows(report)
    if report.findings:
        yield _findings(report)
    yield _summary(report)


def _rows(report: Report) -> Table:
    table = Table(title=f"{escape(report.verifier)}: scored rows", title_justify="left")
    for column in ("sample", "", "score", "note", "completion"):
        table.add_column(column, overflow="fold")
    for row in report.rows[:MAX_ROWS]:
        table.add_row(row.sample, row.what, _number(row.score), escape(row.note), escape(row.text))
    if len(report.rows) > MAX_ROWS:
        table.caption = f"and {len(report.rows) - MAX_ROWS} more"
    return table


def _findings(report: Report) -> Table:
    table = Table(title="what went wrong", title_justify="left")
    for column in ("attack", "problem", "times", "paid", "wrong", "right", "sample", "completion"):
        table.add_column(column, overflow="fold")
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.findings:
        alike.setdefault((finding.attack, finding.problem.partition(":")[0]), []).append(finding)
    for (attack, _), found in alike.items():
        worst = max(found, key=_paid)
        scores = (_number(score) for score in (worst.score, worst.wrong, worst.right))
        problem, text = escape(worst.problem), escape(worst.text)
        table.add_row(attack, problem, str(len(found)), *scores, worst.sample, text)
    return table


def _paid(finding: Finding) -> float:
    return finding.score if finding.score is not None else 0.0


def _summary(report: Report) -> Text:
    spread = ", ".join(f"{name} {value:g}" for name, value in report.spread.items())
    lines = [
        f"{sum(report.tried.values())} completions of {len(report.tried)} attacks, "
        f"{len(report.findings)} findings",
        f"scores: {spread or 'none'}",
        f"{report.calls_per_second:,.0f} completions a second on one core",
        "passed: no attack was paid" if not report.findings else "failed",
    ]
    return Text("\n".join(lines))


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"
