"""Names that changed: every old key, option and part gives one line with the new name."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl import config, plugins, renamed
from vlmrl.errors import UserError

PATHS = {
    "RunConfig": "run",
    "DataConfig": "data",
    "VideoConfig": "data.video",
    "AudioConfig": "data.audio",
    "RewardConfig": "rewards.0",
    "SftConfig": "sft",
    "RolloutConfig": "rollout",
    "OptimizerConfig": "optimizer",
    "EvaluationConfig": "evaluation",
    "ChecksConfig": "checks",
}
KEYS = [(s, old, new) for s, keys in renamed.KEYS.items() for old, new in keys.items()]
OPTIONS = [(k, old, new) for k, options in renamed.OPTIONS.items() for old, new in options.items()]
PARTS = [(kind, old, new) for kind, names in renamed.PARTS.items() for old, new in names.items()]
SMALL: dict[str, Any] = {
    "model": {"path": "somewhere"},
    "data": {"train": [{"card": "shapes"}]},
    "rewards": [{"verifier": "exact"}],
    "sft": {},
}


@pytest.mark.parametrize(("section", "old", "new"), KEYS)
def test_an_old_key_gives_one_line_with_the_new_one(section: str, old: str, new: str) -> None:
    assert new in getattr(config, section).model_fields
    path = PATHS[section]
    values = config.tree.override(SMALL, f"{path}.{old}=1")
    with pytest.raises(UserError) as caught:
        config.parse(values, "my.yaml")
    assert str(caught.value) == f"my.yaml: {path}.{old} is called {path}.{new} now"


@pytest.mark.parametrize("old", renamed.MOVED["RolloutConfig"])
def test_a_key_that_moved_gives_one_line_that_writes_the_new_one(old: str) -> None:
    with pytest.raises(
        UserError, match=rf"rollout\.{old} is now written strategies: \[\{{name: shuf"
    ):
        config.parse(config.tree.override(SMALL, f"rollout.{old}=4"), "my.yaml")
    values = config.tree.override(
        SMALL, renamed.MOVED["RolloutConfig"][old].replace(": [", "=[", 1).replace("N", "4")
    )
    assert config.parse(values, "my.yaml").strategies[0].options == {"group_size": 4}


@pytest.mark.parametrize(("kind", "old", "new"), OPTIONS)
def test_an_old_option_gives_one_line_with_the_new_one(kind: str, old: str, new: str) -> None:
    known = {name: plugins.options_of(plugins.load(kind, name)) for name in plugins.names(kind)}
    owners = [name for name, options in known.items() if new in options]
    assert owners and not any(old in options for options in known.values())
    for name in owners:
        with pytest.raises(UserError) as caught:
            plugins.build(kind, name, {old: 1})
        assert str(caught.value) == f"{kind} {name!r}: option {old!r} is called {new!r} now"


@pytest.mark.parametrize(("kind", "old", "new"), PARTS)
def test_an_old_part_gives_one_line_with_the_new_name(kind: str, old: str, new: str) -> None:
    assert new in plugins.names(kind) and old not in plugins.names(kind)
    with pytest.raises(UserError) as caught:
        plugins.load(kind, old)
    assert str(caught.value) == f"{kind} {old!r} is called {new!r} now"
