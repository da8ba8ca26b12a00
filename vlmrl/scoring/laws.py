"""What the contract test of verifiers cannot read off a verifier's class variables.

Every item verifier has `laws`; the defaults suit one that grades the answer against the first kind of
truth it needs. `tests/contracts/test_verifiers.py` runs the laws over random truths and hostile text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Laws"]

Shape = Literal[
    "boxes", "one box", "points", "spans", "labelled spans", "track", "masks", "choice", "labels",
    "fields", "action", "text", "numeral", "number", "count", "yes or no", "none", "anything",
]  # fmt: skip
"""Truths that the contract test can draw, each with the answer that states it."""


@dataclass(frozen=True)
class Laws:
    """How a verifier's laws are tested.

    `truth`: the shapes of truth it is tested on; empty: those of the first name in `needs`.
    `best`: the completion that scores `high`; empty: the truth itself, written as an answer.
    `junk`: the best answer with something added that must not raise the score. `ANSWER` stands for
    the answer, `ITEMS` for what is inside its brackets.
    `options`: sets of options, e.g. the published ones, that obey every law; `loose`: sets that may
    pay for junk, as the docstring says. `template`: of the completions. `any_order`: whether the
    order of what an answer lists changes nothing. `of_turns`: whether it judges the calls that were
    run and not a text, so that texts say nothing of it: it has tests of its own. `of_models`: whether its
    score is the number of one of the config's `models`, which has to be there.
    """

    truth: tuple[Shape, ...] = ()
    best: str = ""
    junk: str = "ANSWER zzzz"
    options: tuple[Mapping[str, Any], ...] = ({},)
    loose: tuple[Mapping[str, Any], ...] = ()
    template: str = "none"
    any_order: bool = False
    of_turns: bool = False
    of_models: bool = False

    @property
    def needs_a_run(self) -> bool:
        """Whether texts alone say nothing of it."""
        return self.of_turns or self.of_models
