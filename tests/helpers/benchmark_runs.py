"""Benchmarks opened, scored and evaluated on their fixtures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from helpers.published import ROWS, write_published
from vlmrl import plugins
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.benchmarking.scoring import Answer, Result, score_answers
from vlmrl.cli.app import app
from vlmrl.data.source import Source
from vlmrl.errors import MissingExtra
from vlmrl.rewards.math import Math

FRAME = {"width": 96, "height": 64, "space": "norm1000"}


def opened(folder: Path, name: str, protocol: str, template: str = "") -> Source:
    benchmark = plugins.load("benchmark", name)
    path = write_published(folder, name, benchmark.split, ROWS[name])
    card = BenchmarkCard(open_benchmark(name, str(path)), protocol)
    template = template or (card.official.template if card.official else "none")
    return Source(name, card, benchmark.split, card.rows(benchmark.split), template=template)


def scored(
    folder: Path, name: str, protocol: str, answers: Sequence[str], template: str = ""
) -> Result:
    return judged(opened(folder, name, protocol, template), protocol, answers)


def judged(source: Source, protocol: str, answers: Sequence[str]) -> Result:
    """Score answers to the rows in their order, from the first again where there are more."""
    rows = len(source.rows)
    given = [Answer(i % rows, text, 3, "stop", FRAME) for i, text in enumerate(answers)]
    benchmark = source.card.benchmark  # type: ignore[attr-defined]
    with mock.patch.object(Math, "slow", False):  # in this process: no pool is started for a case
        try:
            return score_answers(benchmark, source, protocol, given)
        except MissingExtra as missing:
            pytest.skip(str(missing))


def run(checkpoint: Path, data: Path, out: Path, *more: str):
    asked = ("--protocol", "lmms_eval", "--data-root", str(data), "--out", str(out))
    return CliRunner().invoke(app, ["eval", str(checkpoint), *asked, *more])
