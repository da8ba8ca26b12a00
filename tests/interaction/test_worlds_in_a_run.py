"""Sources with an environment in whole runs: from the config to rewards, metrics and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.driving import end_every_turn
from vlmrl.assemble.lifecycle import train
from vlmrl.assemble.turns import tools_by_source
from vlmrl.config import Config, SourceConfig, parse
from vlmrl.data.source import open_source
from vlmrl.interaction import driver
from vlmrl.interaction.tools import AskedCall


def config_of(tmp_path: Path, environment: Any, **more: Any) -> Config:
    return parse(
        {
            "run": {"name": "world", "dir": str(tmp_path / "run"), "steps": 1},
            "model": {"build": {"family": "qwen2_5_vl"}},
            "data": {
                "train": [
                    {"card": "world", "environment": environment, "instruct": False},
                ]
            },
            "rollout": {
                "prompts": 2,
                "group_size": 2,
                "max_tokens": 6,
                "turns": {"max_turns": 2},
            },
            "rewards": [{"verifier": "world_return"}],
            "evaluation": None,
            **more,
        }
    )


ACTIONS = {
    "grid_world": AskedCall("move", {"direction": "up"}),
    "frozen_lake": AskedCall("move", {"direction": "up"}),
    "gui_world": AskedCall("scroll", {"direction": "down"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "frozen_lake",
        *(pytest.param(n, marks=pytest.mark.nightly) for n in ("grid_world", "gui_world")),
    ],
)
def test_a_run_in_a_world_pays_counts_and_writes_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    end_every_turn(monkeypatch)
    monkeypatch.setattr(driver, "parse_calls", lambda text: (ACTIONS[name],))
    assert train(config_of(tmp_path, name))["finished"]
    (metrics,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert metrics["rollout/turns"] == 2
    assert metrics["world/reward"] == metrics["reward/mean"] == metrics["reward/world_return"]
    assert metrics["world/done"] == 0
    assert metrics["world/solved"] == 0 or name == "grid_world"
    assert metrics["rollout/truncated"] == 1  # the last turn acts, and the world goes on
    rows = (tmp_path / "run" / "rollouts" / "step-1.jsonl").read_text().splitlines()
    first, shown, last = json.loads(rows[0])["completions"][0]["segments"]
    assert first["reward"] == 0 and first["metrics"]["done"] == 0
    assert last["calls"][0]["name"] == ACTIONS[name].name
    assert len(shown["media"]) == (first["calls"][0]["outcome"] == "ok")


def test_a_source_names_its_world_once() -> None:
    world = {"name": "gui_world", "options": {"rows": 2, "goals": 1}}
    source = SourceConfig.model_validate({"card": "world", "environment": world})
    assert source.options == {"environment": "gui_world", "options": {"rows": 2, "goals": 1}}
    assert source.label == "gui_world" and source.acts
    again = SourceConfig.model_validate(source.model_dump())
    assert again == source
    other = SourceConfig.model_validate({"card": "world", "options": source.options})
    assert other.environment == source.environment
    elsewhere = SourceConfig.model_validate({"card": "shapes", "environment": "gui_world"})
    assert elsewhere.options == {} and elsewhere.label == "shapes"


def test_the_prompt_shows_the_world_that_is_reset() -> None:
    source = SourceConfig.model_validate({"card": "world", "environment": "grid_world"})
    opened = open_source(source)
    first, again, other = opened.sample(0), opened.sample(0), opened.sample(1)
    assert first == again != other
    world = opened.card._world  # type: ignore[attr-defined]
    state = world.reset(first, 12345)
    (image,) = world.observe(state)
    assert first.parts[1] == world.task(state)
    assert image.tobytes() in first.parts[0].data or image.size == (140, 140)


def test_splits_of_a_world_share_nothing() -> None:
    def shown(split: str) -> set[Any]:
        named = {"card": "world", "environment": "frozen_lake", "split": split, "limit": 20}
        opened = open_source(SourceConfig.model_validate(named))
        return {opened.sample(i).parts[0].data for i in range(20)}

    assert not shown("train") & shown("test")


def test_the_list_of_tools_names_the_actions(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, "gui_world", data={"train": [{"card": "world", "environment": "gui_world"}]}
    )
    (schemas,) = tools_by_source(config, "norm1000").values()
    assert [schema["function"]["name"] for schema in schemas] == ["click", "type", "scroll"]


def test_demonstrations_are_scripts_of_the_split_demos_alone() -> None:
    def sample(split: str, environment: str) -> Any:
        named = {"card": "world", "environment": environment, "split": split}
        return open_source(SourceConfig.model_validate(named)).sample(0)

    demo = sample("demos", "gui_world").demo
    assert demo.text is None and demo.turns[-1].name == "click"
    assert sample("train", "gui_world").demo is None
    assert sample("demos", "grid_world").demo is None  # it has no script
