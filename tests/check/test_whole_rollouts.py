"""Whole rollouts of several turns in the forecast of memory and against the engine's limits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from helpers import small
from helpers.turns import packed
from vlmrl.config import parse
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm import Vllm
from vlmrl.features.check.doctor_model import longest_of, require_engine_room, write_longest
from vlmrl.forward.logprobs import Sharing
from vlmrl.interaction.driver import Driver
from vlmrl.monitoring import memory_forecast
from vlmrl.schema import PromptBatch, Rollouts


@pytest.fixture(scope="module")
def made():
    return small.policy()


def config_of(**turns):
    rollout = {"prompts": 2, "group_size": 2, "max_tokens": 6, "turns": turns}
    optimizer = {"shared_forward": "off"}
    model = {"build": {"family": "qwen2_5_vl"}}
    return parse(
        {"run": {"name": "x"}, "model": model, "rollout": rollout, "optimizer": optimizer}
        | {"data": {"train": [{"card": "shapes", "tools": ["crop"]}]}}
        | {"rewards": [{"verifier": "box_iou"}], "evaluation": None}
    )


def bench_of(made, engine, **turns):
    prompts = [small.prompt(made, 0, images=0), small.prompt(made, 2)]
    acting = Driver(engine, {"noise": lambda space: None})
    return SimpleNamespace(config=config_of(**turns), policy=made, options=acting, prompts=prompts)


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        ({"max_turns": 3}, 3),
        ({"max_turns": 5, "max_images": 1}, 2),
        ({"max_turns": 5, "max_tokens": 20}, 3),
        ({"max_turns": 5, "max_length": 100}, 2),
    ],
)
def test_the_longest_rollout_is_what_the_limits_allow(made, limits, turns):
    bench = bench_of(made, Hf(), **limits)
    prompt = longest_of(bench)
    assert prompt is bench.prompts[1]
    said, _ = write_longest(bench.config, bench, prompt)
    assert len(said.turns) == turns
    assert len(said.token_ids) == 6 * turns
    assert sum(len(segment.media) for segment in said.segments) == turns - 1


def test_a_narrower_engine_is_told_in_one_line(made):
    narrow = bench_of(made, Vllm(max_images=2), max_turns=4)
    found = require_engine_room(narrow, narrow.prompts[1])
    assert found is not None and found.verdict == "warn"
    assert "4 images exceed the engine's max_images (2)" in found.text
    short = bench_of(made, Vllm(max_model_len=100), max_turns=4)
    found = require_engine_room(short, short.prompts[1])
    assert found is not None and "max_model_len (100)" in found.text
    assert require_engine_room(bench_of(made, Vllm(), max_turns=4), short.prompts[1]) is None


def test_the_forecast_counts_what_is_shown(made):
    bench = bench_of(made, Hf(), max_turns=3)
    prompt, config = bench.prompts[1], bench.config
    whole, _ = write_longest(config, bench, prompt)
    found = memory_forecast.measure_activations(config, made, prompt, 4, whole)[0]
    rollouts = Rollouts(PromptBatch((prompt,) * 2), ((whole, whole),) * 2)
    (micro,) = packed(rollouts).micro
    off = Sharing("off", 0.0, made.sharing.possible, verified=True)
    real = memory_forecast.measure_saved_bytes(made, micro, off)
    assert found == pytest.approx(real, rel=0.05)
    without = dataclasses.replace(whole, suffix=None, segments=())
    assert found > 1.5 * memory_forecast.measure_activations(config, made, prompt, 4, without)[0]
    assert torch.is_grad_enabled()
