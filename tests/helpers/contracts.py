"""What the contract tests of all kinds of part share."""

from __future__ import annotations

from typing import Any

import pytest


def require(condition: Any, part: str, sentence: str) -> None:
    """Fail with one sentence that says what to write."""
    if not condition:
        pytest.fail(f"{part}: {sentence}", pytrace=False)
