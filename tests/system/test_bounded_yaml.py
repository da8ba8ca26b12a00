"""YAML whose aliases multiply is refused before anybody walks it; honest files are read as before."""

import time
from pathlib import Path

import pytest
import yaml

from vlmrl.config import tree
from vlmrl.data.layout import DataPlace
from vlmrl.errors import UserError
from vlmrl.system import bounded_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


def test_a_config_with_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_text(f"run: {{name: x}}\n{BOMB}")
    began = time.process_time()
    with pytest.raises(UserError, match=r"line 7: .*at most 200000 values"):
        tree.read(str(file))
    with pytest.raises(UserError, match="at most 200000 values"):
        tree.override({}, f"a={_in_flow()}")
    assert time.process_time() - began < 1


def _in_flow() -> str:
    """The bomb in one line, as an override could have it."""
    parts = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    parts += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    return "{" + ", ".join(parts) + "}"


def test_an_alias_that_is_a_part_of_itself_is_refused() -> None:
    for text in ("a: &a [*a]", "&a {b: *a}", "a: &a {b: [*a]}"):
        with pytest.raises(yaml.YAMLError, match="part of itself"):
            bounded_yaml.load(text)


def test_a_data_file_with_a_bomb_states_nothing(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(BOMB)
    began = time.process_time()
    assert DataPlace(tmp_path / "data.yaml").settings == {}
    assert time.process_time() - began < 1


def test_aliases_and_long_files_are_read() -> None:
    shared = bounded_yaml.load("a: &a {x: 1}\nc: [*a, *a]")
    assert shared == {"a": {"x": 1}, "c": [{"x": 1}, {"x": 1}]}
    assert len(bounded_yaml.load("\n".join(f"- {n}" for n in range(20_000)))) == 20_000
    assert bounded_yaml.load("a: &a {x: 1}\nb: {<<: *a, y: 2}")["b"] == {"x": 1, "y": 2}
