"""The real data of `examples/data`, which shipped configs, examples and tests read."""

from __future__ import annotations

from pathlib import Path

EXAMPLE_DATA = Path(__file__).parents[2] / "examples" / "data"
