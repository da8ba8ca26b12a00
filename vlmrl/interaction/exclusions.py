"""What does not work with completions of several turns: `config validate` and a run refuse the same."""

from __future__ import annotations

from vlmrl import plugins
from vlmrl.config import Config
from vlmrl.errors import UserError

__all__ = ["refuse_branching_of_live_worlds", "refuse_single_turn_parts"]


def refuse_single_turn_parts(config: Config) -> None:
    """Check the parts beside a source that has tools or an environment; import torch if there is one.

    Raises:
        UserError: a strategy, the stages, forced thinking or the algorithm knows a single turn alone, or
            the limits leave no room for a second turn.
    """
    if not any(source.acts for each in (config, *config.by_stage) for source in each.named_sources):
        return
    excluded = "data.train: a source has tools or an environment, which excludes"
    for strategy in config.strategies:
        if not plugins.load("strategy", strategy.name).of_turns:
            raise UserError(f"{excluded} strategy {strategy.name!r}")
    if config.evaluation and config.evaluation.force_thinking:
        raise UserError(f"{excluded} evaluation.force_thinking")
    if config.stages:
        raise UserError(f"{excluded} stages")
    rollout = config.at(0).rollout
    if rollout.turns.max_turns > 1 and rollout.turns.max_tokens <= rollout.max_tokens:
        raise UserError(
            f"rollout.turns.max_tokens: expected more than one turn's rollout.max_tokens "
            f"({rollout.max_tokens}), got {rollout.turns.max_tokens}: no second turn would ever begin"
        )
    now = config.at(0).algorithm
    from vlmrl.algorithms.base import passes_of  # imports torch

    if "masked_media" in passes_of(plugins.build("algorithm", now.name, now.options)):
        raise UserError(
            f"{excluded} algorithm {now.name!r}: it masks the media of the prompt, not those of "
            "observations"
        )


def refuse_branching_of_live_worlds(config: Config) -> None:
    """Check that rollouts branch only in worlds whose state is a value, which two may go on from.

    Raises:
        UserError: a source's environment lives elsewhere.
    """
    for source in config.named_sources if config.rollout.turns.branching else ():
        name = source.environment.name if source.environment else None
        if name is not None and not plugins.load("environment", name).restartable:
            raise UserError(
                f"rollout.turns.branching: environment {name!r} of source {source.label!r} lives in a "
                "server, where two rollouts cannot go on from one state"
            )
