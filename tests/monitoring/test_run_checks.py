"""What a run asks of itself: does the engine compute what the trainer does, does the model look?"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import small
from helpers.runs import CLOCKS
from vlmrl.assemble import lifecycle
from vlmrl.config import ChecksConfig, RewardConfig, ScoringConfig, load
from vlmrl.engines.base import Capabilities, Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.monitoring.media_ablation import Reliance, borrow_media, make_blanks, measure_reliance
from vlmrl.monitoring.run_checks import Checks
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import PromptBatch
from vlmrl.scoring.scorer import Scorer


class Remote(Hf):
    """An engine that does not claim to be exact and may hold another policy's weights."""

    capabilities = Capabilities(every_rank=True)


def checks(policy, said: list[str], engine=None, **settings) -> Checks:
    engine = (engine or Hf()).start(policy)
    prompts = [small.prompt(policy, i) for i in range(4)]
    scorer = Scorer({"noise": [RewardConfig(verifier="box_iou")]}, ScoringConfig())
    return Checks(ChecksConfig(**settings), policy, engine, scorer, prompts, 8, 4, said.append)


# ------------------------------------------------------------------------------------- media ablation


@pytest.mark.parametrize("family", small.FAMILIES)
def test_other_pictures_cost_a_model_that_looks_its_answers_and_a_blind_one_nothing(family):
    said: list[str] = []
    sighted = checks(small.policy(family), said)(0, 0.0)
    assert sighted["media_ablation/blank_logprob_drop"] > 0.05
    assert sighted["media_ablation/swap_logprob_drop"] > 0.05
    assert said == []
    blind = checks(small.blind(small.policy(family)), said)(0, 0.0)
    assert abs(blind["media_ablation/blank_logprob_drop"]) < 1e-6
    assert abs(blind["media_ablation/swap_logprob_drop"]) < 1e-6
    assert blind["media_ablation/blank_reward_drop"] == 0
    assert len(said) == 1 and "the model hardly looks" in said[0]


def test_the_drop_is_that_of_the_engines_own_log_probs_under_blank_pictures():
    policy = small.policy()
    prompt = small.prompt(policy, 1)
    engine = Hf().start(policy)
    with Scorer({"noise": [RewardConfig(verifier="box_iou")]}, ScoringConfig()) as scorer:
        found = measure_reliance(engine, policy, scorer, [prompt], max_tokens=3, at_once=4)
    (written,) = engine.generate(PromptBatch((prompt,)), Sampling(1, 3, greedy=True)).completions[0]
    gray = policy.processor(text=[prompt.text], images=make_blanks(prompt), return_tensors="pt")
    ids = torch.cat([gray["input_ids"][0], torch.tensor(written.token_ids)])[None]
    gray |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in gray:
        kinds = (ids == policy.base.config.image_token_id).long()
        gray |= {"mm_token_type_ids": kinds}
    with policy.generating():
        logprobs = policy.base(**gray).logits[0].log_softmax(-1)
    count = len(written.token_ids)
    blank = logprobs[-count - 1 : -1].gather(1, torch.tensor(written.token_ids)[:, None]).mean()
    assert found.blank_logprob_drop == pytest.approx(
        np.mean(written.logprobs) - blank.item(), abs=1e-5
    )
    assert found.swap_logprob_drop is None  # there is no other prompt


def test_a_floor_can_stop_the_run_and_none_never_warns():
    said: list[str] = []
    policy = small.blind(small.policy())
    with pytest.raises(
        UserError, match=r"after 0 steps: the model hardly looks.*media_ablation_min_drop"
    ):
        checks(policy, said, media_ablation_stop=True)(0, 0.0)
    checks(policy, said, media_ablation_min_drop=None)(0, 0.0)
    assert said == []


def test_a_model_that_reacts_to_gray_but_not_to_other_pictures_is_told_apart():
    assert "does not tell its media apart" in (Reliance(1.0, 0.001, 0.0).complaint(0.01) or "")
    assert Reliance(1.0, None, None).complaint(0.01) is None
    assert Reliance(1.0, None, None).metrics() == {"media_ablation/blank_logprob_drop": 1.0}


def test_a_prompt_is_lent_the_next_other_picture_of_its_size_or_one_made_to_fit():
    policy = small.policy()
    base = small.prompt(policy, 0)

    def showing(colour: str, size: tuple[int, int], copies: int = 1):
        return replace(base, media=(Image.new("RGB", size, colour),) * copies)

    red, same, blue = (showing(c, (56, 56)) for c in ("red", "red", "blue"))
    wide = showing("green", (84, 56), copies=2)
    lent = borrow_media([red, same, wide, blue])
    assert [image.getpixel((0, 0)) for (image,) in (lent[0], lent[1], lent[3])] == [
        (0, 0, 255),
        (0, 0, 255),
        (255, 0, 0),
    ]
    assert [image.size for image in lent[2]] == [(84, 56)] * 2
    assert lent[2][0].getpixel((0, 0)) == (0, 0, 255)
    assert borrow_media([red, same]) == [None, None]


# ------------------------------------------------------------------------------------- parity


def test_parity_is_asked_at_the_start_after_the_first_update_and_every_n_steps():
    asked = checks(small.policy(), [], Remote(), parity_every=5, media_ablation_every=0)
    found = {done: asked(done, 0.0) for done in range(11)}
    assert [done for done, metrics in found.items() if metrics] == [0, 1, 5, 10]
    assert found[0]["parity/mean_abs"] < 1e-5


def test_an_exact_engine_is_compared_only_on_wish():
    assert not checks(small.policy(), [], media_ablation_every=0)(0, 0.0)
    assert "parity/kl" in checks(small.policy(), [], media_ablation_every=0, parity_exact=True)(
        0, 0.0
    )


def test_an_engine_with_other_weights_stops_the_run_with_numbers_and_causes():
    policy, other, engine = small.policy(), small.policy(), Remote()
    with torch.no_grad():
        for weight in other.trainable:
            weight.mul_(1.05)
    asked = checks(policy, [], engine, media_ablation_every=0)
    asked.engine.sync(other)
    with pytest.raises(UserError, match=r"parity after 0 steps: .*mean \|Δ log p\| .*Likely: weig"):
        asked(0, 0.0)
    tolerant = checks(policy, [], engine, media_ablation_every=0, parity_tolerance=10.0)
    tolerant.engine.sync(other)
    tolerant(0, 0.0)


@pytest.mark.parametrize("micro_tokens", [10**6, 1])
def test_every_step_says_how_far_the_engines_log_probs_are_from_the_trainers(micro_tokens):
    policy = small.policy()
    engine = Hf().start(policy)
    rollouts = engine.generate(small.mixed_batch(policy), Sampling(n=2, max_tokens=5, seed=1))
    rng, gaps = np.random.default_rng(0), []

    def misreported(completion):
        gap = rng.normal(0, 0.3, len(completion.logprobs))
        gaps.extend(gap)
        return replace(completion, logprobs=tuple(np.array(completion.logprobs) - gap))

    wrong = tuple(tuple(map(misreported, group)) for group in rollouts.completions)
    rollouts = replace(rollouts, completions=wrong)
    cut = {"updates": 1, "micro_tokens": micro_tokens, "max_tokens": 5}
    batches = pack(rollouts, small.advantages(rollouts), **cut)
    found = policy.update(batches, Grpo(), lr=0.0, progress=0.0)
    gap = np.array(gaps)
    assert found["rollout/logprob_gap"] == pytest.approx(np.abs(gap).mean(), rel=1e-4)
    assert found["rollout/logprob_kl"] == pytest.approx((np.exp(gap) - 1 - gap).mean(), rel=1e-4)
    assert found["rollout/logprob_max_ratio"] == pytest.approx(np.exp(np.abs(gap).max()), rel=1e-4)


# ------------------------------------------------------------------------------------ in a run


def test_checks_touch_no_generator_and_no_weight():
    policy = small.policy()
    before = {name: value.clone() for name, value in policy.weights().items()}
    torch.manual_seed(3)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    checks(policy, [], parity_exact=True)(0, 0.0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]
    assert all(torch.equal(value, before[name]) for name, value in policy.weights().items())
    assert policy.base.training


TINY = [
    "run.threads=1",
    "run.steps=3",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft=null",
    "evaluation=null",
    "rollout.prompts=2",
    "rollout.group_size=2",
    "rollout.max_tokens=4",
]


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_has_its_checks_on_the_curves_and_learns_the_same_without_them(tmp_path):
    asked = [
        "checks.media_ablation_every=2",
        "checks.media_ablation_prompts=3",
        "checks.parity_exact=true",
    ]
    silent = ["checks.media_ablation_every=0"]
    for name, more in (("asked", asked), ("silent", silent)):
        lifecycle.train(load("quickstart", [f"run.dir={tmp_path / name}", *TINY, *more]))
    one, two = lines(tmp_path / "asked"), lines(tmp_path / "silent")
    assert ["media_ablation/swap_logprob_drop" in line for line in one] == [True, False, True]
    assert ["parity/mean_abs" in line for line in one] == [True, True, False]
    extra = ("media_ablation/", "parity/", *CLOCKS)
    plain = [{k: v for k, v in line.items() if not k.startswith(extra)} for line in one]
    assert plain == [{k: v for k, v in line.items() if not k.startswith(CLOCKS)} for line in two]
    weights = [
        tmp_path / name / "checkpoints/step-3/model.safetensors" for name in ("asked", "silent")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
