"""One row's whole story: media with truth and answers, what each answer earned and why, and its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from vlmrl.pages.media import Album
from vlmrl.report.gallery import GalleryCompletion, GalleryPrompt, row_card
from vlmrl.report.rows.row_filter import PARTS, REWARD, RowFacts, RowFilter, encode
from vlmrl.report.rows.row_index import RowIndex
from vlmrl.report.rows.token_heat import Heat, heat_of
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import Row

__all__ = ["Story", "row_address", "run_address", "tell"]

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
    told = (tokens or {}).get("completions") or []
    answers = tuple(
        StoryCompletion(
            attempt,
            completion["finish_reason"],
            weights,
            heat_of(told[g], _lengths(completion)) if g < len(told) else None,
        )
        for g, (attempt, completion) in enumerate(
            zip(card.attempts, row["completions"], strict=True)
        )
    )
    before, after = (
        row_address(base, one, wanted) if one else "" for one in index.neighbours(facts, wanted)
    )
    all_ = index.answers(facts.source, facts.id)
    moments = [_moment(one, facts, wanted, base) for one in _nearest(all_, facts)]
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
    place = {"source": row.source, "id": row.id, "step": row.step, "line": row.line}
    kept = wanted.query() | ({"part": row.part} if row.part != PARTS[0] else {})
    return f"{base}/row?{encode({**place, **kept})}"


def _weights(config: Mapping[str, Any], source: str) -> dict[str, str]:
    """Return by verifier what the config says of its weight in the reward of a source."""
    found = {}
    for reward in _rewards(config, source):
        weight = reward.get("weight", 1.0)
        said = f"{weight:g}" if isinstance(weight, int | float) else "by a schedule"
        more = [
            f"{key} {reward[key]}"
            for key in ("gated_by", "max_score", "max_with", "multiplies")
            if reward.get(key)
        ]
        more += ["a gate"] if reward.get("gate") else []
        name = reward.get("name") or str(reward["verifier"]).rpartition(":")[2]
        found[name] = ", ".join([f"weight {said}", *more])
    return found


def _rewards(config: Mapping[str, Any], source: str) -> Sequence[Mapping[str, Any]]:
    """Return the rewards of a source: its own, or those of all."""
    for one in (config.get("data") or {}).get("train") or ():
        if (one.get("name") or one.get("card")) == source and one.get("rewards"):
            return one["rewards"]
    return config.get("rewards") or []


def _lengths(completion: Row) -> list[int]:
    """Return the tokens of the policy's turns."""
    told = completion.get("segments")
    if not told:
        return [completion["tokens"]]
    return [segment["tokens"] for segment in told if segment["by"] == "policy"]


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
