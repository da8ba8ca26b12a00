"""What must hold of every engine, on a small model; those that are not installed are skipped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers.contracts import require
from helpers.small import mixed_batch, policy
from vlmrl import plugins
from vlmrl.engines.base import (
    Capabilities,
    ConcurrentRunningEngine,
    Engine,
    RunningEngine,
    Sampling,
)
from vlmrl.errors import UserError
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity
from vlmrl.policy.policy import Policy
from vlmrl.schema import PromptBatch, Rollouts

KIND = "engine"
APART = True
SMALL = {"max_model_len": 1024, "max_num_seqs": 64, "kv_cache_gib": 0.125, "block_size": 32}
OPTIONS = {
    "vllm": {**SMALL, "enforce_eager": True},
    "vllm_server": {**SMALL, "enforce_eager": True},
}
"""Options of engines that would take all of a small machine."""
MAX_TOKENS = 6


@pytest.fixture(scope="module")
def made() -> Policy:
    return policy()


@pytest.fixture(scope="module")
def engine(part: str, loaded: Any, made: Policy) -> Iterator[RunningEngine]:
    required = [name for name, option in plugins.options_of(loaded).items() if option.required]
    require(not required, part, f"give {required} a default, so that the contract can build it")
    options = plugins.build("engine", part, OPTIONS.get(part))
    try:
        engine = options.start(made)
    except UserError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise
    yield engine
    engine.close()
    engine.close()


def test_it_is_an_engine(part: str, loaded: Any) -> None:
    require(issubclass(loaded, Engine), part, "derive it from vlmrl.engines.base.Engine")
    require(loaded.__dataclass_params__.frozen, part, "make its options a frozen dataclass")
    require(loaded.start is not Engine.start, part, "define the method start")
    said = isinstance(loaded.capabilities, Capabilities)
    require(said, part, "say in `capabilities` what it can do")
    require("capabilities" not in plugins.options_of(loaded), part, "capabilities is no option")


def test_what_start_returns_is_a_running_engine(
    part: str, loaded: Any, engine: RunningEngine
) -> None:
    require(isinstance(engine, RunningEngine), part, "let start return a RunningEngine")
    for method in ("generate", "sync"):
        defined = getattr(type(engine), method) is not getattr(RunningEngine, method)
        require(defined, part, f"define the method {method}, as the base class says")
    same = engine.capabilities == loaded.capabilities
    require(same, part, "give the running engine the capabilities of its options")
    if engine.capabilities.concurrent:
        fits = isinstance(engine, ConcurrentRunningEngine)
        require(fits, part, "derive what runs from ConcurrentRunningEngine")


def test_it_writes_whole_groups_in_order_with_the_log_probs_of_what_it_sampled(
    part: str, engine: RunningEngine, made: Policy
) -> None:
    batch = mixed_batch(made)
    rollouts = engine.generate(batch, Sampling(n=3, max_tokens=MAX_TOKENS, seed=1))
    require(rollouts.batch is batch, part, "return Rollouts of the batch that was given")
    require(rollouts.shape == (len(batch), 3), part, f"expected [4, 3], got {rollouts.shape}")
    _require_sound(part, rollouts, made)


def test_it_answers_what_the_checks_ask(part: str, engine: RunningEngine, made: Policy) -> None:
    prompts = make_probe_prompts(made)
    greedy = Sampling(n=1, max_tokens=MAX_TOKENS, greedy=True)
    rollouts = engine.generate(PromptBatch(prompts), greedy)
    _require_sound(part, rollouts, made)
    found = measure_parity(engine, made, prompts, n=2, max_tokens=MAX_TOKENS)
    if engine.capabilities.exact:
        require(found.mean_abs < 1e-4, part, f"exact, but log-probs differ by {found.mean_abs:g}")


def test_the_same_call_gives_the_same_completions(
    part: str, engine: RunningEngine, made: Policy
) -> None:
    batch = mixed_batch(made)
    for sampling in (
        Sampling(n=2, max_tokens=MAX_TOKENS, seed=7),
        Sampling(n=2, max_tokens=MAX_TOKENS, greedy=True),
    ):
        first, again = (_tokens(engine.generate(batch, sampling)) for _ in range(2))
        require(first == again, part, f"the same prompts, {sampling} and weights gave others")


def test_new_weights_are_used_after_a_sync(part: str, engine: RunningEngine, made: Policy) -> None:
    batch = mixed_batch(made)
    sampling = Sampling(n=2, max_tokens=MAX_TOKENS, seed=3)
    engine.generate(batch, sampling)
    with torch.no_grad():
        for weight in made.trainable:
            weight.mul_(1.1)
    made.version += 1
    engine.sync(made)
    again = engine.generate(batch, sampling)
    _require_sound(part, again, made)
    versions = {version for group in again.completions for c in group for version, _ in c.versions}
    require(versions == {made.version}, part, f"versions: expected {made.version}, got {versions}")


def _require_sound(part: str, rollouts: Rollouts, made: Policy) -> None:
    banned, stops = set(made.banned.tolist()), set(made.stop_ids)
    for completion in (c for group in rollouts.completions for c in group):
        ids, logprobs = completion.token_ids, completion.logprobs
        require(0 < len(ids) <= MAX_TOKENS, part, f"write 1 to {MAX_TOKENS} tokens, not {len(ids)}")
        require(len(logprobs) == len(ids), part, "give each token one log-prob")
        fine = all(math.isfinite(value) and value <= 0 for value in logprobs)
        require(fine, part, f"log-probs are finite and at most 0, got {logprobs}")
        require(not banned & set(ids), part, "sample none of policy.banned")
        stopped = ids[-1] in stops
        require(not stops & set(ids[:-1]), part, "end at the first of policy.stop_ids")
        reason = "stop" if stopped else "length"
        require(completion.finish_reason == reason, part, f"finish_reason is {reason!r} here")
        counted = sum(count for _, count in completion.versions)
        require(counted == len(ids), part, "versions say which weights sampled each token")


def _tokens(rollouts: Rollouts) -> list[list[tuple[int, ...]]]:
    return [[c.token_ids for c in group] for group in rollouts.completions]
