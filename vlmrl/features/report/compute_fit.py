"""The held-out metric as a sigmoid of the logarithm of compute, where a run has enough to say so.

Source: ScaleRL (Khatri et al. 2025, arXiv 2510.13786), eq. 1: R(C) = R₀ + (A - R₀) / (1 + (C_mid / C)^B), R₀
being the metric before training. Compute is here the wall seconds of the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmrl.features.report.growing import Series, StepLines
from vlmrl.features.report.series import CurvePanel

FEWEST = 6
"""Fewest evaluations after the first step."""
LEAST_SECONDS = 60.0
RESAMPLES = 100
EXPLAINED = 0.8
"""Least share of the variance that a fit explains."""


@dataclass(frozen=True, slots=True)
class ComputeFit:
    """A fitted curve: `start` is R₀, `top` A with its 95 % interval, `middle` C_mid in seconds, `power` B."""

    start: float
    top: float
    middle: float
    power: float
    low: float
    high: float

    def __call__(self, seconds: np.ndarray) -> np.ndarray:
        """Return the metric expected after these seconds [n]."""
        return _curve(
            np.array([self.top, np.log(self.middle), np.log(self.power)]), seconds, self.start
        )


def fit_compute(seconds: np.ndarray, values: np.ndarray, start: float) -> ComputeFit | None:
    """Fit the metric's values [n] after these seconds [n]; None where the data do not support it.

    They do if there are `FEWEST` values, the curve rises and explains `EXPLAINED` of their variance, and
    the interval of its top, by a bootstrap of the residuals, is narrower than its rise.
    """
    if len(values) < FEWEST or seconds[-1] < LEAST_SECONDS or values.max() <= start:
        return None
    best = _fit(seconds, values, start)
    expected = _curve(best, seconds, start)
    residuals = values - expected
    variance = float(np.var(np.append(values, start)))
    if best[0] <= start or np.mean(residuals**2) > (1 - EXPLAINED) * variance:
        return None
    rng = np.random.default_rng(0)
    tops = [
        _fit(seconds, expected + rng.choice(residuals, len(residuals)), start, best)[0]
        for _ in range(RESAMPLES)
    ]
    low, high = (float(bound) for bound in np.quantile(tops, [0.025, 0.975]))
    if high - low > best[0] - start:
        return None
    top, middle, power = best[0], np.exp(best[1]), np.exp(best[2])
    return ComputeFit(start, *(float(v) for v in (top, middle, power, low, high)))


def fit_panel(
    metric: str, steps: StepLines, evaluations: Sequence[Mapping[str, Any]]
) -> tuple[CurvePanel, ComputeFit] | None:
    """Return the panel of a run's held-out metric by compute with its fit; None where there is none."""
    known = [evaluation for evaluation in evaluations if metric in evaluation["metrics"]]
    begun = [evaluation["metrics"][metric] for evaluation in known if evaluation["step"] == 0]
    points = [
        (spent_s, evaluation["metrics"][metric])
        for evaluation in known
        if (spent_s := steps.seconds_after(evaluation["step"])) is not None
    ]
    if not begun or not points:
        return None
    seconds, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    fit = fit_compute(seconds, values, begun[0])
    if fit is None:
        return None
    grid = np.unique(np.rint(np.linspace(seconds[0], seconds[-1], 60)))
    fitted = Series("fit", tuple(grid.astype(int).tolist()), tuple(fit(grid).tolist()))
    measured = Series(metric, tuple(np.rint(seconds).astype(int).tolist()), tuple(values.tolist()))
    return CurvePanel(f"Held-out {metric} by compute", (measured, fitted), across="seconds"), fit


def _fit(
    seconds: np.ndarray, values: np.ndarray, start: float, near: np.ndarray | None = None
) -> np.ndarray:
    """Return top, log of the middle and log of the power that fit best, from several starts or near one."""
    from scipy.optimize import least_squares  # takes long to import, and few runs have a fit

    middles = np.log(np.quantile(seconds, [0.1, 0.5, 0.9]))
    top = max(float(values.max()), start) + 1e-3
    starts = [np.array([top, middle, power]) for middle in middles for power in (-0.5, 0.5, 1.2)]
    bounds = ([-np.inf, np.log(seconds[0]) - 5, -3.0], [np.inf, np.log(seconds[-1]) + 5, 3.0])
    tried = [
        least_squares(lambda p: _curve(p, seconds, start) - values, at, bounds=bounds)
        for at in ([near] if near is not None else starts)
    ]
    return np.asarray(min(tried, key=lambda solution: float(solution.cost)).x)


def _curve(parameters: np.ndarray, seconds: np.ndarray, start: float) -> np.ndarray:
    top, middle, power = parameters
    return np.asarray(
        start + (top - start) / (1 + np.exp(np.exp(power) * (middle - np.log(seconds))))
    )
