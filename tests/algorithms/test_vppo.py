"""VPPO: which tokens are trained on, and by how much, against slow code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from helpers.losses import recipe_of
from helpers.rollouts_ahead import SPARSE, ahead_config, begin_training
from vlmrl.schema import MicroBatch, TrainBatch

LENGTHS = [5, 3, 4, 0]


def micro(seed: int) -> MicroBatch:
    """Four completions of 5, 3, 4 and no tokens with log-probs with and without the media."""
    noise = torch.Generator().manual_seed(seed)
    old = -1 - torch.rand(4, 5, generator=noise)
    blind = old + 0.7 * torch.randn(4, 5, generator=noise)
    blind[0, 1] = old[0, 1] + 9  # past the bound
    return MicroBatch(
        prompts=(),
        group=torch.zeros(4).long(),
        token_ids=torch.zeros(4, 5).long(),
        mask=torch.arange(5) < torch.tensor(LENGTHS)[:, None],
        sampling_logprobs=old,
        advantages=torch.tensor([[1.5], [-0.5], [-0.7], [0.0]]),
        weights=torch.ones(4),
        old_logprobs=old,
        extra={"masked_media": blind},
    )


def slow(
    micros: list[MicroBatch], share: float, least: float
) -> tuple[list[list[int]], list[float]]:
    """Return the chosen tokens of each completion, and the factor of its advantage."""
    gains = []
    for one in micros:
        assert one.old_logprobs is not None
        pairs = zip(
            one.old_logprobs.tolist(), one.extra["masked_media"].tolist(), LENGTHS, strict=True
        )
        for old, blind, length in pairs:
            gaps = [b - o for o, b in zip(old[:length], blind[:length], strict=True)]
            gains.append([min(10.0, math.exp(gap) - gap - 1) for gap in gaps])
    chosen = []
    for of_tokens in gains:
        best = sorted(range(len(of_tokens)), key=lambda t: -of_tokens[t])
        chosen.append(sorted(best[: math.ceil(share * len(of_tokens))]))
    means = [sum(g) / len(g) for g in gains if g]
    lowest, highest = min(means), max(means)
    unit = [(m - lowest) / (highest - lowest) for m in means]
    slope = (1 - least) / (sum(unit) / len(unit) + 1e-8)
    factors = iter([least + slope * u for u in unit])
    return chosen, [next(factors) if g else 1.0 for g in gains]


def test_tokens_and_factors_are_those_of_slow_code() -> None:
    micros = [micro(0), micro(1)]
    recipe = recipe_of("vppo", share=0.4, least_factor=0.9)
    (found,) = recipe.prepare([TrainBatch(tuple(micros), 24, 8, 5)])
    chosen, factors = slow(micros, 0.4, 0.9)
    weights = torch.cat([one.extra["token_weight"] for one in found.micro])
    assert [row.nonzero()[:, 0].tolist() for row in weights] == chosen
    before = torch.cat([one.advantages for one in micros])[:, 0]
    after = torch.cat([one.advantages for one in found.micro])[:, 0]
    live = [row for row, length in enumerate(LENGTHS * 2) if length]
    expected = (before * torch.tensor(factors))[live]
    torch.testing.assert_close(after[live], expected, atol=1e-5, rtol=1e-5)
    assert sum(factors[row] for row in live) / len(live) == pytest.approx(1)
    assert all((one.extra["imitate"] == 0.06).all() for one in found.micro)


def test_media_that_change_nothing_leave_the_advantages_as_they_are() -> None:
    one = micro(0)
    assert one.old_logprobs is not None
    blind = replace(one, extra={"masked_media": one.old_logprobs})
    (found,) = recipe_of("vppo", entropy_penalty=0.0).prepare([TrainBatch((blind,), 12, 4, 5)])
    assert torch.equal(found.micro[0].advantages, one.advantages)
    assert found.micro[0].extra["token_weight"].sum(-1).tolist() == [2, 2, 2, 0]
    assert "imitate" not in found.micro[0].extra
    empty = [TrainBatch((), 0, 0, 9)]
    assert list(recipe_of("vppo").prepare(empty)) == empty


@pytest.mark.slow
def test_a_whole_step_trains_on_the_tokens_that_the_image_changes(tmp_path) -> None:
    options = "{name: vppo, options: {dynamic_sampling_batches: 0}}"
    with begin_training(ahead_config(tmp_path / "run", f"algorithm={options}", SPARSE)) as trainer:
        metrics = trainer.step().metrics
    assert math.isfinite(metrics["loss/total"]) and metrics["update/skipped"] == 0
