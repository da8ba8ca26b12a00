"""The report's panels of groups, rows and compute: numbers by hand, and a fit of a known curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.report_page import Page, completion, config, row
from vlmrl.features.report.compute_fit import fit_compute, fit_panel
from vlmrl.features.report.growing import StepLines
from vlmrl.features.report.page import build_report, group_section, read_groups, solved_rows
from vlmrl.features.report.series import CurvePanel
from vlmrl.runs import run_folder
from vlmrl.system import files

SETTINGS = {"evaluation": {"metric": "shapes/box_iou", "pass_threshold": 0.5}}
ROWS = {
    1: [
        row("a", [completion(x) for x in (0.1, 0.2)]),
        row("b", [completion(x) for x in (0.6, 0.2)]),
    ],
    3: [
        row("a", [completion(x) for x in (0.5, 0.9)]),
        row("c", [completion(0.9), completion(0.4)]),
    ],
    5: [row("b", [*(completion(x) for x in (0.7, 0.8)), completion(0.1)])],
}
"""Pass rates: a 0 and b 1/2 at step 1, a 1 and c 1/2 at step 3, b 2/3 at step 5."""


def panels(rows: dict[int, list[dict[str, Any]]]) -> dict[str, CurvePanel]:
    section = group_section(read_groups(SETTINGS, rows))
    assert section is not None
    return {panel.title: panel for panel in section.panels}


def test_groups_are_counted_by_how_many_completions_pass() -> None:
    panel = panels(ROWS)["Groups by how many completions pass"]
    assert panel.stacked and [series.steps for series in panel.series] == [(1, 3, 5)] * 4
    shares = {series.name: series.values for series in panel.series}
    assert shares["none"] == (0.5, 0, 0) and shares["less than half"] == (0, 0, 0)
    assert shares["half or more"] == (0.5, 0.5, 1) and shares["all"] == (0, 0.5, 0)


def test_rows_are_solved_at_the_first_step_that_says_so() -> None:
    solved = solved_rows(read_groups(SETTINGS, ROWS))
    found = {one.id: (one.seen, one.more_than_half, one.all) for one in solved}
    assert found == {"a": (1, 3, 3), "b": (1, 5, None), "c": (3, None, None)}
    panel = panels(ROWS)["Rows, first seen and first solved"]
    assert {s.name: s.values for s in panel.series} == {
        "seen": (2, 3, 3),
        "more than half right": (0, 1, 2),
        "all right": (0, 1, 1),
    }


def test_a_masked_completion_and_a_fault_are_no_zero() -> None:
    faulty = completion(0.0)
    faulty["verdicts"]["box_iou"]["score"] = None
    group = [completion(0.9), completion(0.0, valid=False), faulty]
    assert solved_rows(read_groups(SETTINGS, {1: [row("a", group)]}))[0].all == 1
    assert group_section(read_groups(SETTINGS, {1: [row("a", group[1:])]})) is None


def test_rewards_are_averaged_by_length_early_and_late() -> None:
    rows = {
        step: [
            row(f"{step}-{i}", [completion(step / 10 + (length > 50) / 2, tokens=length)] * 5)
            for i, length in enumerate([10, 20, 80, 90])
        ]
        for step in (1, 2, 3)
    }
    panel = panels(rows)["Reward by length"]
    assert panel.across == "tokens"
    early, late = panel.series
    assert early.name == "first third of the steps" and early.steps == (15, 85)
    assert early.values == pytest.approx((0.1, 0.6)) and late.values == pytest.approx((0.3, 0.8))
    assert early.low == pytest.approx(early.values)  # alike in every bin
    assert "Reward by length" not in panels({1: rows[1]})


NOISE = np.random.default_rng(1).normal(size=12)


def known(seconds: np.ndarray) -> np.ndarray:
    return 0.2 + (0.8 - 0.2) / (1 + (300 / seconds) ** 1.5)


def test_a_known_curve_is_fitted_with_an_interval_that_holds_it() -> None:
    seconds = np.geomspace(30, 3000, 12)
    exact = fit_compute(seconds, known(seconds), 0.2)
    assert exact is not None
    assert (exact.top, exact.middle, exact.power) == pytest.approx((0.8, 300, 1.5), rel=1e-3)
    noise = np.random.default_rng(3).normal(size=12) * 0.01
    rough = fit_compute(seconds, known(seconds) + noise, 0.2)
    assert (
        rough is not None and rough.low <= 0.8 <= rough.high and rough.low < rough.top < rough.high
    )
    assert rough(np.array([300.0]))[0] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("values", "last"),
    [
        (known(np.geomspace(30, 3000, 5)), 3000),  # too few
        (0.5 + 0.1 * np.random.default_rng(0).normal(size=12), 3000),  # noise
        (np.full(12, 0.1), 3000),  # nothing learned
        (
            known(np.geomspace(30, 60, 12)) + 0.005 * NOISE,
            60,
        ),  # the beginning says nothing of the end
        (known(np.geomspace(1, 50, 12)), 50),  # too short
    ],
)
def test_a_fit_that_the_data_do_not_support_is_not_shown(values: np.ndarray, last: int) -> None:
    seconds = np.geomspace(last / 100 if last > 100 else last / 2, last, len(values))
    assert fit_compute(seconds, values, 0.2) is None


def test_the_page_has_them(tmp_path: Path) -> None:
    run_folder.write_config(tmp_path, config())
    metric = config().evaluation.metric  # type: ignore[union-attr]
    for step, groups in ROWS.items():
        files.write_lines(run_folder.rollouts_path(tmp_path, step), groups)
    steps = range(1, 13)
    for step in steps:
        line = {"step": step, "reward/mean": step / 20, "time/update": 100.0}
        files.append_line(run_folder.metrics_path(tmp_path), line)
    for step in (0, *steps):
        value = 0.2 if step == 0 else float(known(np.array([100.0 * step]))[0])
        result = {"step": step, "metrics": {metric: value}, "intervals": {}, "pass_at_k": None}
        run_folder.write_evaluation(tmp_path, step, result, [])
    page = Page(build_report(tmp_path))
    titles = {a["aria-label"] for _, a in page.tags if "viewbox" in a and a.get("aria-label")}
    assert {"Rows, first seen and first solved", f"Held-out {metric} by compute"} <= titles
    assert "limit of more compute" in page.text and "half of the way after 300 s" in page.text
    solved = [json.loads(line) for line in (tmp_path / "solved.jsonl").read_text().splitlines()]
    assert [one["id"] for one in solved] == ["a", "b", "c"]
    assert fit_panel("none", StepLines(), []) is None
