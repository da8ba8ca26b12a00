"""Results as they come: lines of JSON, and a page written anew from all lines after each.

Several runs may share a folder: of each check the page shows the newest run, under its machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
"""Cells of a line of a check's table, by column."""

LINES, PAGE = "results.jsonl", "gpu.md"


@dataclass(frozen=True)
class Report:
    """The results of one run in a folder."""

    folder: Path
    run: str
    """When it began."""

    def machine(self, about: Mapping[str, str]) -> None:
        """Write where the run is."""
        self._add({"machine": dict(about)})

    def row(self, check: str, row: Row) -> None:
        """Write a line of a check's table."""
        self._add({"check": check, "row": dict(row)})
        print("   ", ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)

    def ends(self, check: str, question: str, how: str, seconds: float) -> None:
        """Write how a check ended: "done", or a sentence that says why not."""
        self._add({"check": check, "question": question, "end": how, "seconds": round(seconds, 1)})
        print("  ", how, flush=True)

    def _add(self, line: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": self.run, **line}) + "\n")
        text = (self.folder / LINES).read_text(encoding="utf-8")
        page = write_page([json.loads(line) for line in text.splitlines()])
        (self.folder / PAGE).write_text(page, encoding="utf-8")


def write_page(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of these lines."""
    checks = list(dict.fromkeys(line["check"] for line in lines if "check" in line))
    newest = {check: [x for x in lines if x.get("check") == check][-1]["run"] for check in checks}
    page = ["# A GPU day", "", "`python performance/gpu.py`; what each column is, says `--help`."]
    for line in lines:
        if "machine" in line and line["run"] in newest.values():
            about = "; ".join(f"{key}: {value}" for key, value in line["machine"].items())
            page += ["", f"Run {line['run']}: {about}."]
    for check in checks:
        own = [x for x in lines if x.get("check") == check and x["run"] == newest[check]]
        page += ["", f"## {check}", ""]
        end = own[-1] if "end" in own[-1] else {"question": "", "end": "cut off", "seconds": 0}
        page += [f"{end['question']} Run {newest[check]}, {end['seconds']:.0f} s: {end['end']}"]
        if rows := [line["row"] for line in own if "row" in line]:
            page += ["", *table(rows)]
    return "\n".join(page) + "\n"


def table(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table; columns are in the order in which they first come up."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns, ["---"] * len(columns)]
    cells += [[str(row.get(column, "")) for column in columns] for row in rows]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in own) + " |" for own in cells]
