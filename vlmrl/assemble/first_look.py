"""What a look at config, first rows and models shows before step 1, and would else cost a night."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vlmrl.config import Config
from vlmrl.data.annotations import noting_places
from vlmrl.data.source import Source
from vlmrl.data.units import SPACES, UnitTally, content_of, equal_ids, read_place
from vlmrl.errors import UserError
from vlmrl.scoring import reward_components

if TYPE_CHECKING:
    from vlmrl.named_models.asked import AskedModel

ASK_EVERY = 10
"""Steps after which a model that nothing was asked of is asked whether it is there."""
ASK_S = 10.0
"""Seconds that it may take then."""
LOOK = 100
"""Rows of each source that are looked at."""
LOOK_HELD_OUT = 2000
"""Rows of each held-out source that are compared with each other."""


def warnings(config: Config, sources: Sequence[Source]) -> Iterator[str]:
    """Yield what the first rows of the sources, and the weights of their rewards, speak against."""
    yield from unpaid(config)
    for source in sources:
        for line in _about(source):
            yield f"{line}; see `vlmrl data check` of source {source.name!r}"


def repeats(sources: Sequence[Source]) -> Iterator[str]:
    """Yield a line for each held-out source with rows that ask the same: an interval counts them twice."""
    for source in sources:
        counted = min(len(source.rows), LOOK_HELD_OUT)
        known, repeated = set[bytes](), 0
        for row in range(counted):
            with contextlib.suppress(UserError):  # the evaluation counts and names it
                content = content_of(source.sample(row))
                repeated += content in known
                known.add(content)
        if repeated:
            first = "" if counted == len(source.rows) else "first "
            yield (
                f"held-out source {source.name!r}: {repeated:,} of its {first}{counted:,} rows repeat an "
                "earlier one (media, question, truth), which intervals count twice; see `vlmrl data check`"
            )


def epochs(config: Config, sources: Sequence[Source]) -> str:
    """Say how often a run asks the rows of its sources, together and, where weights decide, each."""
    shares = [config.at(n / 100).rollout.prompts for n in range(100)]  # may change with time
    prompts = round(config.run.steps * sum(shares) / len(shares))
    rows = sum(len(source.rows) for source in sources)
    line = f"{config.run.steps} steps ask {prompts:,} prompts of {rows:,} rows: {prompts / rows:.3g} epochs"
    if len(sources) == 1 or config.stages or config.data.sampler.name != "mixture":
        return line
    whole = sum(source.weight for source in sources)
    each = (
        f"{source.name} {prompts * source.weight / whole / len(source.rows):.3g}"
        for source in sources
    )
    return f"{line} ({', '.join(each)})"


def unpaid(config: Config) -> Iterator[str]:
    """Yield a line for each training source whose rewards all have weight 0, at all times."""
    paid: dict[str, bool] = {}
    for stage in config.by_stage:
        for source in stage.data.train:
            weights = [
                reward_components.resolve(reward, moment).weight
                for reward in stage.rewards_of(source)
                for moment in reward_components.moments(reward)
            ]
            paid[source.label] = paid.get(source.label, False) or any(weights) or not weights
    for label in [label for label, pays in paid.items() if not pays]:
        yield f"source {label!r}: all weights of its rewards are 0: no answer is better than another"


def ask_models(config: Config) -> None:
    """Ask every model that a reward asks once, so that one that is not there ends the run before step 1.

    Raises:
        UserError: one does not answer; the message names the reward and the model.
    """
    for label, model in _models(config):
        _ask(model, label)


class SilentModels:
    """Asks the models of rewards again that nothing was asked of for some steps: one may be gone by then.

    A policy that writes nothing readable asks its judge nothing, and would meet the loss of it hours later.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._requests: dict[str, int] = {}

    def complain(self, step: int) -> Iterator[str]:
        """Yield a line, every ASK_EVERY steps, for each model that is gone and got no request in them."""
        if step % ASK_EVERY:
            return
        for label, model in _models(self._config):
            before, self._requests[label] = self._requests.get(label, 0), model.num_requests
            if model.num_requests == before:
                try:
                    _ask(model, label, attempts=1, seconds=ASK_S)
                except UserError as error:
                    yield f"{error}; nothing was asked of it in the last {ASK_EVERY} steps"


def _models(config: Config) -> Iterator[tuple[str, AskedModel]]:
    """Yield every model that a reward asks, once, with the name of that reward."""
    known: set[int] = set()
    for stage in config.by_stage:
        for reward in [r for source in stage.named_sources for r in stage.rewards_of(source)]:
            verifier = reward_components.resolve(reward).verifier
            if verifier.waits:
                # A plain run loads half of the package: not what asks models.
                from vlmrl.scoring.model_judge import model_of

                model = model_of(verifier)
                if model is not None and id(model) not in known:
                    known.add(id(model))
                    yield reward.label, model


def _ask(
    model: AskedModel, label: str, attempts: int | None = None, seconds: float | None = None
) -> None:
    from vlmrl.system.chat_endpoint import Invalid, Unavailable

    try:
        model.probe(attempts, seconds)
    except (Unavailable, Invalid) as error:
        name = " ".join(filter(None, model.identity))
        raise UserError(f"reward {label!r}: its model {name} does not answer: {error}") from error


def _about(source: Source) -> Iterator[str]:
    """Yield what is odd about the first rows: places that look like another unit, and equal ids."""
    ids = []
    with noting_places() as stated:
        for row in range(min(len(source.rows), LOOK)):
            with contextlib.suppress(UserError):  # the loader counts and names it
                ids.append(source.sample(row).id)
    tallies: dict[tuple[str, str], UnitTally] = {}
    for mark in stated:
        kind = "boxes" if len(mark.numbers) == 4 else "points"
        unit = SPACES[mark.frame.space]
        tallies.setdefault((kind, unit), UnitTally(unit)).add(read_place(mark, None))
    for (kind, _), tally in tallies.items():
        if verdict := tally.judge():
            yield f"these {kind} {verdict}"
    if line := equal_ids(ids):
        yield line
