"""The experts that an engine chose: what a server's answer says of them, and engines that say nothing."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from helpers.driving import Scripted
from helpers.small import policy
from vlmrl.config import Config, load
from vlmrl.config.exclusions import refuse_parts
from vlmrl.engines.routed_experts import join_group, read_routes, routers_of
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.errors import UserError

PROMPT = 3


def choice(told: np.ndarray | None, num_tokens: int) -> dict[str, Any]:
    """A choice of vLLM's `/inference/v1/generate`, as far as it matters here."""
    packed = io.BytesIO()
    if told is not None:
        np.save(packed, told)
    text = None if told is None else base64.b64encode(packed.getvalue()).decode()
    return {"token_ids": list(range(num_tokens)), "routed_experts": text}


def told(num_tokens: int, seed: int) -> np.ndarray:
    """Two of four experts in each of two layers, of which GLM's first one has none."""
    return np.random.default_rng(seed).integers(0, 4, (num_tokens, 2, 2)).astype(np.uint8)


def test_a_servers_answer_is_read_by_layers_that_have_experts() -> None:
    routers = routers_of(policy("glm4v_moe", router_replay=True))
    assert list(routers) == [1]
    arrays = [told(PROMPT + n - 1, seed=n) for n in (4, 1)]
    choices = [choice(a, n) for a, n in zip(arrays, (4, 1), strict=True)]
    long, short = read_routes(routers, PROMPT, choices)
    assert long is not None and short is not None
    assert np.array_equal(long.prompt, arrays[0][:PROMPT, 1:])
    assert short.prompt is long.prompt  # once a group
    assert np.array_equal(long.written, arrays[0][PROMPT:, 1:])
    assert short.written.shape == (0, 1, 2)


def test_an_answer_that_cannot_be_of_these_tokens_is_refused() -> None:
    routers = routers_of(policy("qwen3_vl_moe", router_replay=True))
    with pytest.raises(UserError, match="start it with --enable-return-routed-experts"):
        read_routes(routers, PROMPT, [choice(None, 4)])
    with pytest.raises(ValueError, match="expected 6 tokens, more than 1 layers and 2 of each"):
        read_routes(routers, PROMPT, [choice(told(5, seed=0), 4)])


def test_nothing_is_read_without_replay() -> None:
    routers = routers_of(policy("qwen3_vl_moe"))
    assert read_routes(routers, PROMPT, [choice(None, 4)]) == [None]


def test_what_one_completion_does_not_know_of_the_prompt_another_one_may() -> None:
    first, second = (told(PROMPT + 1, seed) for seed in (0, 1))
    first[:2], second[:1] = 255, 255
    one, other = join_group([first, second], PROMPT)
    assert (one.prompt[0] == 255).all()
    assert np.array_equal(one.prompt[1], second[1]) and np.array_equal(one.prompt[2], first[2])
    assert other.prompt is one.prompt
    assert np.array_equal(other.written, second[PROMPT:])


def with_scripted(*more: str) -> Config:
    return load("quickstart", [f"engine={Scripted.__module__}:Scripted", *more])


def test_engines_that_tell_nothing_are_refused_by_name() -> None:
    with pytest.raises(
        UserError, match=r"engine '.*:Scripted' does not return which experts it chose"
    ):
        refuse_parts(with_scripted("model.router_replay=true"))
    refuse_parts(with_scripted())
    with pytest.raises(UserError, match="on GPUs only; use engine vllm or hf"):
        VllmServer().check(policy("qwen3_vl_moe", router_replay=True))
