"""The example data, converted into each layout that can hold them, are the samples they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.layout_forms.conversions import Pair, differences, records
from helpers.layout_forms.items import Form
from helpers.layout_forms.table import FORMS, VARIANTS

DATA = Path(__file__).parents[2] / "examples/data"
SETS = ("bccd", "cards", "charts", "fsdd", "gui", "iqa_livec", "tables", "video")
ROWS = 6
"""Rows of each task of a set; `make nightly` takes all."""


@pytest.fixture(scope="module")
def few() -> list[Pair]:
    return [pair for name in SETS for pair in records(DATA / name, "test", ROWS)]


@pytest.fixture(scope="module")
def every() -> dict[str, list[Pair]]:
    splits = [(name, split) for name in SETS for split in ("train", "test")]
    return {f"{name} {split}": records(DATA / name, split) for name, split in splits}


@pytest.mark.parametrize("form", [*FORMS, *VARIANTS], ids=lambda form: form.name)
def test_samples_are_the_same_in_every_layout(form: Form, few: list[Pair], tmp_path: Path) -> None:
    held, differing = differences(form, tmp_path, few)
    assert held >= 3 and not differing


@pytest.mark.nightly
@pytest.mark.parametrize("form", [*FORMS, *VARIANTS], ids=lambda form: form.name)
def test_all_samples_are_the_same_in_every_layout(
    form: Form, every: dict[str, list[Pair]], tmp_path: Path
) -> None:
    for name, pairs in every.items():
        (tmp_path / name).mkdir()
        _, differing = differences(form, tmp_path / name, pairs)
        assert not differing, name
