"""Seeds of everything that is drawn: each is a function of the run's seed, the purpose and the step."""

from __future__ import annotations

import hashlib

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
"""The step of SplitMix64's counter."""


def seed_of(*parts: int) -> int:
    """Return one seed made of several numbers (run seed, purpose, step ...), in [0, 2**63).

    The same parts give the same seed.
    """
    return int(np.random.SeedSequence(list(parts)).generate_state(1, np.uint64)[0] >> 1)


def mix(x: np.ndarray) -> np.ndarray:
    """Scramble counters [N] uint64 into random numbers [N] uint64.

    Source: Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators", SplitMix64.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(key: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the key."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56
