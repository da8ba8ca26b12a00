"""Benchmarks whose harness asks a judge: a lower bound without one, its number with one, faults by name."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from helpers.benchmark_runs import FRAME, opened, scored
from helpers.report_page import Page
from vlmrl.benchmarking.scoring import Result
from vlmrl.benchmarking.stored import read_result, write_result
from vlmrl.commands.benchmarks.compare import compare_results, print_comparisons
from vlmrl.commands.benchmarks.result_page import write_result_page
from vlmrl.commands.benchmarks.session import Evaluated
from vlmrl.commands.benchmarks.tables import print_results
from vlmrl.commands.benchmarks.written_tables import write_tables

BOUND = "lower bound without a judge (gpt-4o-2024-11-20)"


def printed(result: Result, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Print and write a result everywhere; return the text of the terminal, JSON, CSV, page, LaTeX."""
    source = opened(folder / "again", result.benchmark, result.protocol)
    frames = dict.fromkeys(range(len(result.rows)), FRAME)
    each = [Evaluated(result, {}, (), {}, None, source, frames)]
    print_results(each)
    write_tables(each, folder)
    write_result(folder, result, {})
    files = [folder / name for name in ("result.json", "results.csv", "results.tex")]
    json_text, csv_text, latex = (file.read_text() for file in files)
    page = Page(write_result_page(each, folder)).text
    return [capsys.readouterr().out, json_text, csv_text, page, latex]


def test_without_a_judge_the_number_is_a_lower_bound_wherever_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = scored(tmp_path, "mathverse", "lmms_eval", ["A", "(B)", "b", "12", "3 CM"])
    assert (result.lower_bound, result.note, result.unread) == (True, BOUND, 0.6)
    terminal, stored, table, page, latex = printed(result, tmp_path, capsys)
    assert all(BOUND in text for text in (terminal, stored, table, page))
    assert "≥ 0.400 [" in terminal and "≥ 0.400 [" in page and r"$\geq$ 0.400 [" in latex
    assert read_result(tmp_path).result.note == BOUND
    notes = {(line["number"], line["note"]) for line in csv.DictReader(table.splitlines())}
    assert notes == {("official", BOUND), ("strict", "")}
    print_comparisons(compare_results([str(tmp_path), str(tmp_path)]))
    assert f"mathverse: official: {BOUND}" in capsys.readouterr().out


def test_a_number_that_needs_no_judge_is_no_lower_bound(tmp_path: Path) -> None:
    right = scored(tmp_path, "mathverse", "lmms_eval", ["A", "B", "C", "12", "3 cm"])
    other = scored(tmp_path / "b", "chartqa", "lmms_eval", ["?"] * 4)
    ours = scored(tmp_path / "c", "mathverse", "ours", ["no"] * 5)
    for result in (right, other, ours):
        assert (result.lower_bound, result.note) == (False, ""), result.rows
