"""The official scorers: what a harness gives for one answer, by name.

Each takes the answer's text and the sample, and returns a `Score`. The reading of the text is a rule
of `vlmrl.benchmark_rules`, which are compared with the harnesses' own code. Every module here adds
the scorers of its table `SCORERS`.
"""

from __future__ import annotations

import importlib
import pkgutil

from vlmrl.benchmarking.scores import Scorer


def _scorers() -> dict[str, Scorer]:
    scorers: dict[str, Scorer] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        table: dict[str, Scorer] = importlib.import_module(module.name).SCORERS
        if twice := scorers.keys() & table.keys():
            raise ValueError(f"{module.name}: another module has scorers named {sorted(twice)}")
        scorers |= table
    return scorers


SCORERS = _scorers()
"""Official scorers by name."""
