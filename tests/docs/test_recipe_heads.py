"""The head of every recipe states the numbers with which the recipe runs."""

from __future__ import annotations

import pytest
import recipe_heads

from vlmrl.config import load
from vlmrl.config.tree import shipped


def test_a_recipe_states_the_numbers_with_which_it_runs(subtests: pytest.Subtests) -> None:
    for name in (name for name in shipped() if name.startswith("recipes/")):
        with subtests.test(name):
            stated = recipe_heads.read_head(shipped()[name]).sections["Runs"]
            assert stated == recipe_heads.describe_run(load(name))
