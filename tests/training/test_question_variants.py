"""Share-GRPO: which wordings are asked, what is done to images, and who is trained on whose answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.parts.strategies.question_variants import CHANGES, QuestionVariants, read_variants
from vlmrl.schema import Media, PromptBatch, Rewards, Rollouts, Sample, Truth
from vlmrl.training.strategy import BatchDraw
from vlmrl.training.trainer import Trainer

DRAW = BatchDraw(0, 0, 0, 0.0)
WORDINGS = ["Which way?", "<image> Where to?"]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("variants") / "run"
    with begin_training(ahead_config(folder, "engine=hf", "rollout.group_size=5")) as built:
        yield built


@pytest.fixture(scope="module")
def scored(trainer: Trainer) -> tuple[Rollouts, Rewards]:
    """A batch of three rows, of which the last has no other wording; their truths have no places."""
    rollouts = trainer._generate(trainer._draw_prompts(0))
    rewards = trainer.scorer.score(rollouts, 0.0)
    prompts = [
        replace(p, sample=replace(p.sample, truth=Truth(text=("x",)), meta=meta))
        for p, meta in zip(
            rollouts.batch.prompts,
            [{"new_questions": WORDINGS}, {"new_questions": str(WORDINGS)}, {}],
            strict=True,
        )
    ]
    return replace(rollouts, batch=PromptBatch(tuple(prompts), rollouts.batch.cursor)), rewards


def test_answers_to_either_wording_are_in_both_groups(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    before, paid = scored
    strategy = QuestionVariants(chance=0.0)
    after, rewards = strategy.expand(before, paid, DRAW, trainer.run_parts)
    assert after.shape == (5, 5) and rewards.total.shape == (5, 5) and len(rewards.verdicts) == 5
    assert after.completions[2] == before.completions[2]
    for row, variant in ((0, 3), (1, 4)):
        one, other = after.completions[row], after.completions[variant]
        assert [c.origin for c in one] == ["policy"] * 3 + ["distortion"] * 2
        assert [c.origin for c in other] == ["policy"] * 2 + ["distortion"] * 3
        assert one[:3] == before.completions[row][:3]
        assert [c.token_ids for c in other] == [c.token_ids for c in (*one[3:], *one[:3])]
        order = [3, 4, 0, 1, 2]
        assert torch.equal(rewards.total[variant], rewards.total[row][order])
        assert rewards.verdicts[variant] == tuple(rewards.verdicts[row][g] for g in order)
        prompt, own = after.batch.prompts[variant], after.batch.prompts[row]
        assert prompt.place is None and own.place is not None and prompt.home == own.home
        assert prompt.sample.text in ("Which way?", "Where to?")
        assert [m.tobytes() for m in prompt.images] == [m.tobytes() for m in own.images]
    drawn = strategy.metrics(after, rewards)["question_variants/reward"]
    assert drawn == pytest.approx(float(rewards.total[:2, 3:].mean()))
    again, same = strategy.expand(before, paid, DRAW, trainer.run_parts)
    assert again.completions == after.completions and torch.equal(same.total, rewards.total)


def test_images_are_changed_as_their_prompt_says_unless_the_truth_has_places(
    trainer: Trainer, scored: tuple[Rollouts, Rewards]
) -> None:
    rollouts, strategy = scored[0], QuestionVariants(chance=1.0)
    prompt, rng, lines = rollouts.batch.prompts[0], np.random.default_rng(0), set()
    for _ in range(60):
        variant = strategy._draw(prompt, trainer.run_parts, rng)
        assert variant is not None
        line = next(part for part in variant.sample.parts if isinstance(part, str))
        lines.add(line)
        assert line in {text for text, _ in CHANGES}
        assert variant.images[0].tobytes() != prompt.images[0].tobytes()
    assert lines == {text for text, _ in CHANGES}
    placed = replace(prompt, sample=replace(prompt.sample, truth=Truth(boxes=())))
    variant = strategy._draw(placed, trainer.run_parts, rng)
    assert variant is not None and variant.images[0].tobytes() == prompt.images[0].tobytes()


def test_each_change_moves_pixels_as_slow_code_does() -> None:
    values = np.random.default_rng(3).integers(60, 190, (4, 6, 3), np.uint8)
    height, width, _ = values.shape
    rotated = {
        "90 degrees clockwise": lambda y, x: (x, height - 1 - y),
        "90 degrees counterclockwise": lambda y, x: (width - 1 - x, y),
        "180 degrees": lambda y, x: (height - 1 - y, width - 1 - x),
        "flipped vertically. ": lambda y, x: (height - 1 - y, x),
        "flipped horizontally": lambda y, x: (y, width - 1 - x),
        "vertically and horizontally": lambda y, x: (height - 1 - y, width - 1 - x),
    }
    tried = set()
    spreads = []
    for line, change in CHANGES:
        found = np.asarray(change(Image.fromarray(values), np.random.default_rng(5)))
        name = next((name for name in rotated if name in line), None)
        if name is None:
            gap = found.astype(float) - values
            noise = np.random.default_rng(5).normal(0, 1, values.shape)
            spread = float((gap * noise).sum() / (noise * noise).sum())
            spreads.append(spread)
            assert np.abs(gap - spread * noise).max() < 60 and "noise" in line
            continue
        tried.add(name)
        for y in range(height):
            for x in range(width):
                assert (found[rotated[name](y, x)] == values[y, x]).all(), name
    assert tried == set(rotated)
    assert spreads == pytest.approx([10, 25, 50], rel=0.15)


@pytest.mark.parametrize(
    ("stated", "texts"),
    [
        (None, []),
        ("Where to?", ["Where to?"]),
        ("[left] or right?", ["[left] or right?"]),
        ('["a", "b"]', ["a", "b"]),
        ("['a', \"it's\"]", ["a", "it's"]),
        (["", "<image>", "a"], ["a"]),
        (["<image> a", "<image><image> b", "a <image> b"], ["a", "a b"]),
        ("[__import__('os').getcwd()]", ["[__import__('os').getcwd()]"]),
    ],
)
def test_wordings_are_read_and_those_whose_marks_do_not_fit_left_out(
    stated: object, texts: list[str]
) -> None:
    image = Media("image", data=b"-")
    sample = Sample("1", "s", (image, "Why?"), Truth(), meta={"new_questions": stated})
    worded = read_variants(sample, "new_questions")
    assert [each.text for each in worded] == texts
    assert all(each.media == (image,) for each in worded)


def test_a_run_trains_on_both_groups_of_rows_of_a_table(tmp_path: Path) -> None:
    Image.new("RGB", (56, 56), (90, 20, 30)).save(tmp_path / "a.png")
    row = {"image": "a.png", "question": "Which?", "answer": "7", "new_questions": WORDINGS}
    rows = "".join(f"{json.dumps({**row, 'id': str(n)})}\n" for n in range(8))
    (tmp_path / "train.jsonl").write_text(rows)
    columns = "{image: image, question: question, answer: answer}"
    data = f"{{card: table, options: {{path: {tmp_path}/train.jsonl, columns: {columns}}}}}"
    more = ["strategies=[{name: question_variants, options: {chance: 1}}]", "algorithm=share_grpo"]
    more += [f"data.train=[{data}]", "engine=hf", "optimizer.minibatches=3", "rollout.group_size=4"]
    with begin_training(ahead_config(tmp_path / "run", *more)) as trainer:
        report = trainer.step()
    assert report.rollouts.shape == (6, 4) and report.advantages.values.shape == (6, 4)
    assert report.metrics["update/skipped"] == 0
    assert "question_variants/reward" in report.metrics


def test_a_chance_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UserError, match="expected chance"):
        plugins.build("strategy", "question_variants", {"chance": 1.5})
