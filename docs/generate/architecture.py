"""A picture of the rooms of vlmrl/ and the imports between them, as SVG.

Rooms and levels come from the table in CONTRIBUTING.md, arrows from the import statements. An arrow
that follows from others (a -> c where a -> b -> c) is left out, so that the picture can be read.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 900, 84, 124, 34
STYLE = """
.rooms { --ink: var(--md-default-fg-color, #1f2328); --line: #00897b; --fill: #00897b22; }
.rooms text { fill: var(--ink); font: 14px sans-serif; text-anchor: middle; dominant-baseline: central; }
.rooms text.level { font-size: 12px; opacity: .6; text-anchor: start; }
.rooms rect { fill: var(--fill); stroke: var(--line); }
.rooms path { fill: none; stroke: var(--line); opacity: .55; }
.rooms g:hover path { opacity: 1; stroke-width: 2.5; }
@media (prefers-color-scheme: dark) { .rooms { --ink: var(--md-default-fg-color, #e6edf3); } }
"""


def read_levels() -> dict[str, int]:
    """Return each room's level, from the table in CONTRIBUTING.md, highest first."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", table, re.MULTILINE)
    return {room: int(level) for level, rooms in rows for room in re.findall(r"`(\w+)`", rooms)}


def read_arrows() -> set[tuple[str, str]]:
    """Return the pairs (room, room that it imports), of statements that run."""
    arrows = set()
    for file in (ROOT / "vlmrl").rglob("*.py"):
        room = file.relative_to(ROOT / "vlmrl").with_suffix("").parts[0]
        for module in _imported(ast.parse(file.read_text(encoding="utf-8"))):
            parts = module.split(".")
            if parts[0] == "vlmrl" and len(parts) > 1 and parts[1] != room:
                arrows.add((room, parts[1]))
    return arrows


def _imported(tree: ast.AST) -> set[str]:
    """Return the modules that a file imports, without its type-checking blocks."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "vlmrl" else {node.module}
        found |= _imported(node)
    return found


def without_shortcuts(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the arrows that do not follow from a longer way along the others."""
    onward: dict[str, set[str]] = {}
    for start, end in arrows:
        onward.setdefault(start, set()).add(end)

    def reach(room: str) -> set[str]:
        return {far for near in onward.get(room, ()) for far in {near, *reach(near)}}

    return {(a, b) for a, b in arrows if not any(b in reach(c) for c in onward[a] - {b})}


def draw() -> str:
    """Return the picture as SVG, to be put into a page."""
    levels = read_levels()
    arrows = {(a, b) for a, b in read_arrows() if a in levels and b in levels}
    rows = sorted(set(levels.values()), reverse=True)
    places = {}
    for y, level in enumerate(rows):
        rooms = [room for room, at in levels.items() if at == level]
        for x, room in enumerate(rooms):
            places[room] = (60 + (x + 0.5) * (WIDTH - 60) / len(rooms), (y + 0.5) * ROW)
    lines = [
        f'<svg class="rooms" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW}"'
        ' role="img" aria-label="The rooms of vlmrl by level, with their imports">',
        f"<style>{STYLE}</style>",
    ]
    for y, level in enumerate(rows):
        lines.append(f'<text class="level" x="4" y="{(y + 0.5) * ROW:g}">level {level}</text>')
    for room, (x, y) in places.items():
        ends = sorted(end for start, end in without_shortcuts(arrows) if start == room)
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        lines += ["<g>", *(_arrow((x, y), places[end]) for end in ends)]
        lines.append(
            f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
        )
        lines += [f'<text x="{x:g}" y="{y:g}">{room}</text>', "</g>"]
    return "\n".join([*lines, "</svg>"])


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    x1, y1 = start[0], start[1] + BOX_HEIGHT / 2
    x2, y2 = end[0], end[1] - BOX_HEIGHT / 2
    bend = (y2 - y1) / 2
    return f'<path d="M{x1:g} {y1:g} C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"/>'
