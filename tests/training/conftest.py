"""Fixtures of several test files of this folder."""

from __future__ import annotations

import pytest

from helpers.rollouts_ahead import ahead_config, begin_training


@pytest.fixture(scope="module")
def order(tmp_path_factory) -> list[list[str]]:
    """The samples of the first batches, as the loader deals them."""
    with begin_training(ahead_config(tmp_path_factory.mktemp("order") / "run")) as trainer:
        return [[p.sample.id for p in trainer.loader.next().prompts] for _ in range(30)]
