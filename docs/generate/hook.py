"""MkDocs calls this: pages that are written from the code, and pages of files outside docs/.

Nothing generated is committed. The build fails where a page would load anything from elsewhere.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import algorithm_tables
import architecture
import boxes_picture
import command_reference
import config_reference
import coverage_page
import exclusion_table
import figures
import import_tables
import machines_page
import matrix_page
import metric_reference
import notebook_pages
import output_reference
import parity_page
import part_pages
import plan_page
import recipe_pages
import resume_table
import starts_page
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from vlmrl import config as configs
from vlmrl import plugins

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "CONTRIBUTING.md": "extend/contributing.md",
    "CHANGELOG.md": "reference/changelog.md",
    "SECURITY.md": "reference/security.md",
}
"""Files of the repository that are pages too."""
OUTSIDE |= {
    f"performance/results/{file.name}": f"understand/speed/{file.name}"
    for file in sorted((ROOT / "performance/results").glob("*.md"))
}
OUTSIDE["performance/README.md"] = "understand/speed/index.md"
FILLED = {
    "<!-- architecture -->": architecture.draw,
    "<!-- seams -->": algorithm_tables.draw,
    "<!-- recipes -->": algorithm_tables.matrix,
    "<!-- gallery -->": recipe_pages.index,
    "<!-- coverage -->": coverage_page.table,
    "<!-- matrix -->": matrix_page.tables,
    "<!-- settings -->": import_tables.tables,
    "<!-- parity -->": parity_page.draw,
    "<!-- plan -->": plan_page.draw,
    "<!-- machines -->": machines_page.draw,
    "<!-- starts -->": starts_page.draw,
    "<!-- files of starts -->": starts_page.files,
    "<!-- records -->": figures.table,
    "<!-- exclusions -->": exclusion_table.table,
    "<!-- resume -->": resume_table.table,
}
"""Comments of pages, and what is written in their place."""
BOOSTS = {
    "start/": 3.0,
    "train/": 2.0,
    "rewards/": 2.0,
    "evaluate/": 2.0,
    "recipes/": 0.3,
    "understand/speed/": 0.3,
    "reference/changelog": 0.2,
}
"""Beginning of a page's address -> its weight in the search: guides before 140 recipes."""
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'>\s]+"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon)[^>]*\bhref=["']?(?:https?:)?//[^"'>\s]+"""
    r"""|@import[^;]*//[^;]*|url\(["']?(?:https?:)?//[^)]*\)"""
)
"""What a browser fetches from elsewhere when it shows a page."""


def on_config(config: Any) -> Any:
    """Put the pages of the parts, the recipes and the speed measurements into the navigation.

    Raises:
        PluginError: a published figure is not its record's or has none, or the command of a record is gone.
    """
    if wrong := figures.check():
        raise PluginError("\n".join(wrong))
    logging.getLogger("mkdocs.hooks").info(figures.count())
    _section(config.nav, "Recipes").extend(recipe_pages.nav())
    reference = _section(config.nav, "Reference")
    for kind, folder in part_pages.FOLDERS.items():
        pages = [f"reference/{folder}/{name}.md" for name in plugins.names(kind)]
        reference.append({folder.capitalize(): [f"reference/{folder}/index.md", *pages]})
    speed = [page for page in OUTSIDE.values() if page.startswith("understand/speed/")]
    _section(config.nav, "Understand").append({"Speed": sorted(speed, key=_index_first)})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for path, content in generated():
        files.append(File.generated(config, path, content=content))
    return files


def generated() -> Iterator[tuple[str, str]]:
    """Yield the path and the content of every file of the site that is not in docs/."""
    yield from part_pages.pages()
    yield from recipe_pages.pages()
    yield from notebook_pages.pages()
    yield "reference/verifiers/boxes.svg", boxes_picture.draw_boxes()
    yield "reference/config.md", config_reference.page()
    yield "reference/config.schema.json", configs.schema()
    yield "reference/commands.md", command_reference.page()
    yield "reference/metrics.md", metric_reference.page()
    yield "reference/output.md", output_reference.page()
    for source, target in OUTSIDE.items():
        yield target, (ROOT / source).read_text(encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what is drawn and counted, and follow links that leave docs/ to the page made of that file."""
    sources = {target: source for source, target in OUTSIDE.items()}
    written = page.file.src_uri
    boost = next((boost for begin, boost in BOOSTS.items() if written.startswith(begin)), 1.0)
    page.meta["search"] = {"boost": boost}
    here = posixpath.dirname(sources.get(written, f"docs/{written}"))

    def follow(match: re.Match[str]) -> str:
        text, path, anchor = match.groups(default="")
        aim = posixpath.normpath(posixpath.join(here, path))
        aim = f"{aim}/README.md" if f"{aim}/README.md" in OUTSIDE else aim
        is_page = aim in OUTSIDE or aim.startswith("docs/")
        if not is_page and (ROOT / aim).exists():
            return text
        target = OUTSIDE.get(aim) or aim.removeprefix("docs/")
        return f"[{text}]({posixpath.relpath(target, posixpath.dirname(written))}{anchor})"

    pieces = FENCE.split(_filled(markdown))
    return "".join(p if i % 2 else LINK.sub(follow, p) for i, p in enumerate(pieces))


def _filled(markdown: str) -> str:
    for mark, fill in FILLED.items():
        if mark in markdown:
            markdown = markdown.replace(mark, fill())
    return figures.fill(markdown)


def on_post_build(config: Any) -> None:
    """Refuse a site that loads anything from elsewhere."""
    site = Path(config.site_dir)
    for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        if found := LOADED.search(file.read_text(encoding="utf-8")):
            raise PluginError(f"{file.relative_to(site)} loads from elsewhere: {found[0][:200]}")


def _section(nav: list[dict[str, Any]], title: str) -> list[Any]:
    return next(entry[title] for entry in nav if title in entry)


def _index_first(path: str) -> tuple[bool, str]:
    return not path.endswith("index.md"), path
