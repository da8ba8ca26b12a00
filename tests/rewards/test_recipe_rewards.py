"""What recipes pay for right, wrong and unformatted completions of a row in their published layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.chat_server import chat_servers
from helpers.recipe_rows import write_rows
from vlmrl.answers import templates
from vlmrl.assemble.sources import open_training
from vlmrl.config import load
from vlmrl.schema import Frame
from vlmrl.scoring.scorer import Scorer

Pay = Callable[..., list[float | None]]


@pytest.fixture
def pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pay a group of texts as a recipe does; `script` is what its judge replies to a request."""
    monkeypatch.chdir(tmp_path)
    with chat_servers() as start:

        def group(
            name: str,
            texts: Sequence[str],
            script: Callable[[dict[str, Any]], Any] | None = None,
            source: str = "",
            row: int = 0,
            progress: float = 0.0,
            changes: Sequence[str] = (),
        ) -> list[float | None]:
            models = load(name).models if script else {}
            urls = [f"models.{model}.url={start(script).url}" for model in models]
            config = load(name, [*urls, *changes])
            write_rows(config, tmp_path)
            opened = {each.name: each for each in open_training(config)}
            chosen = opened[source or next(iter(opened))]
            sample = chosen.sample(row)
            now = config.at(progress)
            listed = [s for s in now.data.train if s.label == chosen.name]
            rewards = {chosen.name: now.rewards_of(listed[0])}
            completions = [
                templates.completion(text, sample.template, Frame(56, 56)) for text in texts
            ]
            with Scorer(rewards, now.scoring) as scorer:
                (judged,) = scorer.judge([completions], [sample], progress)
            assert not any(v.fault for j in judged for v in j.verdicts.values()), judged
            return [j.reward for j in judged]

        yield group


def data_of(body: dict[str, Any]) -> dict[str, Any]:
    content = body["messages"][1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    shown: dict[str, Any] = json.loads(text)
    return shown


def sees_a_dog(body: dict[str, Any]) -> str:
    candidate = data_of(body)["candidate"]
    return json.dumps({"Sees": int("dog" in candidate), "Pitfall": int("cat" in candidate)})


def test_rubrics_as_rewards_and_rubric_anchors_pay_by_the_rows_criteria(pay: Pay) -> None:
    texts = ["A dog.", "A dog and a cat.", "A bird.", ""]
    assert pay("recipes/rubrics_as_rewards", texts, sees_a_dog) == [1.0, 0.6, 0.0, 0.0]
    changes = ["rewards.0.options.scale=[0,1]", "rewards.0.options.media=false"]
    paid = pay("recipes/rubric_anchors", texts, sees_a_dog, changes=changes)
    assert paid == [1.0, 0.6, 0.0, 0.0]


def test_reward_anything_pays_by_its_models_scores_for_the_rows_principle(pay: Pay) -> None:
    def script(body: dict[str, Any]) -> str:
        data = data_of(body)
        assert data["criteria"][0]["text"] == "It names the dog."
        scores = {name: 5 if "dog" in text else 1 for name, text in data["candidates"].items()}
        return json.dumps({"scores": scores, "best-to-worst": sorted(scores)})

    assert pay("recipes/reward_anything", ["A dog.", "A cat.", ""], script) == [1.0, 0.0, 0.0]
