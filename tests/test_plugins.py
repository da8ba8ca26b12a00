"""Plugins are found by file name, their options are checked, mistakes name the nearest."""

from __future__ import annotations

import math
import pickle
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl import plugins
from vlmrl.errors import UserError

PLUGIN = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal
from pydantic import Field

@dataclass(frozen=True)
class Ruler:
    '''Measures.'''
    unit: ClassVar[str] = "px"
    length: float
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    mode: Literal["inner", "outer"] = "inner"
    sizes: tuple[int, ...] = (1, 2)
    marks: list[str] = field(default_factory=list)
    limit: int | None = None
    derived: int = field(init=False, default=3)

    def __post_init__(self):
        if self.length == 13:
            raise ValueError("a ruler of 13 brings bad luck")

class Plain:
    pass

def score(answer, threshold=0.5):
    return threshold
"""


@pytest.fixture()
def ruler(tmp_path: Path) -> str:
    path = tmp_path / "ruler.py"
    path.write_text(PLUGIN)
    return f"{path}:Ruler"


def refusal(kind: str, name: str, options: dict[str, Any] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        plugins.build(kind, name, options)
    return str(caught.value)


def outcome(kind: str, name: str, options: dict[str, Any]) -> Any:
    """The options of the built plugin, or why it cannot be built (some have no default)."""
    try:
        built = plugins.build(kind, name, options)
    except UserError as error:
        return str(error)
    return {key: getattr(built, key) for key in plugins.options_of(type(built))}


# ----------------------------------------------------------------------------------------- names


def test_names_are_those_of_files_that_hold_their_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "room_of_tests"
    room.mkdir()
    (room / "box_iou.py").write_text("raise SystemExit('listing must not import')\nclass BoxIou:\n")
    (room / "shared.py").write_text("class SharedParts: pass\nx = 'class Shared:'\n")
    (room / "_hidden.py").write_text("class Hidden: pass\n")
    (room / "hf.py").write_text("class HfEngine: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(plugins.KINDS, "verifier", "room_of_tests")
    assert plugins.names("verifier") == ["box_iou"]
    expected = "room_of_tests/hf.py: expected a class named Hf, got HfEngine"
    assert expected in refusal("verifier", "hf")


@pytest.mark.parametrize(
    ("file", "cls"), [("box_iou", "BoxIou"), ("qwen2_5_vl", "Qwen25Vl"), ("hf", "Hf")]
)
def test_the_class_of_a_file_is_its_name_in_camel_case(file: str, cls: str) -> None:
    assert plugins.class_name(file) == cls


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_every_shipped_plugin_loads_under_its_name(kind: str) -> None:
    assert plugins.names(kind)
    for name in plugins.names(kind):
        assert plugins.load(kind, name).__name__ == plugins.class_name(name)


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_options_of_shipped_plugins_accept_their_own_defaults(kind: str) -> None:
    for name in plugins.names(kind):
        options = plugins.options_of(plugins.load(kind, name))
        defaults = {key: o.default for key, o in options.items() if not o.required}
        assert outcome(kind, name, defaults) == outcome(kind, name, {})


# --------------------------------------------------------------------------------------- options


def test_options_keep_types_and_defaults(ruler: str) -> None:
    options = plugins.options_of(plugins.load("card", ruler))
    assert list(options) == ["length", "share", "mode", "sizes", "marks", "limit"]
    assert options["length"].required and not options["marks"].required
    assert (options["marks"].default, options["sizes"].default) == ([], (1, 2))


def test_values_of_a_config_become_those_of_the_plugin(ruler: str) -> None:
    made = plugins.build("card", ruler, {"length": 3, "sizes": [4, 5], "limit": None})
    assert (made.length, made.sizes, made.limit, made.derived) == (3.0, (4, 5), None, 3)
    assert isinstance(made.length, float)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "option 'length' is required"),
        ({"lenght": 3}, "has no option 'lenght'; did you mean 'length'?"),
        ({"length": 3, "derived": 1}, "has no option 'derived'"),
        ({"length": 3, "unit": "cm"}, "has no option 'unit'"),
        ({"length": "long"}, "option 'length': Input should be a valid number"),
        ({"length": True}, "option 'length': Input should be a finite number (got True)"),
        ({"length": math.nan}, "option 'length': Input should be a finite number (got nan)"),
        ({"length": math.inf}, "option 'length': Input should be a finite number (got inf)"),
        ({"length": None}, "option 'length': Input should be a valid number"),
        ({"length": 3, "share": 1.5}, "option 'share': Input should be less than or equal to 1"),
        ({"length": 3, "mode": "iner"}, "option 'mode': Input should be 'inner' or 'outer'"),
        ({"length": 3, "sizes": [1.5]}, "option 'sizes': Input should be a valid integer"),
        ({"length": 13}, "a ruler of 13 brings bad luck"),
    ],
)
def test_a_wrong_option_is_named(ruler: str, options: dict[str, Any], expected: str) -> None:
    message = refusal("card", ruler, options)
    assert expected in message and "ruler.py:Ruler" in message and "\n" not in message


def test_two_builds_do_not_share_a_mutable_default(ruler: str) -> None:
    first, second = (plugins.build("card", ruler, {"length": 1}) for _ in range(2))
    assert first.marks is not second.marks


def test_a_function_takes_its_options_by_name(ruler: str) -> None:
    name = ruler.replace(":Ruler", ":score")
    assert plugins.build("verifier", name)("answer") == 0.5
    assert plugins.build("verifier", name, {"threshold": 0.9})("answer") == 0.9


def test_a_class_that_is_no_dataclass_is_refused(ruler: str) -> None:
    assert "Plain: expected a dataclass" in refusal("card", ruler.replace(":Ruler", ":Plain"))


# ------------------------------------------------------------------------------------- not found


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("algorithm", "grop", "no algorithm is named 'grop'; did you mean 'grpo'?"),
        ("engine", "xyz", "no engine is named 'xyz'; there are: hf"),
        ("verifier", "my.py", "say which of its parts, as in 'my.py:Name'"),
        ("verifier", "no/such.py:score", "'no/such.py': there is no such file"),
        ("verifier", "no_such_package:score", "'no_such_package' cannot be imported: Module"),
        ("verifier", "math:sqroot", "math has no 'sqroot'; did you mean 'sqrt'?"),
        ("verifier", ":score", "'' cannot be imported"),
    ],
)
def test_a_name_that_is_not_found_is_explained(kind: str, name: str, expected: str) -> None:
    assert expected in refusal(kind, name)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
        ("import no_such_thing", "No module named 'no_such_thing'"),
    ],
)
def test_a_user_file_that_fails_says_why(tmp_path: Path, source: str, expected: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    message = refusal("verifier", f"{path}:score")
    assert "mine.py" in message and expected in message
    path.write_text("def score(answer): return 1")  # mended: no half-imported module is left
    assert plugins.load("verifier", f"{path}:score")("x") == 1


def test_two_user_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rewards.py").write_text(f"def score(answer): return {value}")
    a, b = (plugins.load("verifier", f"{tmp_path}/{f}/rewards.py:score") for f in "ab")
    assert (a("x"), b("x")) == (1, 2)


def test_a_user_file_is_imported_once(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text("import sys\nsys.counted = getattr(sys, 'counted', 0) + 1\nclass A: pass\n")
    first = plugins.load("card", f"{path}:A")
    assert plugins.load("card", f"{path}:A") is first
    assert sys.counted == 1  # type: ignore[attr-defined]


def test_threads_that_load_a_user_file_at_once_all_get_it_whole(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(0.2)\n\ndef score(answer):\n    return 1.0\n")
    with ThreadPoolExecutor(8) as threads:
        found = {*threads.map(lambda _: plugins.load("verifier", f"{slow}:score"), range(8))}
    assert len(found) == 1


def test_another_process_imports_only_the_files_whose_parts_it_reads(tmp_path: Path) -> None:
    for name in ("slow_engine", "small_tool"):
        (tmp_path / f"{name}.py").write_text("class Part: pass\n")
    engine, tool = (
        plugins.load("tool", f"{tmp_path}/{name}.py:Part") for name in ("slow_engine", "small_tool")
    )
    files = plugins.user_files(pickle.dumps([tool()]))
    assert files == (str(tmp_path / "small_tool.py"),)
    assert len(plugins.user_files(pickle.dumps({"a": tool(), "b": engine()}))) == 2


def test_an_unknown_type_of_an_option_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(
        textwrap.dedent("""
            from __future__ import annotations
            from dataclasses import dataclass
            @dataclass
            class Odd:
                x: Unheard = 1
        """)
    )
    assert "Odd: the type of an option is unknown: name 'Unheard'" in refusal("card", f"{path}:Odd")


@given(st.text(max_size=20))
def test_no_name_gives_anything_but_a_plugin_or_a_clear_refusal(name: str) -> None:
    if ":" in name:
        name = "vlmrl" + name
    try:
        plugins.load("verifier", name)
    except UserError as error:
        assert str(error)
