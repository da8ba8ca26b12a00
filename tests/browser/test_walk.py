"""Report, live page, rows, the start of runs in headless Chromium: axe, keys, phone, dark, print, attacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import browser_runs
from helpers.runs import ROOT
from helpers.started import TINY_CONFIG
from vlmrl.features.report.page import build_report

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
MISSING = [
    what
    for what, found in (
        ("Node", shutil.which("node")),
        ("Chromium", CHROMIUM),
        ("build/browser", (ROOT / "build/browser/node_modules/axe-core").is_dir()),
    )
    if not found
]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {' and '.join(MISSING)}: make test-browser says how to get it"
    ),
]


def walk(*arguments: Any) -> dict[str, Any]:
    """What a walk checked and found."""
    done = subprocess.run(
        ["node", HERE / "walk.mjs", *map(str, arguments)],
        env={**browser_runs.environment(), "CHROMIUM": str(CHROMIUM), "PYTHON": sys.executable},
        cwd=HERE,
        timeout=1800,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("{"), done.stderr
    found = json.loads(done.stdout)
    print(found["figures"])
    assert found["wrong"] == []
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: one that learned, one that did not, one of several turns, and that one full of attacks."""
    folder = tmp_path_factory.mktemp("runs")
    browser_runs.train(folder / "failing", "quickstart")
    shutil.copytree(folder / "failing", folder / "learning")
    browser_runs.let_it_learn(folder / "learning")
    browser_runs.train_turns(folder / "turns")
    browser_runs.attack(folder / "turns", folder / "hostile")
    for run in folder.iterdir():
        build_report(run)
    return folder


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("learning", "Held-out box IoU rose"),
        ("failing", "Held-out box IoU did not change"),
        ("turns", "Held-out exact"),
    ],
)
def test_a_report_can_be_read_by_anybody_without_a_network(runs: Path, run: str, said: str) -> None:
    page = runs / run / "report.html"
    assert said in page.read_text()
    found = walk("report", page)
    assert len(found["checked"]) >= 20 and found["figures"]["stops"] > 20


def test_no_text_of_a_report_is_run(runs: Path) -> None:
    assert len(walk("payloads", runs / "hostile/report.html")["checked"]) == 6


def test_the_live_page_can_be_used_while_lines_come_and_its_server_restarts(runs: Path) -> None:
    # The page's own hostile run is there as well, in the table of all runs.
    assert len(walk("live", runs, "learning", "hostile")["checked"]) >= 30


def test_a_row_can_be_read_by_anybody_and_no_text_of_it_is_run(runs: Path) -> None:
    assert len(walk("rows", runs, "learning", "turns", "hostile")["checked"]) >= 70


def test_a_run_is_written_mended_forecast_started_stopped_and_resumed_by_keyboard_alone(
    tmp_path: Path,
) -> None:
    config = tmp_path / "tiny.txt"
    config.write_text(TINY_CONFIG)
    assert len(walk("start", tmp_path, config)["checked"]) >= 25
