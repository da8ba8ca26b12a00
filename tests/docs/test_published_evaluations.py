"""The table of published evaluations names benchmarks that there are, or says why there is none."""

from __future__ import annotations

import re
from pathlib import Path

from vlmrl import plugins

PAGE = Path(__file__).parents[2] / "docs/evaluate/published_evaluations.md"
SYSTEMS = (
    "V-Triune Visual-RFT VLM-R1 TON VideoChat-R1 R1-AQA Q-Insight Med-R1 CLS-RL".split()
)  # those of the seed files whose evaluations are to be here


def test_every_evaluation_has_a_benchmark_or_a_reason() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][1:]
    assert {row[0] for row in rows} == set(SYSTEMS)
    known = plugins.names("benchmark")
    for system, evaluation, named, reason in rows:
        found = re.findall(r"`(\w+)`", named)
        assert set(found) <= set(known), (system, evaluation)
        assert found or (named == "none" and reason), (system, evaluation)
