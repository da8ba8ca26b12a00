"""Benchmarks during training: their strict scorer is the run's reward, their numbers are its curves."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from helpers.published import ROWS, write_published
from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl.answers.templates import completion
from vlmrl.assemble.sources import open_benchmarks, rewards_by_source
from vlmrl.benchmarking.rows import INDEX
from vlmrl.benchmarking.scoring import Answer, score_answers
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.policy import checkpoint
from vlmrl.schema import Frame, PromptBatch, Rollouts
from vlmrl.scoring.scorer import Scorer
from vlmrl.system.interrupt import Interrupt
from vlmrl.training import evaluation
from vlmrl.training.evaluation import evaluate


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("chartqa", "ai2d"):
        write_published(tmp_path / "data", name, "test", ROWS[name])
    return tmp_path / "data"


def evaluated(data: Path, metric: str, **more: object) -> str:
    chartqa = {"name": "chartqa", "path": f"{data}/chartqa", "limit": 4, "protocol": "lmms_eval"}
    ai2d = {"name": "ai2d", "path": f"{data}/ai2d", "limit": 2}
    chosen = {"every": 1, "metric": metric, "benchmarks": [chartqa, ai2d], **more}
    return f"evaluation={json.dumps(chosen)}"


@pytest.mark.slow
def test_the_strict_scorer_is_the_reward(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One verdict is the reward of the evaluation, the strict number, and what `vlmrl eval` gives."""
    settings = ahead_config(tmp_path / "run", evaluated(data, "chartqa/strict"), "run.steps=1")
    with begin_training(settings) as trainer:
        kept = []
        trainer.engine = Answering(trainer.engine)
        monkeypatch.setattr(
            evaluation, "evaluate", lambda *a, **k: kept.append(evaluate(*a, **k)) or kept[-1]
        )
        list(trainer.run(Interrupt()))
        sources = {source.name: source for source in trainer.benchmarks}
        assert sorted(sources) == ["ai2d", "chartqa"]
        assert [len(source.rows) for source in sources.values()] == [4, 2]
        card = sources["chartqa"].card
        assert trainer.scorer.rewards["chartqa"] == [card.benchmark.strict.reward()]
    answers, rewards = [], []
    for _, rollouts, scored in kept[0].scored:
        for p, prompt in enumerate(rollouts.batch.prompts):
            if prompt.sample.source == "chartqa":
                one = rollouts.completions[p][0]
                told = (prompt.sample.meta[INDEX], one.text, len(one.token_ids), one.finish_reason)
                answers.append(Answer(*told, asdict(one.frame)))
                rewards.append(float(scored.total[p, 0]))
    result = score_answers(card.benchmark, sources["chartqa"], "lmms_eval", answers)
    assert [row.strict for row in result.rows] == rewards == [1, 0, 1, 0]
    metrics = kept[0].result["metrics"]
    assert metrics["chartqa/strict"] == metrics["chartqa/reward"] == 0.5
    assert metrics["chartqa/official"] == result.figures["official"].value == 0.75
    low, high = kept[0].result["intervals"]["chartqa/strict"]
    assert (low, high) == (result.figures["strict"].low, result.figures["strict"].high)


@pytest.mark.parametrize("combine", ["sum", "mean", "product", "gate"])
def test_the_reward_of_a_benchmark_is_its_strict_score_however_rewards_combine(
    tmp_path: Path, data: Path, combine: str
) -> None:
    gate = json.dumps([{"verifier": "exact", "gate": combine == "gate"}])
    more = (f"scoring.combine={combine}", f"rewards={gate}")
    settings = ahead_config(tmp_path / "run", evaluated(data, "chartqa/strict"), *more)
    sources = {source.name: source for source in open_benchmarks(settings)}
    sample = sources["chartqa"].sample(0)
    said = [completion(text, "none", Frame(96, 64)) for text in ("104", "160", "100")]
    with Scorer(rewards_by_source(settings), settings.scoring) as scorer:
        assert [one.reward for one in scorer.judge([said], [sample], whole=False)[0]] == [1, 0, 1]


@pytest.mark.slow
def test_the_best_checkpoint_is_by_a_benchmark(tmp_path: Path, data: Path) -> None:
    metric = evaluated(data, "chartqa/official")
    settings = ahead_config(tmp_path / "run", metric, "run.steps=3", "run.keep_checkpoints=1")
    with begin_training(settings) as trainer:
        trainer.engine = Answering(trainer.engine, right_at=2)
        list(trainer.run(Interrupt()))
        assert trainer.best == 2
        values = [found["metrics"]["chartqa/official"] for found in trainer.evaluations.values()]
    assert values == [0, 0, 0.75, 0]
    assert checkpoint.latest(tmp_path / "run") is not None
    assert (tmp_path / "run/checkpoints/step-2").is_dir()


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"benchmarks": ["chartqaa"]}, "evaluation.benchmarks: no benchmark is named 'chartqaa'"),
        ({"benchmarks": ["ai2d", "ai2d"]}, "'ai2d' is named twice"),
        ({"benchmarks": ["ai2d"], "metric": "ai2d/official"}, "no metric 'ai2d/official'"),
        ({"benchmarks": ["ai2d"], "metric": "chart"}, "there is no metric 'chart'"),
    ],
)
def test_a_wrong_benchmark_is_one_line(tmp_path: Path, chosen: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ahead_config(tmp_path, f"evaluation={json.dumps(chosen)}")


def test_without_a_limit_the_rows_are_counted(tmp_path: Path, data: Path) -> None:
    chosen = {"benchmarks": [{"name": "chartqa", "path": f"{data}/chartqa"}], "metric": "reward"}
    settings = ahead_config(tmp_path / "run", f"evaluation={json.dumps(chosen)}")
    with pytest.raises(UserError, match="chartqa: expected 2500 rows in split 'test', got 4"):
        open_benchmarks(settings)


class Answering:
    """An engine that generates as another one does, and whose greedy answers are then these."""

    ANSWERS = ("104", "2010", "yes.", "0.12")

    def __init__(self, engine: Any, right_at: int | None = None) -> None:
        self._engine, self._right_at, self._asked = engine, right_at, -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, batch: PromptBatch, sampling: Sampling, *more: Any) -> Rollouts:
        made = self._engine.generate(batch, sampling, *more)
        if not sampling.greedy:
            return made
        self._asked += 1
        right = self._right_at in (None, self._asked)
        groups = []
        for number, (prompt, (one,)) in enumerate(
            zip(batch.prompts, made.completions, strict=True)
        ):
            answer = self.ANSWERS[number % 4] if right else "none"
            text = f"<think>So it is.</think><answer>{answer}</answer>"  # the samples' own template
            groups.append((completion(text, prompt.sample.template, one.frame),))
        return replace(made, completions=tuple(groups))
