"""Whether the parts that a config names exist and accept their options, before torch is loaded."""

from __future__ import annotations

from vlmrl import plugins
from vlmrl.config import Config, PluginRef
from vlmrl.data.source import open_card
from vlmrl.engines.base import require_concurrent
from vlmrl.scoring import reward_components


def validate(config: Config) -> None:
    """Build the verifiers, cards and trackers of a config; look for its family, engine and algorithm.

    Engines and algorithms import torch, so their options are tried only where there are any.

    Raises:
        UserError: an unknown name or option, or a wrong value; the message suggests the nearest.
    """
    sources = list(config.data.train)
    sources += config.evaluation.sources if config.evaluation else []
    sources += [*config.sft.sources, *config.sft.validation] if config.sft else []
    for source in sources:
        open_card(source.card, source.options)
        for reward in config.rewards_of(source):
            for progress in reward_components.thresholds(reward):
                reward_components.resolve(reward, progress)
    if config.model.build:
        plugins.check("family", config.model.build.family)
    _try("engine", config.engine)
    if config.rollout.max_staleness:
        name = config.engine.name
        require_concurrent(plugins.load("engine", name), name, config.rollout.max_staleness)
    _try("algorithm", config.algorithm)
    for name, options in config.tracking.items():
        if isinstance(options, dict):
            plugins.build("tracker", name, options)


def _try(kind: str, part: PluginRef) -> None:
    plugins.check(kind, part.name)
    if part.options:
        plugins.build(kind, part.name, part.options)
