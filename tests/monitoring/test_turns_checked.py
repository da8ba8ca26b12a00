"""Checks of a run whose rollouts have several turns: parity and the media ablation reach observations."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from helpers import small, turns
from vlmrl.config import OptimizerConfig, RewardConfig, ScoringConfig
from vlmrl.engines.hf import Hf, RunningHf
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.interaction.trail import Trail
from vlmrl.monitoring.media_ablation import make_blanks, measure_reliance
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.scoring.scorer import Scorer


@pytest.fixture(scope="module")
def made():
    return small.policy()


class Talks(Hf):
    """Writes real completions of two turns, with a noise image between them."""

    def start(self, policy):
        return RunningTalks(self, policy)


class RunningTalks(RunningHf):
    def generate(self, batch, sampling):
        said = [
            (turns.talk(self.policy, prompt, [["look", number]]),)
            for number, prompt in enumerate(batch.prompts)
        ]
        return Rollouts(batch, tuple(said), 0, 8)


def mean_logprob(made, prompts, completions):
    batch = turns.packed(Rollouts(PromptBatch(tuple(prompts)), tuple(completions), 0, 8))
    with made.generating():
        found = [
            completion_logprobs(made.base, made.family, micro, 1.0, made.pad_id)[0]
            for micro in batch.micro
        ]
    return sum(one.sum().item() for one in found) / batch.num_tokens


def test_the_probe_has_a_second_turn_with_another_medium(made):
    plain, more = make_probe_prompts(made), make_probe_prompts(made, turns=True)
    assert [p.encoded.ids for p in more[:3]] == [p.encoded.ids for p in plain]
    second = more[3]
    assert len(second.media) == 2
    assert second.media[0].size != second.media[1].size
    assert second.encoded.ids[: len(more[0].encoded.ids)] == more[0].encoded.ids
    engine = Hf().start(made)
    assert measure_parity(engine, made, more).max_abs < 1e-5


@pytest.mark.parametrize("family", ["gemma3", "llava_onevision", "qwen2_audio"])
def test_other_families_have_a_second_turn_too(family):
    made = small.policy(family)
    engine = Hf().start(made)
    assert measure_parity(engine, made, make_probe_prompts(made, turns=True)).max_abs < 1e-5


def test_blank_media_are_those_of_observations_too(made):
    engine = Talks().start(made)
    prompts = [small.prompt(made, 0, images=1), small.prompt(made, 1, images=0)]
    seen = engine.generate(PromptBatch(tuple(prompts)), None)
    blank, swapped = [], []
    for prompt, (said,) in zip(prompts, seen.completions, strict=True):
        gray = make_blanks(prompt)
        trail = Trail(made.family, made.processor, prompt)
        asked, shown, told = said.segments
        (image,) = make_blanks(dataclasses.replace(prompt, media=shown.media))
        trail = trail.write(
            dataclasses.replace(said, token_ids=asked.token_ids, logprobs=asked.logprobs)
        )
        trail = trail.observe(*trail.encode_observation(["look", image]))
        trail = trail.write(
            dataclasses.replace(said, token_ids=told.token_ids, logprobs=told.logprobs)
        )
        blank.append((trail.finish(said, "stop"),))
        encoded = made.family.encode(made.processor, prompt.text, gray)
        swapped.append(dataclasses.replace(prompt, encoded=encoded))
    expected = mean_logprob(made, prompts, seen.completions) - mean_logprob(made, swapped, blank)
    with Scorer({"noise": [RewardConfig(verifier="box_iou")]}, ScoringConfig()) as scorer:
        found = measure_reliance(engine, made, scorer, prompts, max_tokens=5, at_once=2)
    assert found.blank_logprob_drop == pytest.approx(expected, abs=1e-6)
    assert found.swap_logprob_drop is not None
    assert abs(found.swap_logprob_drop) > 1e-5  # what rounding makes is below 2e-6


@pytest.mark.parametrize("sharing", ["off", "auto", "low_memory"])
def test_the_gap_of_each_turn_is_its_own(sharing):
    made = small.policy()
    made.temperature = 0.9  # that of `talks`
    descent = torch.optim.SGD(made.trainable, lr=0.0)
    made.use_optimizer(descent, OptimizerConfig(shared_forward=sharing))
    off = (0.25, 0.5, 0.0)

    def moved(said):
        pairs = [
            (lp, gap) for turn, gap in zip(said.turns, off, strict=False) for lp in turn.logprobs
        ]
        return dataclasses.replace(said, logprobs=tuple(lp - gap for lp, gap in pairs))

    rollouts = turns.talks(made)
    groups = tuple(tuple(map(moved, group)) for group in rollouts.completions)
    batch = turns.packed(dataclasses.replace(rollouts, completions=groups), sharing != "off")
    metrics = made.update([batch], Grpo(), lr=0.0, progress=0.0)
    found = {name: gap for name, gap in metrics.items() if name.startswith("turn/")}
    expected = {f"turn/logprob_gap/{n}": gap for n, gap in enumerate(off, 1)}
    assert found == pytest.approx(expected, abs=1e-5)


def test_single_turns_have_no_gap_of_turns(made):
    prompt = small.prompt(made)
    said = turns.talk(made, prompt, [])
    batch = turns.packed(Rollouts(PromptBatch((prompt,)), ((said,),), 0, 8))
    metrics = made.update([batch], Grpo(), lr=0.0, progress=0.0)
    assert not [name for name in metrics if name.startswith("turn/")]
