"""The table of published systems names what there is, and every recipe has a line and a page."""

from __future__ import annotations

import re
from pathlib import Path

import coverage_page
import pytest
import recipe_heads
import yaml

from vlmrl import plugins
from vlmrl.config.tree import shipped

ROOT = Path(__file__).parents[2]
RECIPES = {name.removeprefix("recipes/") for name in shipped() if name.startswith("recipes/")}
SYSTEMS = coverage_page.read_systems()


def test_every_recipe_has_the_line_of_one_system() -> None:
    named = [recipe for system in SYSTEMS for recipe in system.recipes]
    assert len(named) == len(set(named))
    assert set(named) == RECIPES, "docs/generate/coverage.yaml"


def test_every_part_that_a_line_names_is_there() -> None:
    for kind, names in coverage_page.parts_by_kind().items():
        assert kind in plugins.KINDS
        assert names <= set(plugins.names(kind)), kind


def test_every_page_that_a_line_names_is_there() -> None:
    for system in SYSTEMS:
        for page in system.pages:
            assert (ROOT / "docs" / page).is_file(), (system.name, page)


def test_a_line_says_what_shows_it_and_what_is_missing() -> None:
    for system in SYSTEMS:
        assert system.note or system.state == "runs", system.name
        assert system.note == "" or system.note.endswith("."), system.name
        shown = system.recipes or system.parts or system.pages
        assert shown or system.state == "out", system.name
    anchors = [system.anchor for system in SYSTEMS]
    assert len(anchors) == len(set(anchors))


def test_the_papers_of_a_recipe_are_those_of_its_line() -> None:
    for system in SYSTEMS:
        for recipe in system.recipes:
            paper = recipe_heads.read_head(shipped()[f"recipes/{recipe}"]).paper
            assert not paper or paper in system.papers, recipe


def test_a_published_figure_is_of_a_recipe_of_its_line_and_has_numbers_and_a_source() -> None:
    for system in SYSTEMS:
        for one in system.figures:
            assert one.recipe in system.recipes, system.name
            assert re.search(r"\d", one.figure) and one.source


def test_a_recipe_that_a_note_names_is_there() -> None:
    named = re.findall(r"`recipes/(\w+)`", " ".join(system.note for system in SYSTEMS))
    assert set(named) <= RECIPES


def test_a_line_with_a_part_that_is_gone_fails() -> None:
    written = yaml.safe_load(coverage_page.FILE.read_text(encoding="utf-8"))[0]
    gone = coverage_page.System.model_validate({**written, "parts": {"verifier": ["box_iuo"]}})
    with pytest.raises(Exception, match="no verifier is named 'box_iuo'"):
        list(coverage_page.shown(gone))
