"""The key maps of other trainers have every setting that is known, and name keys that there are."""

from __future__ import annotations

import re

import import_tables
import pytest

from vlmrl.config import Config, Section
from vlmrl.features.import_config import tables

TABLES = import_tables.tables()
HF, EASYR1 = TABLES.split("### EasyR1")


def test_every_setting_that_is_known_has_a_row() -> None:
    joint = tables.hf_sizes({}, 1)[1] | set(tables.NAMES)
    assert [name for name in {*tables.HF_RULES, *joint} if f"`{name}`" not in HF] == []
    joint = tables.easyr1_sizes({})[1] - {"config"}
    assert [name for name in {*tables.EASYR1_RULES, *joint} if f"`{name}`" not in EASYR1] == []


def test_a_setting_that_goes_nowhere_says_why() -> None:
    rows = [
        line.strip("| ").split(" | ") for line in TABLES.splitlines() if " | nothing | " in line
    ]
    assert len(rows) > 10
    assert all(len(row) == 3 and row[2] for row in rows)


def test_a_key_of_a_row_is_a_key_of_the_config(subtests: pytest.Subtests) -> None:
    rows = [line.split(" | ") for line in TABLES.splitlines() if line.startswith("| `")]
    for key in sorted({key for row in rows for key in re.findall(r"`([\w.]+)[^`]*`", row[1])}):
        with subtests.test(key):
            section: type[Section] | None = Config
            for name in key.split("."):
                if section is None:
                    break
                assert name in section.model_fields
                inner = section.model_fields[name].annotation
                kinds = [inner, *getattr(inner, "__args__", ())]
                sections = [k for k in kinds if isinstance(k, type) and issubclass(k, Section)]
                section = sections[0] if sections else None
