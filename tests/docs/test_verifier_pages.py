import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from vlmrl import plugins

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "verifier_pages", ROOT / "docs" / "verifier_pages.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", plugins.names("verifier"))
def test_a_verifier_says_what_it_refuses_where_it_is_from_and_how_it_is_used(
    pages: ModuleType, name: str
) -> None:
    _, sections = pages.split_docstring(plugins.load("verifier", name))
    assert sections.keys() >= {"Source"}
    assert sections.keys() & {"Used by", "Published sets"}, "who uses it?"


def test_the_committed_pages_are_what_the_docstrings_say(pages: ModuleType) -> None:
    folder = ROOT / "docs" / "verifiers"
    names = plugins.names("verifier")
    stale = [n for n in names if (folder / f"{n}.md").read_text("utf-8") != pages.page(n)]
    assert stale == [], "run `make docs`"
    assert (folder / "README.md").read_text("utf-8") == pages.table(names), "run `make docs`"
    assert {file.stem for file in folder.glob("*.md")} == {"README", *names}


def test_the_picture_of_boxes_is_drawn(pages: ModuleType, tmp_path: Path) -> None:
    pages.draw_shapes(tmp_path / "shapes.svg")
    assert (tmp_path / "shapes.svg").read_text("utf-8").startswith("<?xml")
