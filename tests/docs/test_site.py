"""The generated pages say what the code says, and no link of the repository is dead."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs")

import algorithm_tables
import architecture
import boxes_picture
import command_reference
import config_reference
import hook
import part_pages
import typer

from vlmrl import config, plugins
from vlmrl.cli.app import app as root

ROOT = Path(__file__).parents[2]
FILLED = ("<!-- gallery -->", "<!-- coverage -->", "<!-- matrix -->")
"""What is written into the pages of `docs/recipes`."""
PARTS = [(kind, name) for kind in plugins.KINDS for name in plugins.names(kind)]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(hook.generated())


# ------------------------------------------------------------------------------------------ parts


def test_a_verifier_says_where_it_is_from_and_how_it_is_used() -> None:
    for name in plugins.names("verifier"):
        _, sections = part_pages.split_docstring(plugins.load("verifier", name))
        assert sections.keys() >= {"Source"}, name
        assert sections.keys() & {"Used by", "Published sets"}, f"{name}: who uses it?"


@pytest.mark.nightly
def test_a_part_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    for kind, name in PARTS:
        folder = f"reference/{part_pages.FOLDERS[kind]}"
        page = pages[f"{folder}/{name}.md"]
        for key in plugins.options_of(plugins.load(kind, name)):
            assert f"| `{key}` |" in page, (kind, name)
        assert f"({name}.md)" in pages[f"{folder}/index.md"], (kind, name)


def test_the_table_of_recipes_says_what_was_verified_of_each_and_no_more() -> None:
    rows = {line.split("`")[1]: line for line in algorithm_tables.matrix().splitlines()[2:]}
    assert sorted(rows) == sorted(plugins.names("algorithm"))
    assert all("laws of every recipe" in line for line in rows.values())
    equal = "loss and gradients equal trl"
    assert equal in rows["sapo"] and "2511.20347" in rows["sapo"]
    assert equal not in rows["kimi"] and equal not in rows["bnpo"]
    assert "`quickstart.yaml`" in rows["grpo"]


def test_the_seams_of_a_step_are_drawn() -> None:
    picture = algorithm_tables.draw()
    assert all(f">{name}</text>" in picture for name, _, _ in algorithm_tables.SEAMS)


def test_the_picture_of_boxes_is_drawn() -> None:
    assert boxes_picture.draw_boxes().startswith("<?xml")


# ------------------------------------------------------------------------------ config, commands


def test_every_key_of_the_config_is_on_its_page() -> None:
    page = config_reference.page()

    def walk(section: type[config.Section], path: str) -> Iterator[str]:
        for name, field in section.model_fields.items():
            yield f"{path}{name}"
            if isinstance(field.annotation, type) and issubclass(field.annotation, config.Section):
                yield from walk(field.annotation, f"{path}{name}.")

    assert [key for key in walk(config.Config, "") if f"| `{key}` |" not in page] == []


def test_every_command_is_on_its_page() -> None:
    page = command_reference.page()

    def walk(app: typer.Typer, name: str) -> Iterator[str]:
        for command in app.registered_commands:
            yield f"{name} {command.name or getattr(command.callback, '__name__', '')}"
        for group in app.registered_groups:
            assert group.typer_instance is not None
            yield from walk(group.typer_instance, f"{name} {group.name}")

    assert [name for name in walk(root, "vlmrl") if f"## `{name}`\n" not in page] == []


@pytest.mark.nightly
def test_the_published_json_schema_is_current(pages: dict[str, str]) -> None:
    published = json.loads(pages["reference/config.schema.json"])
    assert published == json.loads(config.schema())


# ------------------------------------------------------------------------------------ architecture


@pytest.mark.slow
def test_the_picture_of_the_rooms_has_every_room_and_no_arrow_up() -> None:
    levels, picture = architecture.read_levels(), architecture.draw()
    assert [room for room in levels if f">{room}</text>" not in picture] == []
    arrows = architecture.read_arrows()
    assert [
        (a, b) for a, b in arrows if a in levels and b in levels and levels[a] <= levels[b]
    ] == []


def test_arrows_that_follow_from_others_are_left_out() -> None:
    arrows = {("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("a", "d")}
    assert architecture.without_shortcuts(arrows) == {("a", "b"), ("b", "c"), ("c", "d")}


# -------------------------------------------------------------------------------------------- links


@pytest.mark.nightly
def test_no_link_to_a_generated_page_is_dead(pages: dict[str, str]) -> None:
    """`make style` knows the form of their names; here is which of them there are."""
    dead = []
    for file in (f for folder in ("docs", "performance") for f in (ROOT / folder).rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s:#]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8")):
            aim = (file.parent / target).resolve()
            generated = aim.is_relative_to(ROOT / "docs") and str(aim.relative_to(ROOT / "docs"))
            if not aim.exists() and generated not in pages:
                dead.append(f"{file.relative_to(ROOT)}: {target}")
    assert dead == []


@pytest.mark.nightly
def test_no_link_of_a_page_of_recipes_is_dead(pages: dict[str, str]) -> None:
    known = {*pages, *hook.OUTSIDE.values()}
    written = {path: text for path, text in pages.items() if path.startswith("recipes/")}
    written |= {f"recipes/{mark}": hook.FILLED[mark]() for mark in FILLED}
    dead = []
    for path, text in written.items():
        for target in re.findall(r"\]\(([^)\s:#]+)(?:#[^)]*)?\)", text):
            aim = posixpath.normpath(posixpath.join("recipes", target))
            if aim not in known and not (ROOT / "docs" / aim).is_file():
                dead.append(f"{path}: {target}")
    assert dead == []


@pytest.mark.parametrize(
    "loading",
    [
        '<script src="https://a.b/c.js">',
        '<link rel="stylesheet" href="//fonts.a.b">',
        '<img alt="x" src=http://a.b/c.png>',
        "@import 'https://a.b';",
        "src: url(https://a.b/font.woff)",
    ],
)
def test_a_page_that_loads_from_elsewhere_is_refused(tmp_path: Path, loading: str) -> None:
    (tmp_path / "page.html").write_text(f'<a href="https://a.b">fine</a>{loading}')
    with pytest.raises(hook.PluginError, match="loads from elsewhere"):
        hook.on_post_build(_Site(tmp_path))


def test_a_page_that_only_links_elsewhere_is_fine(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<a href="https://a.b">fine</a><img src="a.png">')
    hook.on_post_build(_Site(tmp_path))


class _Site:
    def __init__(self, folder: Path) -> None:
        self.site_dir: Any = str(folder)
