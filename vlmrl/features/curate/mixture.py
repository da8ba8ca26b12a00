"""`vlmrl mixture fit`: the weights of sources that finished pilot runs ask for.

Source: MoDoMoDo (Liang et al. 2025, arXiv 2505.24871): ŝ(w) = a + bᵀw + wᵀCw over the weights w of M sources,
fitted to pilot runs, and its argmax over the simplex. There Σw = 1, so that wᵢ² = wᵢ - Σⱼ wᵢwⱼ: the squares
are left out and nothing is lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vlmrl import plugins
from vlmrl.assemble.trained_run import read_config
from vlmrl.config import Config, SourceConfig
from vlmrl.errors import UserError
from vlmrl.runs.run_folder import read_summary

RIDGES = tuple(10.0**power for power in range(-9, 3))
"""Penalties that are tried; the one of least leave-one-out error is taken."""


@dataclass(frozen=True)
class Surrogate:
    """ŝ(w) = a + Σ bᵢwᵢ + Σ cᵢⱼwᵢwⱼ, i < j: `linear` [M], `pairs` [M, M] symmetric with a zero diagonal."""

    constant: float
    linear: np.ndarray
    pairs: np.ndarray

    def __call__(self, weights: np.ndarray) -> float:
        """Return the expected score of weights [M] that sum to 1."""
        return float(self.constant + self.linear @ weights + weights @ self.pairs @ weights / 2)


@dataclass(frozen=True)
class Fit:
    """A surrogate with its penalty, and by pilot what it expects of it when it does not know it, [n]."""

    surrogate: Surrogate
    ridge: float
    left_out: np.ndarray

    def error(self, scores: np.ndarray) -> float:
        """Return the root mean square of the leave-one-out errors."""
        return float(np.sqrt(np.mean((self.left_out - scores) ** 2)))


def fit(weights: np.ndarray, scores: np.ndarray, ridge: float | None = None) -> Fit:
    """Fit pilots of weights [n, M], rows that sum to 1, and scores [n], by ridge regression.

    The constant is not penalised. Without `ridge` it is the one of `RIDGES` with the least
    leave-one-out error, which is exact: e / (1 - h) by the hat matrix.
    """
    products = [weights[:, i] * weights[:, j] for i, j in _pairs(weights.shape[1])]
    features = np.column_stack([weights, *products])
    centred, target = features - features.mean(0), scores - scores.mean()
    tried = [_solve(centred, target, penalty) for penalty in ([ridge] if ridge else RIDGES)]
    solution, penalty, left_out = min(tried, key=lambda one: float(np.sum((one[2] - target) ** 2)))
    count = weights.shape[1]
    pairs = np.zeros((count, count))
    for value, (i, j) in zip(solution[count:], _pairs(count), strict=True):
        pairs[i, j] = pairs[j, i] = value
    constant = float(scores.mean() - features.mean(0) @ solution)
    surrogate = Surrogate(constant, solution[:count], pairs)
    return Fit(surrogate, penalty, left_out + scores.mean())


def best_mixture(surrogate: Surrogate) -> np.ndarray:
    """Return the weights [M] on the simplex at which a surrogate is highest.

    Exact for any quadratic: the maximum is a stationary point within one of the simplex's 2^M - 1 faces.
    """
    count = len(surrogate.linear)
    optima = []
    for size in range(1, count + 1):
        for face in itertools.combinations(range(count), size):
            inner = _stationary(surrogate, list(face))
            if inner is not None:
                optima.append(inner)
    return max(optima, key=surrogate)


def _stationary(surrogate: Surrogate, face: list[int]) -> np.ndarray | None:
    """Return the point within a face where the gradient is the same for all its sources; None if none is."""
    size = len(face)
    system = np.ones((size + 1, size + 1))
    system[:size, :size], system[size, size] = surrogate.pairs[np.ix_(face, face)], 0.0
    try:
        solved = np.linalg.solve(system, np.append(-surrogate.linear[face], 1.0))[:size]
    except np.linalg.LinAlgError:  # flat along some direction: as high on a smaller face
        return None
    if not np.isfinite(solved).all() or (solved < 0).any():
        return None
    weights = np.zeros(len(surrogate.linear))
    weights[face] = solved / solved.sum()
    return weights


def _solve(
    centred: np.ndarray, target: np.ndarray, ridge: float
) -> tuple[np.ndarray, float, np.ndarray]:
    """Return the coefficients, the penalty, and the leave-one-out predictions [n] of the centred target."""
    gram = centred.T @ centred + ridge * np.eye(centred.shape[1])
    gain = np.linalg.solve(gram, centred.T)
    solution = gain @ target
    hat = 1 / len(target) + np.einsum("nk,kn->n", centred, gain)
    residual = (target - centred @ solution) / np.maximum(1 - hat, 1e-12)
    return solution, ridge, target - residual


def _pairs(count: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(count), 2))


MAX_SOURCES = 12
"""Most sources of a mixture: all 2^M faces of the simplex are looked at."""
ALIKE = ("model", "rollout", "engine", "rewards", "scoring", "algorithm", "strategies", "optimizer")
"""Sections that pilots must share, beside the number of steps and the evaluation."""
SMALLEST = 5e-4
"""A weight under this is left out."""


@dataclass(frozen=True)
class MixtureFit:
    """What pilots say: `weights` by source, the score expected of them, and how sure that is.

    `error` is the root mean square of the fit's leave-one-out errors; `spread` has by source the lowest
    and highest weight when one pilot is left out; `missing` names pilots of the paper's design that there are
    not.
    """

    sources: Mapping[str, SourceConfig]
    weights: Mapping[str, float]
    metric: str
    expected: float
    error: float
    spread: Mapping[str, tuple[float, float]]
    uniform: float
    best: tuple[str, float]
    pilots: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Pilot:
    run: Path
    config: Config
    score: float

    @property
    def weights(self) -> dict[str, float]:
        return {source.label: source.weight for source in self.config.data.train}


def fit_mixture(runs: Sequence[Path], metric: str | None = None) -> MixtureFit:
    """Fit the surrogate to the final held-out `metric` (None: the evaluation's) of finished runs.

    Raises:
        UserError: a run is not finished or cannot be compared with the first, or there are too few.
    """
    pilots = [_read(run, metric) for run in runs]
    sources: dict[str, SourceConfig] = {}
    for pilot in pilots:
        _require_alike(pilots[0], pilot)
        for source in pilot.config.data.train:
            known = sources.setdefault(source.label, source)
            if known.model_dump(exclude={"weight"}) != source.model_dump(exclude={"weight"}):
                raise UserError(
                    f"{pilot.run}: its source {source.label!r} is another one than in earlier pilots"
                )
    names = list(sources)
    least = len(names) + 2
    if not 2 <= len(names) <= MAX_SOURCES:
        raise UserError(
            f"mixture fit: expected pilots of 2 to {MAX_SOURCES} sources, got {len(names)}"
        )
    rows = np.array([[pilot.weights.get(name, 0.0) for name in names] for pilot in pilots])
    rows /= rows.sum(1, keepdims=True)
    different = len({tuple(row) for row in rows.round(6).tolist()})
    if different < least:
        raise UserError(
            f"mixture fit: expected at least {least} pilots of different weights for {len(names)} sources, "
            f"got {different}; missing of the paper's design: {', '.join(_missing(names, rows))}"
        )
    scores = np.array([pilot.score for pilot in pilots])
    return _fit(sources, rows, scores, pilots, _metric(pilots[0].config, metric))


def lines_of(mixture: MixtureFit) -> list[str]:
    """Return a YAML block to paste, and what is expected of it as comments."""
    m = mixture
    name, score = m.best
    low, high = m.expected - 1.96 * m.error, m.expected + 1.96 * m.error
    lines = [
        f"# {m.pilots} pilots; {m.metric} expected of these weights: {m.expected:.4f} "
        f"[{low:.4f}, {high:.4f}],",
        f"# 1.96 leave-one-out errors of {m.error:.4f} around it; equal weights: {m.uniform:.4f}; best pilot "
        f"{name}: {score:.4f}",
    ]
    if m.expected - score <= m.error:
        lines.append("# not above the best pilot by more than that error")
    for source, (lowest, highest) in m.spread.items():
        weight = m.weights.get(source, 0.0)
        lines.append(f"# {source}: {weight:.4f}; without one pilot {lowest:.4f} to {highest:.4f}")
    if m.missing:
        lines.append(f"# pilots that the paper has and these do not: {', '.join(m.missing)}")
    train = [
        m.sources[source].model_dump(mode="json", exclude_defaults=True, exclude={"weight"})
        | {"weight": round(weight, 4)}
        for source, weight in m.weights.items()
    ]
    block = yaml.safe_dump({"data": {"train": train}}, sort_keys=False, allow_unicode=True)
    return [*lines, *block.splitlines()]


def _fit(
    sources: Mapping[str, SourceConfig],
    rows: np.ndarray,
    scores: np.ndarray,
    pilots: Sequence[_Pilot],
    metric: str,
) -> MixtureFit:
    names, fitted = list(sources), fit(rows, scores)
    weights = best_mixture(fitted.surrogate)
    others = []
    for left_out in range(len(pilots)):
        rest = np.arange(len(pilots)) != left_out
        others.append(best_mixture(fit(rows[rest], scores[rest], fitted.ridge).surrogate))
    spread = np.array(others)
    top = int(scores.argmax())
    kept = {n: float(w) for n, w in zip(names, weights, strict=True) if w >= SMALLEST}
    return MixtureFit(
        sources=sources,
        weights=kept,
        metric=metric,
        expected=fitted.surrogate(weights),
        error=fitted.error(scores),
        spread={n: (float(s.min()), float(s.max())) for n, s in zip(names, spread.T, strict=True)},
        uniform=fitted.surrogate(np.full(len(names), 1 / len(names))),
        best=(str(pilots[top].run), float(scores[top])),
        pilots=len(pilots),
        missing=tuple(_missing(names, rows)),
    )


def _missing(names: Sequence[str], rows: np.ndarray) -> list[str]:
    """Name what lacks of the paper's pilots: each source alone, all but each source, and mixtures of all."""
    used = {tuple(row) for row in (rows > 0).tolist()}
    missing = []
    for index, name in enumerate(names):
        alone = tuple(other == index for other in range(len(names)))
        if alone not in used:
            missing.append(f"{name} alone")
        if len(names) > 2 and tuple(not flag for flag in alone) not in used:
            missing.append(f"all but {name}")
    return missing if (True,) * len(names) in used else [*missing, "a mixture of all"]


def _read(run: Path, metric: str | None) -> _Pilot:
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: expected the folder of a run, got no config.json")
    config, summary = read_config(run), read_summary(run)
    if summary is None or not summary["finished"]:
        raise UserError(f"{run}: expected a finished run: `resume=auto` goes on with it")
    if not config.is_constant or config.stages:
        raise UserError(f"{run}: expected weights that do not change, got schedules or stages")
    sampler = plugins.build("sampler", config.data.sampler.name, config.data.sampler.options)
    if not sampler.follows_weights:
        raise UserError(f"{run}: its sampler {config.data.sampler.name!r} does not follow weights")
    name, last = _metric(config, metric), summary["last_evaluation"]
    if last is None or name not in last["metrics"]:
        known = ", ".join(last["metrics"]) if last else "no evaluation"
        raise UserError(f"{run}: expected a final held-out {name!r}, got {known}")
    return _Pilot(run, config, float(last["metrics"][name]))


def _metric(config: Config, metric: str | None) -> str:
    return metric or (config.evaluation.metric if config.evaluation else "reward")


def _require_alike(first: _Pilot, other: _Pilot) -> None:
    for key, ours, theirs in zip(_NAMES, _facts(first.config), _facts(other.config), strict=True):
        if ours != theirs:
            hint = ": name the same evaluation.sources in all" if key == "evaluation" else ""
            raise UserError(f"{other.run}: has another {key} than {first.run}{hint}")


_NAMES = (*ALIKE, "run.steps", "sampler", "evaluation")


def _facts(config: Config) -> list[Any]:
    """Return what must be equal, in the order of `_NAMES`."""
    tree = config.model_dump(mode="json", include={*ALIKE})
    held_out = [source.model_dump(mode="json", exclude={"weight"}) for source in config.held_out]
    evaluation = config.evaluation.model_dump(mode="json") if config.evaluation else {}
    how = {key: evaluation.get(key) for key in ("metric", "benchmarks", "pass_threshold", "limit")}
    sampler = config.data.sampler.model_dump(mode="json")
    return [*(tree[key] for key in ALIKE), config.run.steps, sampler, (held_out, how)]
