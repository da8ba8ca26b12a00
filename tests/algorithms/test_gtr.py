"""GTR: one loss of policy gradient and imitation, and the corrected thoughts that it imitates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.losses import inputs_of, random_inputs, recipe_of, rewards_of, rollouts_of
from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.schema import Demo, PromptBatch, Truth
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer


@pytest.mark.parametrize("name", ["grpo", "dapo", "gpg", "gspo"])
def test_imitation_adds_its_weight_times_the_mean_log_prob_to_any_loss(name):
    recipe, plain = recipe_of(name), random_inputs(ref=None)
    weight = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    extra = {**plain.extra, "imitate": weight}
    told = inputs_of(plain.new, plain.advantages, mask=plain.mask, extra=extra)
    bare = inputs_of(plain.new, plain.advantages, mask=plain.mask)
    rows = [
        sum(-weight[b, t] * plain.new[b, t] for t in range(6) if plain.mask[b, t]) for b in range(4)
    ]
    lengths = plain.mask.sum(-1)
    whole = {
        "sequence": sum(row / n for row, n in zip(rows, lengths, strict=True)) / 4,
        "token": sum(rows) / lengths.sum(),
    }
    got = recipe.loss(told).loss - recipe.loss(bare).loss
    torch.testing.assert_close(got, whole[recipe.aggregation])


def test_corrected_rows_are_imitated_and_have_no_part_in_advantages():
    rewards = rewards_of([[1.0, 0.0, 0.0, 9.0]])
    rollouts = rollouts_of(rewards)
    (group,) = rollouts.completions
    shown = (*group[:3], replace(group[3], origin="demonstration"))
    found = recipe_of("gtr", imitation=0.5).advantages(
        rewards, replace(rollouts, completions=(shown,))
    )
    alone = recipe_of("grpo").advantages(
        rewards_of([[1.0, 0.0, 0.0]]), rollouts_of(rewards_of([[1.0, 0.0, 0.0]]))
    )
    assert torch.equal(found.values[0, :3], alone.values[0])
    assert found.values[0, 3] == 0 and found.kept.all()
    assert found.extra["imitate"].tolist() == [[0.0, 0.0, 0.0, 0.5]]
    plain = recipe_of("gtr").advantages(rewards, rollouts)
    assert torch.equal(plain.values, recipe_of("grpo").advantages(rewards, rollouts).values)
    assert not plain.extra


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("corrections") / "run"
    source = "data.train=[{card: shapes, limit: 6, template: think_answer}]"
    with begin_training(ahead_config(folder, "engine=hf", source)) as built:
        yield built


def corrected(trainer: Trainer, strategy, thought: str):
    """A batch whose rows state this thought, after the strategy."""
    draw = trainer._draw_prompts(0)
    rollouts = trainer._generate(draw)
    demo = Demo(thought=thought, answer=Truth(number=1))
    prompts = tuple(replace(p, sample=replace(p.sample, demo=demo)) for p in rollouts.batch.prompts)
    rollouts = replace(rollouts, batch=PromptBatch(prompts, rollouts.batch.cursor))
    rewards = trainer.scorer.score(rollouts, 0.0)
    return strategy.expand(rollouts, rewards, BatchDraw(0, 0, 0, 0.0), trainer.run_parts)


def test_a_correction_is_the_thought_alone_in_the_place_of_the_last_completion(trainer: Trainer):
    strategy = plugins.build("strategy", "corrections")
    rollouts, rewards = corrected(trainer, strategy, "It is <|im_end|> red.")
    for group in rollouts.completions:
        assert [c.origin for c in group] == ["policy"] * (len(group) - 1) + ["demonstration"]
        assert group[-1].text == "<think>It is <|im_end|> red.</think>"
        assert not {*trainer.policy.stop_ids} & {*group[-1].token_ids}
    assert strategy.metrics(rollouts, rewards) == {"corrections/share": 1.0}


def test_a_function_decides_which_thoughts_are_corrected(trainer: Trainer, tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("def correct(text, sample):\n    return 'No.' if sample.demo else None\n")
    strategy = plugins.build("strategy", "corrections", {"corrector": f"{file}:correct"})
    rollouts, _ = corrected(trainer, strategy, "So.")
    assert {group[-1].text for group in rollouts.completions} == {"<think>No.</think>"}
    rollouts, _ = corrected(trainer, plugins.build("strategy", "corrections"), "")
    assert {c.origin for group in rollouts.completions for c in group} == {"policy"}
