"""A report of the attack bench as tables for a person."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vlmrl.config import RewardConfig
from vlmrl.features.verify.attack_bench import Finding, Report
from vlmrl.features.verify.pair_probe import judged_rows, probe, read_pairs
from vlmrl.scoring.reward_components import resolve
from vlmrl.system.files import write_lines

MAX_ROWS = 40
WIDTHS = {"score": 5, "paid": 5, "wrong": 5, "right": 5, "times": 5, "sample": 10, "": 5}
"""Columns of a fixed width; the others share what is left, by SHARES."""
SHARES = {"attack": 2, "what": 3, "answer": 3, "note": 2}
WRAPPED = ("attack", "what", "answer", "note")
"""Columns whose texts go on in the next line."""
REPEATED = re.compile(r"(.{1,12}?)\1{4,}")
"""A text that is there five times or more, one after another: a person sees it once."""
OPENING = "<think>I see it.</think><answer>"
"""How completions of the bench begin, most of them."""
COARSE = 5
"""Most distinct scores of a verifier that is called coarse."""


def tables(report: Report) -> Iterator[RenderableType]:
    """Yield the scored rows, the attacks that were paid (a line each, the worst shown), a summary."""
    noted = [row for row in report.rows[:MAX_ROWS] if row.note]
    titles = ("score", "sample", "", "answer", *(["note"] if noted else []))
    table = _table(f"{report.verifier}: scored rows", *titles)
    for row in report.rows[:MAX_ROWS]:
        note = [escape(row.note)] if noted else []
        table.add_row(_number(row.score), row.sample, row.what, escape(_shown(row.text)), *note)
    if len(report.rows) > MAX_ROWS:
        table.caption = f"and {len(report.rows) - MAX_ROWS} more"
    yield table
    if report.findings:
        yield _findings(report)
    yield _summary(report)


def probe_pairs(reward: RewardConfig, path: Path, out: Path | None = None) -> str:
    """Return what a judge of pairs is like on the rows of a file; write its verdicts to `out`.

    Raises:
        UserError: as `read_pairs` and `probe`.
    """
    verifier, rows = resolve(reward).verifier, read_pairs(path)
    result = probe(verifier, rows)
    if out is not None:
        write_lines(out, judged_rows(rows, result))
    kappa = "-" if result.kappa is None else f"{result.kappa:.3f}"
    lines = [
        f"{len(rows)} pairs, {sum(result.faults.values())} without a verdict",
        f"both orders agree   {result.orders_agree}",
        f"first place wins    {result.first_wins} (a fair judge: 0.5)",
        f"the same twice      {result.same_twice}",
        f"ties                {result.ties}",
        f"agrees with better  {result.agrees}; Cohen's kappa {kappa}",
        *(f"{count} times: {fault}" for fault, count in result.faults.most_common(3)),
    ]
    return "\n".join(lines)


def _findings(report: Report) -> Table:
    table = _table("what went wrong", "attack", "times", "paid", "wrong", "right", "what")
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.findings:
        alike.setdefault((finding.attack, finding.problem.partition(":")[0]), []).append(finding)
    for (attack, _), findings in alike.items():
        worst = max(findings, key=lambda finding: finding.score or 0.0)
        scores = (_number(score) for score in (worst.score, worst.wrong, worst.right))
        what = f"{escape(worst.problem)}\n{escape(_shown(worst.text))}"
        table.add_row(attack, str(len(findings)), *scores, what)
    return table


def _table(title: str, *columns: str) -> Table:
    """Return an empty table; long texts outside of `WRAPPED` end in an ellipsis (`--out` has them)."""
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, expand=True)
    for column in columns:
        width = WIDTHS.get(column)
        share = None if width else SHARES[column]
        wrapped = column in WRAPPED
        overflow: Literal["fold", "ellipsis"] = "fold" if wrapped else "ellipsis"
        table.add_column(column, width=width, ratio=share, no_wrap=not wrapped, overflow=overflow)
    return table


def _summary(report: Report) -> Text:
    spread = ", ".join(f"{name} {value:g}" for name, value in report.spread.items())
    lines = [
        f"{sum(report.tried.values())} completions of {len(report.tried)} attacks, "
        f"{len(report.findings)} findings",
        f"scores: {spread or 'none'}",
        f"best constant answer: {report.constant or 'not measured'}",
        f"{report.calls_per_second:,.0f} completions a second on one core",
        "passed: no attack was paid" if not report.findings else "failed",
    ]
    if report.not_drawn:
        lines.append(
            f"{report.not_drawn} begging texts were not tried in an image: no installed font has "
            "their characters"
        )
    if report.ignores_truth:
        lines.append(
            "right and wrong answers are paid alike: right for a format or a length, a defect for "
            "anything else"
        )
    else:
        lines += _fineness(report)
    return Text("\n".join(lines))


def _fineness(report: Report) -> Iterator[str]:
    """Yield how coarse a verifier is that pays answers by their question."""
    constant = report.constant
    if constant is None or len(constant.scores) > COARSE:
        return
    scores = ", ".join(f"{score:.3g}" for score in constant.scores)
    yield (
        f"coarse: {len(constant.scores)} distinct scores ({scores}); {constant.ties:.0%} of the pairs of "
        f"answers to one question tie ({constant.data}), and a group that ties teaches nothing"
    )
    if report.pays_alike:
        yield "a near miss (a box moved by half its width, say) earns as much as the right answer"


def _shown(text: str) -> str:
    """Return an excerpt of a completion as a person wants it: without what all share, repetitions cut."""
    begin, mark, rest = text.partition(OPENING)
    answer = rest.removesuffix("</answer>") if mark and not begin else text
    return REPEATED.sub(r"\1\1...", answer)


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"
