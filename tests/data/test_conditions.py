"""Conditions on the rows of a source: what they allow, what they leave, and that nothing is evaluated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.loaders import prompt
from vlmrl.config import SourceConfig
from vlmrl.data.conditions import Condition
from vlmrl.data.loader import Loader
from vlmrl.data.source import Source, open_source
from vlmrl.errors import UserError

ROW: Mapping[str, Any] = {"a": 2, "b": -0.5, "objects": {"count": 3}, "word": "two"}


@pytest.mark.parametrize(
    "text, holds",
    [
        ("a == 2", True),
        ("a != 2", False),
        ("1 < a < 2", False),
        ("1 < a <= 2", True),
        ("b > -1", True),
        ("b >= a", False),
        ("not a < 1 and b < 0", True),
        ("not (a < 1 or b < 0)", False),
        ("a < 1 or b < 0 and objects.count == 3", True),
        (" a > 1e0 ", True),
    ],
)
def test_a_condition_holds_as_it_reads(text: str, holds: bool) -> None:
    assert Condition(text).holds(ROW) is holds


@pytest.mark.parametrize(
    "text, quoted",
    [
        ("a", "a"),
        ("a > 1 and b", "b"),
        ("a + 1 > 2", "a + 1"),
        ("-a < 1", "-a"),
        ("a > True", "True"),
        ("a > 1j", "1j"),
        ("a in (1, 2)", "a in (1, 2)"),
        ("a is 2", "a is 2"),
        ("f(a) > 1", "f(a)"),
        ("f(a).b > 1", "f(a).b"),
        ("a[0] > 1", "a[0]"),
        ("__import__('os').system('true') == 0", "__import__('os').system('true')"),
        ("(a := 1) > 0", "(a := 1)"),
        ("(lambda: 1)() > 0", "(lambda: 1)()"),
        ("a > 1; b > 1", "a > 1; b > 1"),
        ("a >", "a >"),
        ("", ""),
        ("a > 1\0", "a > 1\0"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_is_allowed(text: str, quoted: str) -> None:
    with pytest.raises(UserError) as refused:
        Condition(text)
    said = str(refused.value)
    assert said.startswith("expected comparisons (< <= > >= == !=) of columns and numbers")
    assert said.endswith(f"got {quoted!r}")


@pytest.mark.parametrize("text", ["(" * 400 + "a > 1" + ")" * 400, "not " * 240 + "a > 1"])
def test_a_deep_condition_is_judged_or_refused(text: str) -> None:
    try:
        assert Condition(text).holds(ROW)
    except UserError as error:
        assert "expected comparisons" in str(error)


def test_a_long_condition_is_refused() -> None:
    with pytest.raises(UserError, match="expected at most 1000 characters, got 1005"):
        Condition("a > 1" * 201)


@pytest.mark.parametrize("value", ["two", None, True, float("nan"), 10**400, [1]])
def test_a_row_without_a_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="column 'a': expected a finite number, got "):
        Condition("a > 1").holds({"a": value})


@pytest.fixture
def config(tmp_path: Path) -> SourceConfig:
    """Twenty rows with a level; row 6 is no JSON."""
    rows = [{"id": f"{i}", "question": "?", "answer": "x", "level": i % 5} for i in range(20)]
    lines = [json.dumps(row) for row in rows]
    lines[6] = "{"
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    columns = {"question": "question", "answer": "answer", "id": "id"}
    options = {"path": str(tmp_path / "train.jsonl"), "columns": columns}
    return SourceConfig(card="table", name="mine", options=options)


def ids(source: Source) -> list[str]:
    return [source.sample(row).id for row in range(len(source.rows))]


def filtered(config: SourceConfig, where: str, **more: Any) -> Source:
    return open_source(config.model_copy(update={"where": where, **more}))


def test_rows_of_which_it_holds_are_left_in_their_order_and_numbered_anew(
    config: SourceConfig,
) -> None:
    source = filtered(config, "level >= 3", split="train[7:]")
    assert ids(source) == ["8", "9", "13", "14", "18", "19"]
    assert ids(filtered(config, "level >= 3", split="train[7:]", limit=7)) == ["8", "9", "13"]


def test_a_row_that_cannot_be_read_stays_and_is_counted_when_drawn(config: SourceConfig) -> None:
    source = filtered(config, "level == 0")
    loader = Loader([source], prompt, 4, quarantine_limit=1.0)
    drawn = {one.sample.id for one in loader.next().prompts}
    loader.next()
    assert drawn == {"0", "5", "10", "15"} and len(source.rows) == 5
    assert loader.quarantine.rows(source) == {2}


def test_what_is_wrong_is_named_by_source_key_and_row(config: SourceConfig) -> None:
    with pytest.raises(UserError, match=r"^source 'mine': where: expected comparisons .* got 'a'$"):
        filtered(config, "a")
    with pytest.raises(UserError, match=r"train.jsonl:1: no column 'levle'; did you mean 'level'"):
        filtered(config, "levle > 1")
    message = r"source 'mine': split 'train.7:. where level > 9' has no rows"
    with pytest.raises(UserError, match=message):
        filtered(config, "level > 9", split="train[7:]")


def test_a_resume_with_another_condition_is_refused(config: SourceConfig) -> None:
    begun = Loader([filtered(config, "level < 2")], prompt, 4)
    Loader([filtered(config, "level < 2")], prompt, 4).restore(begun.state)
    with pytest.raises(UserError, match=r"the data have changed: sources was .*level < 2"):
        Loader([filtered(config, "level > 2")], prompt, 4).restore(begun.state)


def test_texts_are_compared_by_equality() -> None:
    row = {"kind": "chart", "n": 2, "a": {"b": "x"}}
    assert Condition("kind == 'chart' and n > 1").holds(row)
    assert Condition("not 'table' == kind and a.b != 'y'").holds(row)
    assert not Condition("kind != 'chart'").holds(row)
    assert Condition("moving == True and kind != 'x'").holds({**row, "moving": True})
    assert not Condition("moving == True").holds({"moving": False})
    with pytest.raises(UserError, match="column 'n': expected true or false, got 2"):
        Condition("n == False").holds(row)
    with pytest.raises(UserError, match="column 'n': expected texts, or True and False, got both"):
        Condition("n == False or n == 'a'")
    with pytest.raises(UserError, match="column 'n': expected a text, got 2"):
        Condition("n == 'two'").holds(row)
    with pytest.raises(UserError, match="no column 'kinds'; did you mean 'kind'"):
        Condition("kinds == 'chart'").holds(row)


@pytest.mark.parametrize(
    "text", ["kind < 'chart'", "kind == 'a' == 'b'", "'a' == 'a'", "kind == ''b"]
)
def test_other_comparisons_of_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected comparisons"):
        Condition(text)


def test_a_column_is_of_numbers_or_of_texts() -> None:
    with pytest.raises(UserError, match="column 'kind': expected numbers or texts to compare with"):
        Condition("kind == 'a' or kind == 1")
