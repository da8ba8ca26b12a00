"""The section `control` of a config."""

from __future__ import annotations

from vlmrl.config.section import Section


class ControlConfig(Section):
    """Control experiments that must not learn."""

    shuffle_rewards: bool = False
    """Permute the rewards over the whole batch before advantages are computed."""
