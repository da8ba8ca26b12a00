"""The fit of a run's compute, made beside the page: it takes longer than an update may."""

from __future__ import annotations

import threading

from vlmrl.report.compute_fit import ComputeFit, fit_panel
from vlmrl.report.live.live_run import LiveRun
from vlmrl.report.series import CurvePanel

__all__ = ["LaterFit"]


class LaterFit:
    """The newest fit that is ready; `version` changes with it."""

    def __init__(self) -> None:
        self.found: tuple[CurvePanel, ComputeFit] | None = None
        self.version = 0
        self._evaluated = -1
        self._thread: threading.Thread | None = None

    def follow(self, run: LiveRun) -> None:
        """Begin a fit where evaluations are new and no other fit is being made."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or run.evaluated == self._evaluated:
            return
        self._evaluated = run.evaluated
        self._thread = threading.Thread(target=self._fit, args=(run,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when no fit is being made."""
        if self._thread is not None:
            self._thread.join()

    def _fit(self, run: LiveRun) -> None:
        metric = (run.config.get("evaluation") or {}).get("metric", "")
        found = fit_panel(metric, run.spent, run.results())
        if found != self.found:
            self.found, self.version = found, self.version + 1
