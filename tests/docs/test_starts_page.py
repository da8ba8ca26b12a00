"""The configs for six machines are whole, and their page says what `vlmrl plan` says."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

import hook
import starts_page

from vlmrl.assemble.validate import validate
from vlmrl.config import load
from vlmrl.config.tree import shipped
from vlmrl.data.source import open_config, open_held_out
from vlmrl.features.plan.published import gpu

PAGE = Path(__file__).parents[2] / "docs" / "start" / "which_gpu.md"
NAMES = {name.removeprefix("starts/") for name in shipped() if name.startswith("starts/")}


def row_of(name: str) -> list[str]:
    """The cells of a config's row in the stored table."""
    (line,) = [row for row in starts_page.draw().splitlines() if f"`starts/{name}`" in row]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_config_is_valid_and_its_rows_are_of_the_repository(name: str) -> None:
    config = load(f"starts/{name}")
    validate(config)
    train, held_out = open_config(config)[0], open_held_out(config)[0]
    assert (len(train.rows), len(held_out.rows)) == (180, 63)
    assert train.sample(0).truth.boxes and train.sample(0).template == "answer_only"


def test_all_but_what_they_share_have_a_row_and_none_a_time() -> None:
    assert {"photos", *starts_page.MACHINES} == NAMES
    for name, (kind, number) in starts_page.MACHINES.items():
        machine, _, model, memory, time = row_of(name)
        assert machine.startswith(f"{number} x {gpu(kind).memory_gb:g} GB")
        assert name.split("_")[0].removeprefix("qwen").upper() in model
        needed, of, has = memory.split()
        assert of == "of" and float(needed) < float(has)
        assert float(has) == pytest.approx(gpu(kind).memory / 2**30, abs=0.06)
        assert time == "once a GPU has measured it"


@pytest.mark.slow
def test_a_row_is_what_the_plan_says_now() -> None:
    _, _, *expected = row_of("qwen3b_1x24gb")
    line = starts_page.plan("qwen3b_1x24gb")
    assert [cell.strip() for cell in line.strip("|").split("|")][2:] == expected


@pytest.mark.nightly
def test_all_rows_are_what_the_plan_says_now() -> None:
    assert "\n".join(starts_page.table()) == starts_page.draw()


def test_the_page_has_the_table_and_the_files() -> None:
    filled = hook._filled(PAGE.read_text(encoding="utf-8"))
    assert starts_page.draw() in filled and "Planned, not measured" in filled
    for name in NAMES:
        assert shipped()[f"starts/{name}"].read_text(encoding="utf-8") in filled
