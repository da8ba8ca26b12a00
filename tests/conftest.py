"""Options and settings of all tests. Fixtures live in the test files that use them."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
from hypothesis import settings

# Before anything imports torch or transformers: no test may touch the network, and one thread makes
# results independent of the machine's cores.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

# Likewise before a test file imports transformers.
from vlmrl.system import torchvision_shim  # noqa: F401

if sys.version_info < (3, 11):
    collect_ignore = ["algorithms/test_trl_equality.py"]  # that TRL needs Python 3.11

settings.register_profile("default", deadline=None, max_examples=20)
settings.register_profile("nightly", deadline=None, max_examples=3000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="long runs and many random examples")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("nightly" if config.getoption("--nightly") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("ray") is None:
        for item in items:
            if item.get_closest_marker("ray"):
                item.add_marker(pytest.mark.skip(reason="needs Ray: make test-ray"))
    if config.getoption("--nightly"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    items[:] = [item for item in items if item not in nightly]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
