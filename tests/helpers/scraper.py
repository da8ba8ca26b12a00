"""A tracker that asks the run's own Prometheus endpoint after each report, as a monitoring system would."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl.runs.tracker import Phase, TrackedRun, Tracker


def scrape(port: int) -> str:
    """Return what the endpoint shows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@dataclass
class Scraper(Tracker):
    """What the endpoint showed after each report, as files of the run folder."""

    port: int = 0
    """Port of the endpoint."""
    _folder: Path = field(default=Path(), init=False, repr=False)

    def start(self, run: TrackedRun) -> None:
        """Keep what is shown before the first report."""
        self._folder = run.folder
        self._keep(f"start-{run.step}")

    def log(self, phase: Phase, step: int, metrics: Mapping[str, float]) -> None:
        """Keep what is shown after a step."""
        self._keep(f"{phase}-{step}")

    def log_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep what is shown after an evaluation."""
        self._keep(f"evaluation-{step}")

    def _keep(self, name: str) -> None:
        (self._folder / f"scraped-{name}.txt").write_text(scrape(self.port))
