"""The pages of a run's rows in `vlmrl watch`: the list of those that match, and each row's whole story.

A story has media with truth and answers, what each answer earned and why, and tokens with their log-probs.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from vlmrl.errors import UserError
from vlmrl.features.report.gallery import row_card
from vlmrl.features.report.page import HERE
from vlmrl.features.report.rows import (
    PARTS,
    RowFacts,
    RowFilter,
    RowIndex,
    as_command,
    attack_lines,
    encode,
    read_count,
    write_data_set,
)
from vlmrl.pages.media import Album
from vlmrl.pages.render import render, script_hash
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row
from vlmrl.system.files import read_json

DIFFERENCES = (0.01, 0.05, 0.2, 1.0)
"""Nats by which engine and trainer part from which on a token has the next level, 0 to 4."""
PROBABILITIES = (0.99, 0.9, 0.5, 0.1)
"""Probabilities below which a token has the next level."""
IMAGE_BYTES = 12_000_000
"""Budget of a page's images, in characters of their data URIs."""
MAX_MOMENTS = 200
"""Earlier and later answers to the same row that a page lists."""
ROW_SCRIPTS = ("report.js", "row.js")
PAGE_ROWS = 100
"""Rows on one page of the list."""
MAX_TAKEN = 2000
"""Rows of one download; `vlmrl data select` takes any number."""
POLICY = (
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    f"script-src '{script_hash(HERE, *ROW_SCRIPTS)}'"
)
Config = Mapping[str, Any]


class Token(NamedTuple):
    """One token: its text, its levels of both heat maps (None where they are not known), its numbers."""

    text: str
    far: int | None
    rare: int | None
    title: str


class Heat(NamedTuple):
    """The tokens of a completion turn by turn, with what is known of them in a sentence."""

    turns: tuple[tuple[Token, ...], ...]
    summary: str


def heat_of(stored: Mapping[str, Any], lengths: Sequence[int]) -> Heat | None:
    """Return the cells of what tokens/step-N.jsonl says of a completion; None if it is of another.

    `lengths` are the tokens of the policy's turns.
    """
    texts = stored.get("texts") or []
    if len(texts) != sum(lengths):
        return None
    engine, trainer = (
        values
        if isinstance(values := stored.get(key), list) and len(values) == len(texts)
        else [None] * len(texts)
        for key in ("engine", "trainer")
    )
    cells = iter(
        _token(number, str(text), *pair)
        for number, (text, *pair) in enumerate(zip(texts, engine, trainer, strict=True), start=1)
    )
    turns = tuple(tuple(itertools.islice(cells, length)) for length in lengths)
    return Heat(turns, _summary(engine, trainer))


def _token(number: int, text: str, engine: float | None, trainer: float | None) -> Token:
    known = engine if engine is not None else trainer
    rare = None if known is None else sum(math.exp(known) < p for p in PROBABILITIES)
    words = [f"token {number}: {text!r}"]
    words += [f"engine {engine:.4f} ({math.exp(engine):.3f})"] if engine is not None else []
    words += [f"trainer {trainer:.4f} ({math.exp(trainer):.3f})"] if trainer is not None else []
    far = None
    if engine is not None and trainer is not None:
        gap = trainer - engine
        far = sum(abs(gap) >= limit for limit in DIFFERENCES)
        words.append(f"trainer - engine {gap:+.4f}")
    shown = "".join(c if c.isprintable() or c == "\n" else "·" for c in text)
    return Token(shown, far, rare, " · ".join(words))


def _summary(engine: Sequence[float | None], trainer: Sequence[float | None]) -> str:
    """Return what is known of the log-probs, and how far they part."""
    if not any(value is not None for value in engine):
        return (
            "What the engine thought of these tokens is not known: the policy did not sample them."
        )
    gaps = [
        abs(a - b) for a, b in zip(engine, trainer, strict=True) if a is not None and b is not None
    ]
    if not gaps:
        return (
            "The trainer computed no log-probs of this answer: it took no part in the update. Colours show "
            "the engine's."
        )
    mean = sum(gaps) / len(gaps)
    return f"Engine and trainer part by {mean:.4f} nats on average, by {max(gaps):.4f} at most."


def run_address(name: str) -> str:
    """Return the address of the page of the run whose folder has this name."""
    return f"/run/{quote(name, '')}"


def row_address(base: str, row: RowFacts, wanted: RowFilter) -> str:
    """Return the permanent address of a row's page, with the filter that a reader has set."""
    identity = {"source": row.source, "id": row.id, "step": row.step, "line": row.line}
    kept = wanted.query() | ({"part": row.part} if row.part != PARTS[0] else {})
    return f"{base}/row?{encode({**identity, **kept})}"


def _weights(config: Config, source: str) -> dict[str, str]:
    """Return by verifier what the config says of its weight in the reward of a source."""
    weights, rewards = {}, config.get("rewards") or []
    for entry in (config.get("data") or {}).get("train") or ():
        if (entry.get("name") or entry.get("card")) == source and entry.get("rewards"):
            rewards = entry["rewards"]  # those of this source alone
            break
    for reward in rewards:
        weight = reward.get("weight", 1.0)
        amount = f"{weight:g}" if isinstance(weight, int | float) else "by a schedule"
        keys = ("gated_by", "max_score", "max_with", "multiplies")
        more = [f"{key} {reward[key]}" for key in keys if reward.get(key)]
        more += ["a gate"] if reward.get("gate") else []
        name = reward.get("name") or str(reward["verifier"]).rpartition(":")[2]
        weights[name] = ", ".join([f"weight {amount}", *more])
    return weights


def list_page(index: RowIndex, config: Config, wanted: RowFilter, skip: int) -> str:
    """Return the page of the rows that match, the newest first, without the first `skip`."""
    base, rows = run_address(index.folder.absolute().name), index.chosen(wanted)
    sources, verifiers = index.names()
    query = wanted.query()

    def at(start: int) -> str:
        return f"{base}/rows?{encode({**query, 'skip': start})}"

    return render(
        HERE,
        "rows.html",
        *ROW_SCRIPTS,
        title=config["run"]["name"],
        base=base,
        damaged=index.damaged,
        wanted=wanted,
        parts=PARTS,
        sources=sources,
        verifiers=verifiers,
        count=len(rows),
        rows=[(row, row_address(base, row, wanted)) for row in rows[::-1][skip : skip + PAGE_ROWS]],
        newer=at(max(0, skip - PAGE_ROWS)) if skip else "",
        older=at(skip + PAGE_ROWS) if skip + PAGE_ROWS < len(rows) else "",
        attacks=f"{base}/rows.jsonl?{encode(query)}",
        data=f"{base}/rows.zip?{encode(query)}",
        command=as_command(index.folder, wanted),
    )


def row_page(index: RowIndex, config: Config, facts: RowFacts, wanted: RowFilter) -> str:
    """Return the page of one row; its addresses keep the filter.

    Raises:
        UserError: the row cannot be read.
    """
    base = run_address(index.folder.absolute().name)
    row, tokens = index.load(facts), index.load_tokens(facts)
    album = Album(run_folder.media_folder(index.folder), IMAGE_BYTES)
    card = row_card(facts.step, row, album)
    heats = list(_heats(row, (tokens or {}).get("completions") or []))
    before, after = (
        beside and row_address(base, beside, wanted) for beside in index.neighbours(facts, wanted)
    )
    same = index.answers(facts.source, facts.id)
    begin = max(0, min(same.index(facts) - MAX_MOMENTS // 2, len(same) - MAX_MOMENTS))
    moments = same[begin : begin + MAX_MOMENTS]
    return render(
        HERE,
        "row.html",
        *ROW_SCRIPTS,
        title=config["run"]["name"],
        base=base,
        facts=facts,
        card=card,
        answers=list(zip(card.attempts, row["completions"], heats, strict=True)),
        weights=_weights(config, facts.source),
        has_tokens=any(heats),
        moments=[(moment, row_address(base, moment, wanted)) for moment in moments],
        left_out=len(same) - len(moments),
        before=before,
        after=after,
        truth=json.dumps(row["truth"], ensure_ascii=False, indent=1),
        prompt=row["prompt"],
        images=album.images.values(),
        list_address=f"{base}/rows?{encode(wanted.query())}",
        filter_said=", ".join(f"{key} {value}" for key, value in wanted.query().items()),
        count=len(index.chosen(wanted)),
        differences=DIFFERENCES,
        probabilities=PROBABILITIES,
    )


def _heats(row: Row, stored: Sequence[Mapping[str, object]]) -> Iterator[Heat | None]:
    """Yield the heat of each completion; None where its tokens are not stored."""
    for g, completion in enumerate(row["completions"]):
        segments = completion.get("segments") or [{**completion, "by": "policy"}]
        lengths = [segment["tokens"] for segment in segments if segment["by"] == "policy"]
        yield heat_of(stored[g], lengths) if g < len(stored) else None


# --------------------------------------------------------------------------------------------------
# What `vlmrl watch` answers about the stored rows of its runs: pages, and selections to take along.


def row_answers(
    folder_of: Callable[[str], Path | None],
) -> list[tuple[str, Callable[[Request], Response]]]:
    """Return the ends of addresses below a run's, with what answers them.

    `folder_of` returns the folder of a run by name; None: there is no such run. Each run that somebody has
    asked about has an index.
    """
    indexes: dict[Path, RowIndex] = {}

    def serve(
        answer: Callable[[RowIndex, Config, Mapping[str, str]], Response], request: Request
    ) -> Response:
        name = request.path_params["name"]
        if (folder := folder_of(name)) is None:
            return PlainTextResponse(f"no run {name!r:.80} here", 404)
        index = indexes.setdefault(folder, RowIndex(folder))
        try:
            index.refresh()
            return answer(index, read_json(folder / "config.json"), request.query_params)
        except UserError as error:
            return PlainTextResponse(str(error), 409)

    pages = {"rows": _list, "row": _row, "rows.jsonl": _attacks, "rows.zip": _data_set}
    return [(end, functools.partial(serve, answer)) for end, answer in pages.items()]


def _list(index: RowIndex, config: Config, query: Mapping[str, str]) -> Response:
    start = read_count(query.get("skip", ""), max_digits=11) or 0
    return _page(list_page(index, config, RowFilter.read(query), start))


def _row(index: RowIndex, config: Config, query: Mapping[str, str]) -> Response:
    step, line = (read_count(query.get(key, "")) for key in ("step", "line"))
    wanted = RowFilter.read(query)
    if step is None:
        return PlainTextResponse("an address of a row states its source, id and step", 404)
    facts = index.find(wanted.part, step, query.get("source", ""), query.get("id", ""), line)
    if facts is None:
        return PlainTextResponse(f"no such row is stored of step {step}", 404)
    return _page(row_page(index, config, facts, wanted))


def _attacks(index: RowIndex, config: Config, query: Mapping[str, str]) -> Response:
    wanted, _ = _chosen(index, query)
    lines = (json.dumps(line) + "\n" for line in attack_lines(index, wanted))
    return _file("".join(lines).encode(), "application/x-ndjson", "attacks.jsonl")


def _data_set(index: RowIndex, config: Config, query: Mapping[str, str]) -> Response:
    """Pack a data set of the stored media alone: a browser never gets other files of this machine."""
    _, chosen = _chosen(index, query)
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as made, zipfile.ZipFile(packed, "w") as archive:
        write_data_set(index, chosen, Path(made) / "rows.jsonl", originals=None)
        for path in sorted(Path(made).rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(made))
    return _file(packed.getvalue(), "application/zip", "rows.zip")


def _chosen(index: RowIndex, query: Mapping[str, str]) -> tuple[RowFilter, list[RowFacts]]:
    wanted = RowFilter.read(query)
    chosen = index.chosen(wanted)
    if len(chosen) > MAX_TAKEN:
        raise UserError(
            f"{len(chosen)} rows are more than a download may have, {MAX_TAKEN}: use "
            "`vlmrl data select`"
        )
    return wanted, chosen


def _page(html: str) -> Response:
    return HTMLResponse(
        html.encode("utf-8", "replace"), headers={"Content-Security-Policy": POLICY}
    )


def _file(data: bytes, kind: str, name: str) -> Response:
    return Response(
        data, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
