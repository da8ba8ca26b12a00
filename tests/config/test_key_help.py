"""Help of config keys: against the JSON schema, and the lines of the shipped configs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from vlmrl import config
from vlmrl.config import tree
from vlmrl.config.key_help import all_keys, help_of, lines_of
from vlmrl.config.reading import WrongKeys


def test_the_help_of_every_key_is_that_of_the_json_schema() -> None:
    schema = json.loads(config.schema())
    stated = {
        (name, field.get("description"))
        for section in (schema, *schema["$defs"].values())
        for form in (section, *section.get("anyOf", ()))
        for name, field in form.get("properties", {}).items()
    }
    keys = all_keys()
    assert len(keys) > 200 and len({key.path for key in keys}) == len(keys)
    for key in keys:
        name = key.path.split(".")[-1]
        assert {(name, key.description), (name, None)} & stated, key.path  # None: a bare reference
        assert key.type and help_of(key.path) == key


@pytest.mark.parametrize(
    ("path", "known", "default"),
    [
        ("optimizer.lr", "optimizer.lr", "1e-06"),
        ("rewards.0.weight", "rewards.0.weight", "1.0"),
        ("models.judge.path", "models.judge.path", "''"),
        ("optimizer.lrr", "optimizer", ""),
        ("engine.options.tensor_parallel", "engine.options", "{}"),
        ("model", "model", "required"),
    ],
)
def test_the_nearest_key_above_is_helped_with(path: str, known: str, default: str) -> None:
    found: Any = help_of(path)
    assert (found.path, found.default) == (known, default)
    assert help_of("nothing.of.this") is None


@pytest.mark.parametrize("name", ["quickstart", "recipes/vlm_r1", "machines/8x80gb"])
def test_the_line_of_a_key_is_where_its_text_is(name: str) -> None:
    path = tree.shipped()[name]
    text = path.read_text()
    lines = text.splitlines()
    known = lines_of(text)
    assert known
    for key, line in known.items():
        if not (last := key.split(".")[-1]).isdecimal():
            assert re.search(rf"\b{last}\b", lines[line - 1]), key
    assert lines_of("") == {}


@pytest.mark.parametrize("name", ["quickstart", "recipes/vlm_r1"])
def test_a_text_is_read_as_its_file(name: str) -> None:
    path = tree.shipped()[name]
    overrides = ["run.steps=7", "machines/8x80gb"]
    assert tree.read_text(path.read_text(), path, overrides) == tree.read(str(path), overrides)


def test_mistakes_are_told_by_key_and_in_lines() -> None:
    plain = tree.read("quickstart", ["optimizer.lrr=1", "run.steps=-1"])
    with pytest.raises(WrongKeys) as caught:
        config.parse(plain, "mine.yaml")
    assert set(caught.value.problems) == {"optimizer.lrr", "run.steps"}
    for key, message in caught.value.problems.items():
        assert f"mine.yaml: {key}: {message}" in str(caught.value).splitlines()
