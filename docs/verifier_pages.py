"""Write docs/verifiers/: a page per shipped verifier from its docstring, a table, pictures.

`python docs/verifier_pages.py [FOLDER]`; `make docs` runs it.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from vlmrl import plugins
from vlmrl.answers import geometry
from vlmrl.commands.list_parts import first_sentence, type_name
from vlmrl.rewards.box_iou import BoxIou
from vlmrl.schema import Box, Frame, Truth
from vlmrl.scoring.verifier import Verifier, judge

FOLDER = Path(__file__).parent / "verifiers"
SECTIONS = ("Used by", "Published sets", "Refuses", "Source", "Differs", "Raises", "Example")
TRUTH = Box(0.3, 0.3, 0.7, 0.7)
SHAPES = [
    ("the same", Box(0.3, 0.3, 0.7, 0.7)),
    ("shifted by a fifth", Box(0.38, 0.3, 0.78, 0.7)),
    ("shifted by half", Box(0.5, 0.3, 0.9, 0.7)),
    ("inside, half the area", Box(0.3, 0.3, 0.5, 0.7)),
    ("around, twice the area", Box(0.217, 0.217, 0.783, 0.783)),
    ("a cross", Box(0.1, 0.4, 0.9, 0.6)),
    ("beside", Box(0.72, 0.3, 0.98, 0.7)),
    ("the whole picture", Box(0.0, 0.0, 1.0, 1.0)),
]
PICTURES = {"box_iou": "box_iou.svg", "detection": "box_iou.svg"}


def write(folder: Path) -> None:
    """Write every page, the table of all, and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    names = plugins.names("verifier")
    for name in names:
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    (folder / "README.md").write_text(table(names), encoding="utf-8")
    draw_shapes(folder / "box_iou.svg")


def page(name: str) -> str:
    """The page of one verifier, Markdown."""
    plugin = plugins.load("verifier", name)
    body, sections = split_docstring(plugin)
    lines = [f"# `{name}`", "", *body]
    if name in PICTURES:
        lines += [f"![boxes and what they score]({PICTURES[name]})", ""]
    lines += [facts(plugin), ""]
    options = plugins.options_of(plugin)
    if options:
        lines += ["## Options", "", "| option | type | default |", "|---|---|---|"]
        for key, option in options.items():
            default = "required" if option.required else f"`{option.default!r}`"
            lines.append(f"| `{key}` | `{_cell(type_name(option.type))}` | {_cell(default)} |")
        lines.append("")
    for title in SECTIONS:
        if title in sections:
            lines += [f"## {title}", "", sections[title], ""]
    lines += ["## Try it", "", "```", f"vlmrl verify {name}", f"vlmrl score {name} --in rows.jsonl"]
    return "\n".join([*lines, "```", ""])


def table(names: list[str]) -> str:
    """The table of all verifiers, Markdown."""
    lines = [
        "# Verifiers",
        "",
        "Written by `make docs` from the docstrings under `rewards/`. A verifier turns one completion "
        "and one truth into a score; `vlmrl list verifiers` shows the options, `vlmrl verify NAME` "
        "attacks one.",
        "",
        "| verifier | what it scores | truth | sees | used by |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        plugin = plugins.load("verifier", name)
        _, sections = split_docstring(plugin)
        used = sections.get("Used by") or sections.get("Published sets") or ""
        cells = [
            f"[`{name}`]({name}.md)",
            first_sentence(plugin),
            ", ".join(plugin.needs) or "any",
            plugin.scope,
            _systems(used),
        ]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join([*lines, ""])


def split_docstring(plugin: type) -> tuple[list[str], dict[str, str]]:
    """The paragraphs before the first section, and the sections by title."""
    paragraphs = (inspect.getdoc(plugin) or "").split("\n\n")
    body: list[str] = []
    sections: dict[str, str] = {}
    for paragraph in paragraphs:
        # `Source: ...` and `Differs: ...` may stand on neighbouring lines of one paragraph.
        titles = "|".join(SECTIONS)
        parts = re.split(rf"(?m)^({titles}):[ \n]", paragraph)
        if parts[0].strip():
            body += [parts[0].strip(), ""]
        for title, text in zip(parts[1::2], parts[2::2], strict=True):
            text = inspect.cleandoc(text)
            text = text if title == "Example" else text[:1].upper() + text[1:]
            sections[title] = f"```python\n{text}\n```" if title == "Example" else text
    return body, sections


def facts(plugin: type[Verifier]) -> str:
    """Truth, scope, range and where it runs, in one line."""
    runs = "in processes with a deadline" if plugin.slow else "in line"
    runs = "in threads, since it waits" if plugin.waits else runs
    needs = " or ".join(f"`{need}`" for need in plugin.needs) or "any"
    sees = {"item": "one completion", "group": "a whole group", "batch": "a whole batch"}
    return (
        f"**Truth** {needs} · **sees** {sees[plugin.scope]} · **range** [{plugin.low:g}, "
        f"{plugin.high:g}] · **runs** {runs}"
    )


def draw_shapes(path: Path) -> None:
    """Pairs of boxes with their scores, and the score of a box that slides past the truth."""
    measures = {
        "IoU": BoxIou(),
        "gIoU": BoxIou(measure="giou"),
        "CIoU": BoxIou(measure="ciou"),
        "IoU, threshold 0.5": BoxIou(threshold=0.5),
    }
    figure = plt.figure(figsize=(10, 9))
    grid = figure.add_gridspec(3, 4, height_ratios=(1, 1, 1.2), hspace=0.3, wspace=0.05)
    for i, (title, box) in enumerate(SHAPES):
        axes = figure.add_subplot(grid[i // 4, i % 4])
        scores = ", ".join(f"{m} {_score(v, box):.2f}" for m, v in list(measures.items())[:3])
        _draw_pair(axes, box, f"{title}\n{scores}")
    axes = figure.add_subplot(grid[2, :])
    shifts = np.linspace(-0.3, 0.3, 301)
    for label, verifier in measures.items():
        boxes = [Box(0.3 + s, 0.3, 0.7 + s, 0.7) for s in shifts]
        axes.plot(shifts / 0.4, [_score(verifier, box) for box in boxes], label=label)
    axes.set_xlabel("shift of a box of the right size, in its own widths")
    axes.set_ylabel("score")
    axes.legend(fontsize=8)
    plt.rcParams["svg.hashsalt"] = "vlmrl"
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _score(verifier: Verifier, box: Box) -> float:
    frame = Frame(1000, 1000)
    numbers = [round(float(n), 3) for n in geometry.from_unit(box, frame)]
    score = judge(verifier, str(numbers), Truth(boxes=(TRUTH,)), frame=frame).score
    assert score is not None
    return score


def _draw_pair(axes: Axes, box: Box, title: str) -> None:
    for drawn, colour, style in ((TRUTH, "tab:green", "-"), (box, "tab:orange", "--")):
        size = (drawn.x2 - drawn.x1, drawn.y2 - drawn.y1)
        patch = Rectangle((drawn.x1, drawn.y1), *size, fill=True, alpha=0.25, color=colour)
        axes.add_patch(patch)
        edge = Rectangle((drawn.x1, drawn.y1), *size, fill=False, ec=colour, ls=style, lw=1.5)
        axes.add_patch(edge)
    axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
    axes.set_title(title, fontsize=8)


def _systems(text: str) -> str:
    """The names before the options: `V-Triune: weights {...}; VLM-R1: ...` -> V-Triune, VLM-R1."""
    plain = " ".join(text.split())
    names = [part.split(": ")[0].split(" (")[0].strip(" .") for part in plain.split("; ")]
    return ", ".join(dict.fromkeys(names))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
