"""The contract of a benchmark: it declares where its data are, how it is asked, and by what it is judged."""

from __future__ import annotations

from typing import Any

from helpers.contracts import require
from vlmrl import plugins
from vlmrl.benchmarking.aggregates import AGGREGATES
from vlmrl.benchmarking.base import open_benchmark

KIND = "benchmark"


def test_it_declares_its_data(part: str, loaded: Any) -> None:
    require(loaded.origin, part, "state `origin`, where the data come from")
    require(loaded.licence, part, "state `licence`, the terms of the data")
    require(loaded.count > 0, part, "state `count`, the rows of its split")
    require(all(loaded.splits.values()), part, "state the rows of each of `splits`")


def test_its_verifier_and_its_rules_exist(part: str, loaded: Any) -> None:
    strict = loaded.strict
    plugins.build("verifier", strict.verifier, strict.options)
    officials = open_benchmark(part, "").officials  # refuses a scorer that there is not
    also = {name.partition(" by ")[0] for official in officials for name in official.also}
    rules = {strict.aggregate, *also, *(official.aggregate for official in officials)}
    unknown = sorted(rules - set(AGGREGATES))
    require(not unknown, part, f"expected aggregates of {sorted(AGGREGATES)}, got {unknown}")


def test_each_protocol_names_a_version_and_a_prompt(part: str, loaded: Any) -> None:
    for official in loaded.officials:
        harness, _, version = official.protocol.partition("@")
        require(harness and version, part, f"name harness@version, got {official.protocol!r}")
        require(official.ask and official.max_tokens > 0, part, "state `ask` and `max_tokens`")
