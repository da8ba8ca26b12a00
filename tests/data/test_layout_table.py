"""Twenty-seven published layouts, and variants: recognised, every row read, truth and prompt right."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.layout_forms.items import Form
from helpers.layout_forms.table import FORMS, VARIANTS, try_form
from vlmrl import plugins


def test_there_are_twenty_seven_and_every_layout_is_among_them() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS) == 27
    assert {form.layout for form in (*FORMS, *VARIANTS)} == {*plugins.names("layout")}


@pytest.mark.parametrize("form", [*FORMS, *VARIANTS], ids=lambda form: form.name)
def test_a_layout_is_read_whole_with_at_most_six_lines(form: Form, tmp_path: Path) -> None:
    outcome = try_form(form, tmp_path)
    assert outcome.of >= 2, "a form is tried with several rows"
    assert outcome.whole, outcome
