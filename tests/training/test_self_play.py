"""Self-play: which proposals become questions, what both roles are paid, and what a resume keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.interrupts import stop_after
from helpers.proposing_engine import ENGINE, PROPOSE, REFUSED, SELF_PLAY
from helpers.rollouts_ahead import ahead_config, begin_training
from helpers.runs import TINY, final_state, metric_lines
from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.parts.strategies.self_play import SelfPlay
from vlmrl.schema import Prompt, Rollouts, Sample
from vlmrl.scoring.scorer import Judged
from vlmrl.system import distributed
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)
SCENES = ["red circle 0 0 4 4; blue square 5 6 11 11", "red circle 0 0 4 5", "green square 1 1 3 3"]
HOSTILE = [
    "; ".join(["red circle 0 0 1 1"] * 10**6),
    "red circle nan nan nan nan",
    "red circle 0 0 1e1 4",
    "red circle -1 0 4 4",
    "red circle 0 0 13 4",
    "red circle 4 0 4 4",
    "red circle 0 0 4 4; blue square 3 3 8 8",
    "red circle 0 0 4 4; red square 6 6 11 11",
    "red circle ٠ ٠ ٤ ٤",
    "<svg onload=alert(1)>",
    "__import__('os').system('true')",
    "[{'colour': 'red'}]",
    "red circle 0 0 4 4;",
    "",
]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("self_play") / "run"
    with begin_training(ahead_config(folder, *SELF_PLAY, ENGINE)) as built:
        yield built


def strategy_of(trainer: Trainer, **options: object) -> SelfPlay:
    strategy = SelfPlay(**options)  # type: ignore[arg-type]
    strategy.begin(trainer.run_parts)
    return strategy


def proposing(trainer: Trainer, texts: Sequence[Sequence[str]]) -> Rollouts:
    """Return a batch of three groups of three that propose these texts."""
    rollouts = trainer._generate(trainer._draw_prompts(0))
    groups = []
    for group, wanted in zip(rollouts.completions, texts, strict=True):
        written = (f"<think>a</think><answer>{text}</answer>" for text in wanted)
        groups.append(
            tuple(
                replace(c, text=text, parsed=templates.split(text, "think_answer"))
                for c, text in zip(group, written, strict=True)
            )
        )
    return replace(rollouts, completions=tuple(groups))


def test_the_reward_of_a_proposal_is_its_learnability() -> None:
    def paid(rewards: Sequence[float | None]) -> float | None:
        return SelfPlay()._learnability([Judged(reward, {}) for reward in rewards]).score

    # Absolute Zero, eq. 4: 0 where all or none of the answers are right, else 1 - their share.
    assert paid([1.0, 0.0, 0.0, 0.0]) == 0.75
    assert paid([1.0, 1.0, 0.6, 0.5]) == 0.25
    assert paid([1.0] * 4) == paid([0.0] * 4) == 0.0
    assert paid([1.0, None, 0.0, None]) == 0.5
    assert paid([None, None]) is None


def test_hostile_proposals_are_refused_counted_and_paid_nothing(trainer: Trainer) -> None:
    strategy = strategy_of(trainer)
    for first in range(0, len(HOSTILE), 9):
        texts = (HOSTILE[first : first + 9] + [SCENES[0]] * 9)[:9]
        before = proposing(trainer, [texts[:3], texts[3:6], texts[6:]])
        scored = trainer.scorer.score(before)
        after, rewards = strategy.expand(before, scored, DRAW, trainer.run_parts)
        for place, text in enumerate(texts):
            p, g = divmod(place, 3)
            verdict = rewards.verdicts[p][g]["self_play"]
            assert rewards.valid[p, g]
            if text in HOSTILE:
                assert verdict.score == 0 and verdict.note and len(verdict.note) < 200, text[:40]
                assert rewards.total[p, g] == scored.total[p, g]
        refused = sum(text in HOSTILE for text in texts)
        found = strategy.metrics(after, rewards)
        assert found["self_play/valid"] == pytest.approx(1 - refused / 9)
        assert found["self_play/faulted"] == 0


def test_scenes_of_held_out_splits_are_refused() -> None:
    card = plugins.build("card", "shapes", {})
    taken = 0
    for x in range(9):
        for y in range(9):
            row = {"id": "a", "proposal": f"red circle {x} {y} {x + 3} {y + 3}"}
            try:
                taken += bool(card.to_sample(row, "s").truth.boxes)
            except UserError as error:
                assert "held out" in str(error)
    assert 50 < taken < 81  # a fifth of all scenes is held out


def test_what_is_demonstrated_can_be_drawn_and_has_one_answer() -> None:
    asking = plugins.build("card", "shapes", {"task": "proposing", "count": 60})
    card = plugins.build("card", "shapes", {"task": "question"})
    refused = []
    for row in asking.rows("demos"):
        sample = asking.to_sample(row, "s")
        assert sample.demo is not None and sample.demo.thought
        try:
            card.to_sample({"id": "a", "proposal": sample.demo.text}, "s")
        except UserError as error:
            refused.append(str(error))
    assert {*refused} == {"the scene belongs to a split that is held out"} and len(refused) < 24


def test_a_rank_makes_its_own_questions_alone(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = next(s for s in trainer.loader.sources if s.name == "self_play/solve")
    rows = [{"id": f"{n}", "proposal": scene} for n, scene in enumerate(SCENES)]
    samples = [replace(source, rows=[row]).sample(0) for row in rows]
    whole = trainer.run_parts.pose(samples, source)
    told = [prompt.without_media() for prompt in whole]
    made: list[Sample] = []

    def make(sample: Sample, media: list[Any]) -> Prompt:
        made.append(sample)
        return trainer.run_parts.make_prompt(sample, media)

    monkeypatch.setattr(distributed, "rank", lambda: 1)
    monkeypatch.setattr(distributed, "world", lambda: 2)
    monkeypatch.setattr(distributed, "gather", lambda own: [told[0::2], own])
    found = replace(trainer.run_parts, make_prompt=make).pose(samples, source)
    assert made == samples[1::2]
    assert [bool(prompt.media) for prompt in found] == [False, True, False]
    assert [prompt.home for prompt in found] == [0, 1, 0]
    assert [prompt.encoded.ids for prompt in found] == [prompt.encoded.ids for prompt in whole]


def test_both_roles_are_paid_and_answers_are_groups_behind_the_batch(trainer: Trainer) -> None:
    texts = [[SCENES[0], SCENES[1], REFUSED], [SCENES[0]] * 3, [SCENES[2], REFUSED, REFUSED]]
    before = proposing(trainer, texts)
    scored = trainer.scorer.score(before)
    strategy = strategy_of(trainer, groups=2, refused=-0.5)
    after, rewards = strategy.expand(before, scored, DRAW, trainer.run_parts)
    assert after.completions[:3] == before.completions and after.shape == (5, 3)
    assert rewards.total.shape == rewards.valid.shape == (5, 3)
    for prompt in after.batch.prompts[3:]:
        assert prompt.place is None and prompt.sample.source == "self_play/solve"
        assert prompt.sample.id.startswith("proposed-") and prompt.images
    assert {c.origin for group in after.completions for c in group} == {"policy"}
    gain = (rewards.total - torch.cat([scored.total, torch.zeros(2, 3)]))[:3]
    assert gain[0, 2] == gain[2, 1] == gain[2, 2] == -0.5
    same = [gain[0, 0], gain[1, 0], gain[1, 1], gain[1, 2]]  # asked once, paid alike
    assert torch.stack(same).tolist() == pytest.approx([float(same[0])] * 4, abs=1e-6)
    assert len({prompt.sample.id for prompt in after.batch.prompts[3:]}) == 2
    for p, group in enumerate(texts):
        for g, text in enumerate(group):
            parts = rewards.verdicts[p][g]["self_play"].parts
            if text == REFUSED:
                continue
            solved = parts["solved"]
            expected = 1 - solved if 0 < solved < 1 else 0.0
            assert float(gain[p, g]) == pytest.approx(expected, abs=1e-6)
    assert sorted(strategy._kept()) == sorted(SCENES)


def test_the_pool_fills_up_what_is_not_proposed(trainer: Trainer) -> None:
    strategy = strategy_of(trainer, groups=3, pool=2)
    first = proposing(trainer, [SCENES, [REFUSED] * 3, [REFUSED] * 3])
    strategy.expand(first, trainer.scorer.score(first), DRAW, trainer.run_parts)
    assert len(strategy._kept()) == 2
    none = proposing(trainer, [[REFUSED] * 3] * 3)
    after, rewards = strategy.expand(none, trainer.scorer.score(none), DRAW, trainer.run_parts)
    assert after.shape == (5, 3) and len(rewards.verdicts) == 5
    fresh = strategy_of(trainer)
    after, _ = fresh.expand(none, trainer.scorer.score(none), DRAW, trainer.run_parts)
    assert after.shape == (3, 3)


def test_a_step_trains_on_both_roles_and_tells_them_apart(trainer: Trainer) -> None:
    report = trainer.step()
    assert report.advantages.values.shape == (5, 3)
    assert {p.home for p in report.rollouts.batch.prompts} == {0}
    for name in (f"source/{PROPOSE}/reward", "source/self_play/solve/reward", "self_play/valid"):
        assert name in report.metrics
    values = report.advantages.values[3:]
    assert torch.allclose(values.sum(1), torch.zeros(2), atol=1e-5)  # a baseline of its own


def test_a_run_without_the_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a training source 'self_play/propose', got"):  # noqa: SIM117
        with begin_training(ahead_config(tmp_path / "run", "strategies=[self_play]")):
            pass
    with pytest.raises(UserError, match="expected a source whose weight is above 0"):  # noqa: SIM117
        with begin_training(ahead_config(tmp_path / "run", "data.train.0.weight=0")):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_of_self_play_resumes_bit_for_bit(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str, *more: str):  # type: ignore[no-untyped-def]
        short = ("sft=null", "evaluation=null", "checks.parity_every=0", *SELF_PLAY, ENGINE)
        return load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *short, *more])

    assert lifecycle.train(config("whole"))["finished"]
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(3))
        assert not lifecycle.train(config("run", f"data.workers={workers}"))["finished"]
    resumed = ("resume=auto", f"data.workers={workers}")
    assert lifecycle.train(config("run", *resumed))["finished"]
    whole, run = final_state(tmp_path / "whole"), final_state(tmp_path / "run")
    assert run == whole
    assert len(run["trainer/strategies.safetensors"]) > 200
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")
    assert max(line["self_play/pool"] for line in metric_lines(tmp_path / "run")) == 5
