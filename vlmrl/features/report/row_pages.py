"""The pages of a run's rows in `vlmrl watch`: the list of those that match, and each row's whole story.

A story has media with truth and answers, what each answer earned and why, and tokens with their log-probs.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from vlmrl.errors import UserError
from vlmrl.features.report.gallery import GalleryCompletion, GalleryPrompt, row_card
from vlmrl.features.report.page import HERE
from vlmrl.features.report.rows import (
    PARTS,
    REWARD,
    RowFacts,
    RowFilter,
    RowIndex,
    Selection,
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


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its text, and its levels of both heat maps; None where they are not known."""

    text: str
    far: int | None
    rare: int | None
    title: str
    """Its numbers in words."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The tokens of a completion turn by turn, with what is known of them in a sentence."""

    turns: tuple[tuple[Token, ...], ...]
    summary: str
    known_engine: bool


def heat_of(stored: Mapping[str, Any], lengths: Sequence[int]) -> Heat | None:
    """Return the cells of what tokens/step-N.jsonl says of a completion; None if it is of another.

    `lengths` are the tokens of the policy's turns.
    """
    texts = stored.get("texts") or []
    if len(texts) != sum(lengths):
        return None
    engine, trainer = (_of_tokens(stored.get(key), len(texts)) for key in ("engine", "trainer"))
    cells = [
        _token(number, str(text), *pair)
        for number, (text, *pair) in enumerate(zip(texts, engine, trainer, strict=True), start=1)
    ]
    turns, at = [], 0
    for length in lengths:
        turns.append(tuple(cells[at : at + length]))
        at += length
    known = any(value is not None for value in engine)
    return Heat(tuple(turns), _summary(engine, trainer), known)


def _of_tokens(values: Any, length: int) -> list[float | None]:
    return values if isinstance(values, list) and len(values) == length else [None] * length


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


IMAGE_BYTES = 12_000_000
"""Budget of a page's images, in characters of their data URIs."""
MAX_MOMENTS = 200
"""Earlier and later answers to the same row that a page lists."""


@dataclass(frozen=True, slots=True)
class StoryCompletion:
    """One completion: what a card shows of it, and what else is stored."""

    attempt: GalleryCompletion
    finish: str
    weights: Mapping[str, str]
    """By verifier its weight in the reward."""
    heat: Heat | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The answers of one step to the row."""

    step: int
    what: str
    address: str
    rewards: tuple[float | None, ...]
    mean: float | None
    is_here: bool


@dataclass(frozen=True, slots=True)
class Story:
    """All that the page of a row shows."""

    facts: RowFacts
    card: GalleryPrompt
    answers: tuple[StoryCompletion, ...]
    has_tokens: bool
    moments: tuple[Moment, ...]
    left_out: int
    """Answers of other steps that the page does not list."""
    before: str
    """Address of the row before; empty: there is none."""
    after: str
    truth: str
    prompt: str


def tell(
    index: RowIndex, facts: RowFacts, wanted: RowFilter, config: Mapping[str, Any], base: str
) -> tuple[Story, Album]:
    """Return the story of a row, and its images; addresses begin with `base` and keep the filter.

    Raises:
        UserError: the row cannot be read.
    """
    row, tokens = index.load(facts), index.load_tokens(facts)
    album = Album(run_folder.media_folder(index.folder), IMAGE_BYTES)
    card = row_card(facts.step, row, album)
    weights = _weights(config, facts.source)
    stored = (tokens or {}).get("completions") or []
    answers = tuple(
        StoryCompletion(
            attempt,
            completion["finish_reason"],
            weights,
            heat_of(stored[g], _lengths(completion)) if g < len(stored) else None,
        )
        for g, (attempt, completion) in enumerate(
            zip(card.attempts, row["completions"], strict=True)
        )
    )
    before, after = (
        row_address(base, row, wanted) if row else "" for row in index.neighbours(facts, wanted)
    )
    all_ = index.answers(facts.source, facts.id)
    moments = [_moment(row, facts, wanted, base) for row in _nearest(all_, facts)]
    return Story(
        facts,
        card,
        answers,
        any(answer.heat for answer in answers),
        tuple(moments),
        len(all_) - len(moments),
        before,
        after,
        json.dumps(row["truth"], ensure_ascii=False, indent=1),
        row["prompt"],
    ), album


def run_address(name: str) -> str:
    """Return the address of the page of the run whose folder has this name."""
    return f"/run/{quote(name, '')}"


def row_address(base: str, row: RowFacts, wanted: RowFilter) -> str:
    """Return the permanent address of a row's page, with the filter that a reader has set."""
    identity = {"source": row.source, "id": row.id, "step": row.step, "line": row.line}
    kept = wanted.query() | ({"part": row.part} if row.part != PARTS[0] else {})
    return f"{base}/row?{encode({**identity, **kept})}"


def _weights(config: Mapping[str, Any], source: str) -> dict[str, str]:
    """Return by verifier what the config says of its weight in the reward of a source."""
    weights = {}
    for reward in _rewards(config, source):
        weight = reward.get("weight", 1.0)
        amount = f"{weight:g}" if isinstance(weight, int | float) else "by a schedule"
        more = [
            f"{key} {reward[key]}"
            for key in ("gated_by", "max_score", "max_with", "multiplies")
            if reward.get(key)
        ]
        more += ["a gate"] if reward.get("gate") else []
        name = reward.get("name") or str(reward["verifier"]).rpartition(":")[2]
        weights[name] = ", ".join([f"weight {amount}", *more])
    return weights


def _rewards(config: Mapping[str, Any], source: str) -> Sequence[Mapping[str, Any]]:
    """Return the rewards of a source: its own, or those of all."""
    for entry in (config.get("data") or {}).get("train") or ():
        if (entry.get("name") or entry.get("card")) == source and entry.get("rewards"):
            return entry["rewards"]
    return config.get("rewards") or []


def _lengths(completion: Row) -> list[int]:
    """Return the tokens of the policy's turns."""
    segments = completion.get("segments")
    if not segments:
        return [completion["tokens"]]
    return [segment["tokens"] for segment in segments if segment["by"] == "policy"]


def _nearest(rows: Sequence[RowFacts], here: RowFacts) -> Sequence[RowFacts]:
    """Return at most MAX_MOMENTS rows around one."""
    at = rows.index(here) if here in rows else 0
    start = max(0, min(at - MAX_MOMENTS // 2, len(rows) - MAX_MOMENTS))
    return rows[start : start + MAX_MOMENTS]


def _moment(row: RowFacts, here: RowFacts, wanted: RowFilter, base: str) -> Moment:
    what = "trained on" if row.part == PARTS[0] else f"held out, {row.drawn or 'greedy'}"
    rewards = tuple(row.scores[REWARD])
    return Moment(
        row.step, what, row_address(base, row, wanted), rewards, row.mean_reward, row is here
    )


ROW_SCRIPTS = ("report.js", "row.js")
PAGE_ROWS = 100
"""Rows on one page of the list."""


def list_page(index: RowIndex, config: Mapping[str, Any], wanted: RowFilter, skip: int) -> str:
    """Return the page of the rows that match, the newest first, without the first `skip`."""
    base, rows = _base(index), index.chosen(wanted)
    newest_first = rows[::-1][skip : skip + PAGE_ROWS]
    sources, verifiers = index.names()
    query = wanted.query()

    def at(start: int) -> str:
        return f"{base}/rows?{encode({**query, 'skip': start})}"

    return render(
        HERE,
        "rows.html",
        *ROW_SCRIPTS,
        **_common(index, config, base, at(skip)),
        wanted=wanted,
        parts=PARTS,
        sources=sources,
        verifiers=verifiers,
        count=len(rows),
        rows=[_line(base, row, wanted) for row in newest_first],
        newer=at(max(0, skip - PAGE_ROWS)) if skip else "",
        older=at(skip + PAGE_ROWS) if skip + PAGE_ROWS < len(rows) else "",
        attacks=f"{base}/rows.jsonl?{encode(query)}",
        data=f"{base}/rows.zip?{encode(query)}",
        command=as_command(index.folder, wanted),
    )


def row_page(index: RowIndex, config: Mapping[str, Any], facts: RowFacts, wanted: RowFilter) -> str:
    """Return the page of one row.

    Raises:
        UserError: the row cannot be read.
    """
    base = _base(index)
    story, album = tell(index, facts, wanted, config, base)
    return render(
        HERE,
        "row.html",
        *ROW_SCRIPTS,
        **_common(index, config, base, row_address(base, facts, wanted)),
        story=story,
        images=album.images.values(),
        list_address=f"{base}/rows?{encode(wanted.query())}",
        filter_said=", ".join(f"{key} {value}" for key, value in wanted.query().items()),
        count=len(index.chosen(wanted)),
        differences=DIFFERENCES,
        probabilities=PROBABILITIES,
    )


def _base(index: RowIndex) -> str:
    return run_address(index.folder.absolute().name)


def _common(index: RowIndex, config: Mapping[str, Any], base: str, here: str) -> dict[str, Any]:
    return {
        "title": config["run"]["name"],
        "base": base,
        "here": here,
        "whole": index.is_whole,
        "read": index.read,
        "total": index.total,
        "damaged": index.damaged,
    }


def _line(base: str, row: RowFacts, wanted: RowFilter) -> dict[str, Any]:
    return {
        "step": row.step,
        "source": row.source,
        "id": row.id,
        "address": row_address(base, row, wanted),
        "mean": row.mean_reward,
        "rewards": row.scores[REWARD],
        "failed": sum(row.failed),
    }


# --------------------------------------------------------------------------------------------------
# What `vlmrl watch` answers about the stored rows of its runs: pages, and selections to take along.


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
        pages: dict[str, Callable[[RowIndex, dict[str, Any], Mapping[str, str]], Response]] = {
            "rows": _list,
            "row": _row,
            "rows.jsonl": _attacks,
            "rows.zip": _data_set,
        }
        return [(end, self._guard(answer)) for end, answer in pages.items()]

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
