"""The whole pages of `vlmrl watch`, which its script then keeps up to date: one run, and all runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.pages.render import number, render
from vlmrl.report.live.compared import SAID
from vlmrl.report.live.live_run import LiveRun
from vlmrl.report.live.parts import say_state
from vlmrl.report.page import HERE, subtitle
from vlmrl.report.rows.story import run_address

__all__ = ["SCRIPTS", "list_rows", "run_page", "runs_page", "waiting_page"]

SCRIPTS = ("report.js", "watch.js")


def run_page(name: str, run: LiveRun, alone: bool) -> str:
    """Return the page of one run; without the way to the others if it is watched alone."""
    return render(
        HERE,
        "watch_run.html",
        *SCRIPTS,
        title=run.config["run"]["name"],
        subtitle=subtitle(run.config),
        address=f"{run_address(name)}/changes",
        rows=f"{run_address(name)}/rows",
        alone=alone,
        waiting=False,
    )


def waiting_page(name: str) -> str:
    """Return the page of a run that has not begun: it asks until there is one, and then loads that."""
    return render(
        HERE,
        "watch_run.html",
        *SCRIPTS,
        title=name,
        subtitle="This run has not begun, or is gone. Its page comes up once there is one.",
        address=f"{run_address(name)}/changes",
        alone=False,
        waiting=True,
    )


def runs_page() -> str:
    """Return the page of all runs."""
    return render(HERE, "watch_runs.html", *SCRIPTS, address="/changes", axes=SAID)


def list_rows(runs: Mapping[str, LiveRun]) -> list[dict[str, Any]]:
    """Return what the table of runs says of each."""
    rows: list[dict[str, Any]] = []
    for name, run in runs.items():
        if not run.config:
            rows.append({"name": name, "state": [], "held_out": "", "mistake": run.mistake})
            continue
        known = [value for _, value in run.held_out()]
        held_out = f"{run.metric} {number(known[0])} → {number(known[-1])}" if known else ""
        rows.append(
            {
                "name": name,
                "state": say_state(run.state()),
                "held_out": held_out,
                "mistake": run.mistake,
            }
        )
    return rows
