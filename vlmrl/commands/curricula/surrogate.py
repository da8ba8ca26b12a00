"""The quadratic surrogate of a mixture's score, and the mixture at which it is highest.

Source: MoDoMoDo (Liang et al. 2025, arXiv 2505.24871): ŝ(w) = a + bᵀw + wᵀCw over the weights w of M sources,
fitted to pilot runs, and its argmax over the simplex. There Σw = 1, so that wᵢ² = wᵢ - Σⱼ wᵢwⱼ: the squares
are left out and nothing is lost.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

__all__ = ["Fit", "Surrogate", "best_mixture", "fit"]

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
    features = _features(weights)
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
    found = []
    for size in range(1, count + 1):
        for face in itertools.combinations(range(count), size):
            inner = _stationary(surrogate, list(face))
            if inner is not None:
                found.append(inner)
    return max(found, key=surrogate)


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


def _features(weights: np.ndarray) -> np.ndarray:
    products = [weights[:, i] * weights[:, j] for i, j in _pairs(weights.shape[1])]
    return np.column_stack([weights, *products])


def _pairs(count: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(count), 2))
