"""The table of parity: every family and kind of media has a row, and every cell of the record its column."""

from __future__ import annotations

import pytest

pytest.importorskip("mkdocs")

import parity_page

from vlmrl import plugins


def test_every_family_and_kind_of_media_has_a_row_and_every_cell_a_column() -> None:
    cells = parity_page.record()["cells"]
    kinds = {name: {"text", *plugins.load("family", name).kinds} for name in cells}
    assert sorted(cells) == plugins.names("family")
    assert {name: set(by_medium) for name, by_medium in cells.items()} == kinds
    columns = {column for family in cells.values() for found in family.values() for column in found}
    assert columns <= set(parity_page.COLUMNS)
    assert len(list(parity_page.table({}))) == 2 + sum(map(len, kinds.values()))


def test_a_cell_says_what_it_is() -> None:
    reasons: dict[str, int] = {}
    shown = [
        parity_page.cell(c, reasons) for c in (None, 0.0, 4.8e-7, 0.21, "no", "fails: x", "no")
    ]
    assert shown == ["", "0", "4.8e-07", "**2.1e-01**", "refused (1)", "fails (2)", "refused (1)"]
