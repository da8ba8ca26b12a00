"""The galleries of a run's page: cards under one heading, with what a reader can choose them by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from vlmrl.pages.media import Album
from vlmrl.report.cards.facets import DISAGREEMENTS, FAILURES, FacetChoice, facets_of
from vlmrl.report.gallery import MAX_PROMPTS, GalleryPrompt, evaluation_cards, rollout_cards
from vlmrl.report.loopholes.alarms import ABOUT
from vlmrl.runs.rollout_rows import Row

__all__ = ["Gallery", "current_gallery", "galleries"]

GROUPS = (
    "Prompts with all their completions. Point at a completion to see its boxes alone, "
    "open it for its thought, its verdicts and their notes."
)
ENDS = (
    "The same held-out samples as the first and the last evaluated policy answered them, "
    "greedily; chosen by position, not by result."
)


@dataclass(frozen=True, slots=True)
class Gallery:
    """Cards of one kind; `keys` name the colours of what is drawn.

    `options` has for each thing that cards can be chosen by its values with what is said of them, and
    `chosen` the value at first, if any.
    """

    kind: str
    title: str
    about: str
    keys: tuple[str, ...]
    cards: tuple[GalleryPrompt, ...]
    options: Mapping[str, Mapping[str, str]]
    chosen: Mapping[str, str]
    rows: str = ""
    """Where `vlmrl watch` has the pages of its rows; empty: nowhere, as in a file."""

    @property
    def first(self) -> list[GalleryPrompt]:
        """Return the cards of the step that is chosen at first, all if none is."""
        step = self.chosen.get("step")
        return [card for card in self.cards if step in (None, str(card.step))]

    @property
    def later(self) -> list[GalleryPrompt]:
        """Return the other cards."""
        step = self.chosen.get("step")
        return [card for card in self.cards if step not in (None, str(card.step))]


def galleries(
    ends: Mapping[int, Sequence[Row]],
    album: Album,
    rows: Mapping[int, Sequence[Row]],
    odd: Mapping[int, Sequence[Row]],
) -> list[Gallery]:
    """Return what a report shows: the held-out ends, the prompts behind alarms, and groups of training."""
    drawn = ("predicted",)
    labels = tuple(f"step {step}" for step in sorted(ends))
    found = (
        _gallery("pairs", "Held out", ENDS, labels, evaluation_cards(ends, album)),
        _gallery("groups", "Behind an alarm", ABOUT, drawn, rollout_cards(odd, album)),
        _gallery("groups", "Training groups", GROUPS, drawn, rollout_cards(rows, album)),
    )
    return [gallery for gallery in found if gallery.cards]


def current_gallery(step: int, rows: Sequence[Row], choice: FacetChoice, album: Album) -> Gallery:
    """Return the chosen prompts of one step as cards; all choices are offered, whatever there is now."""
    chosen = [row for row in rows if choice.holds(row)]
    about = f"Step {step}: {len(chosen)} of {len(rows)} prompts"
    about += f", of which {MAX_PROMPTS} are shown. " if len(chosen) > MAX_PROMPTS else ". "
    known = {choice.verifier, *(v for row in rows for v in facets_of(row["completions"]).verifiers)}
    options = {
        "source": _same({choice.source, *(row["source"] for row in rows)} - {""}),
        "verifier": _same(known - {""}),
        "disagreement": DISAGREEMENTS,
        "failure": FAILURES,
    }
    cards = tuple(rollout_cards({step: chosen}, album))
    return Gallery("groups", "Now", about + GROUPS, ("predicted",), cards, options, asdict(choice))


def _gallery(
    kind: str, title: str, about: str, keys: tuple[str, ...], cards: Sequence[GalleryPrompt]
) -> Gallery:
    steps = [str(step) for step in sorted({card.step for card in cards}, reverse=True)]
    facets = [card.facets for card in cards]
    disagreements = {key for one in facets for key in one.disagreements if kind == "groups"}
    failures = {key for one in facets for key in one.failures}
    options = {
        "source": _several(_same({card.source for card in cards})),
        "step": _several({step: step for step in steps}),
        "verifier": _several(_same({name for one in facets for name in one.verifiers})),
        "disagreement": {k: said for k, said in DISAGREEMENTS.items() if k in disagreements},
        "failure": {key: said for key, said in FAILURES.items() if key in failures},
    }
    chosen = {"step": steps[0]} if len(steps) > 1 else {}
    return Gallery(kind, title, about, keys, tuple(cards), options, chosen)


def _same(values: Iterable[str]) -> dict[str, str]:
    return {value: value for value in sorted(values)}


def _several(options: dict[str, str]) -> dict[str, str]:
    """Return the options if there is something to choose."""
    return options if len(options) > 1 else {}
