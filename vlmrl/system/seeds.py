"""Seeds of everything that is drawn: each is a function of the run's seed, the purpose and the step."""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["seed_of", "uniform"]


def seed_of(*parts: int) -> int:
    """Return one seed made of several numbers (run seed, purpose, step ...), in [0, 2**63).

    The same parts give the same seed.
    """
    return int(np.random.SeedSequence(list(parts)).generate_state(1, np.uint64)[0] >> 1)


def uniform(key: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the key."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56
