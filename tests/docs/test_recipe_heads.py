"""The head of every recipe is complete, and states the numbers with which the recipe runs."""

from __future__ import annotations

import re

import pytest
import recipe_heads

from vlmrl.config import load
from vlmrl.config.tree import shipped

RECIPES = [name for name in shipped() if name.startswith("recipes/")]
BASES = {"recipes/r1v", "recipes/geometry3k"}
"""What other recipes extend; they have no paper of their own."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_whose_it_is_what_it_reads_and_how_it_differs(name: str) -> None:
    head = recipe_heads.read_head(shipped()[name])
    assert tuple(head.sections) == recipe_heads.SECTIONS
    assert all(text.endswith(".") and len(text) > 12 for text in head.sections.values())
    assert bool(head.paper) == (name not in BASES)
    assert re.search(r"column|those? of \w+|that of \w+|as published", head.sections["Data"])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_states_the_numbers_with_which_it_runs(name: str) -> None:
    stated = recipe_heads.read_head(shipped()[name]).sections["Runs"]
    assert stated == recipe_heads.describe_run(load(name))
