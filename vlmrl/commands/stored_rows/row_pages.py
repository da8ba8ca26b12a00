"""What `vlmrl watch` answers about the stored rows of its runs: pages, and selections to take along."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from vlmrl.errors import UserError
from vlmrl.pages.render import script_hash
from vlmrl.report.page import HERE
from vlmrl.report.rows.pages import ROW_SCRIPTS, list_page, row_page
from vlmrl.report.rows.row_index import RowFilter, RowIndex, read_count
from vlmrl.report.rows.selection import Selection, attack_lines, write_data_set
from vlmrl.system.atomic_files import read_json

POLICY = (
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    f"script-src '{script_hash(HERE, *ROW_SCRIPTS)}'"
)
MAX_TAKEN = 2000
"""Rows of one download; `vlmrl data select` takes any number."""


@dataclass
class RowPages:
    """The pages of rows, with an index for each run that somebody has asked about."""

    folder_of: Callable[[str], Path | None]
    """The folder of a run by name; None: there is no such run."""
    _indexes: dict[Path, RowIndex] = field(default_factory=dict)

    def answers(self) -> list[tuple[str, Callable[[Request], Response]]]:
        """Return the ends of addresses below a run's, with what answers them."""
        found: dict[str, Callable[[RowIndex, dict[str, Any], Mapping[str, str]], Response]] = {
            "rows": _list,
            "row": _row,
            "rows.jsonl": _attacks,
            "rows.zip": _data_set,
        }
        return [(end, self._guard(answer)) for end, answer in found.items()]

    def _guard(
        self, answer: Callable[[RowIndex, dict[str, Any], Mapping[str, str]], Response]
    ) -> Callable[[Request], Response]:
        def serve(request: Request) -> Response:
            name = request.path_params["name"]
            folder = self.folder_of(name)
            if folder is None:
                return PlainTextResponse(f"no run {name!r:.80} here", 404)
            index = self._indexes.setdefault(folder, RowIndex(folder))
            try:
                return answer(index, read_json(folder / "config.json"), request.query_params)
            except UserError as error:
                return PlainTextResponse(str(error), 409)

        return serve


def _list(index: RowIndex, config: dict[str, Any], query: Mapping[str, str]) -> Response:
    index.refresh()
    start = read_count(query.get("skip", ""), max_digits=11) or 0
    return _page(list_page(index, config, RowFilter.read(query), start))


def _row(index: RowIndex, config: dict[str, Any], query: Mapping[str, str]) -> Response:
    step, line = (read_count(query.get(key, "")) for key in ("step", "line"))
    wanted = RowFilter.read(query)
    if step is None:
        return PlainTextResponse("an address of a row states its source, id and step", 404)
    index.refresh(near=step)
    facts = index.find(wanted.part, step, query.get("source", ""), query.get("id", ""), line)
    if facts is None:
        return PlainTextResponse(f"no such row is stored of step {step}", 404)
    return _page(row_page(index, config, facts, wanted))


def _attacks(index: RowIndex, config: dict[str, Any], query: Mapping[str, str]) -> Response:
    lines = (json.dumps(line) + "\n" for line in attack_lines(_selected(index, query)))
    return _file("".join(lines).encode(), "application/x-ndjson", "attacks.jsonl")


def _data_set(index: RowIndex, config: dict[str, Any], query: Mapping[str, str]) -> Response:
    """Pack a data set of the stored media alone: a browser never gets other files of this machine."""
    selected = _selected(index, query)
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as made, zipfile.ZipFile(packed, "w") as archive:
        write_data_set(selected, Path(made) / "rows.jsonl", originals=None)
        for path in sorted(Path(made).rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(made))
    return _file(packed.getvalue(), "application/zip", "rows.zip")


def _selected(index: RowIndex, query: Mapping[str, str]) -> Selection:
    index.refresh()
    selection = Selection(index, RowFilter.read(query))
    if not index.is_whole:
        raise UserError(
            f"{index.read} of {index.total} files were read so far: load the page of the rows until all "
            "are, or use `vlmrl data select`"
        )
    if len(selection.rows) > MAX_TAKEN:
        raise UserError(
            f"{len(selection.rows)} rows are more than a download may have, {MAX_TAKEN}: use "
            "`vlmrl data select`"
        )
    return selection


def _page(html: str) -> Response:
    return HTMLResponse(
        html.encode("utf-8", "replace"), headers={"Content-Security-Policy": POLICY}
    )


def _file(data: bytes, kind: str, name: str) -> Response:
    return Response(
        data, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
