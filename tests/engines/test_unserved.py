"""A family that vLLM cannot serve is refused in one line, before vLLM starts."""

from __future__ import annotations

import pytest

from helpers.small import policy
from vlmrl import plugins
from vlmrl.errors import UserError


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_aya_vision_through_vllm_is_refused_with_the_reason(engine: str) -> None:
    built = plugins.build("engine", engine, {})
    with pytest.raises(UserError, match=r"Cohere2 .* use engine: hf"):
        built.check(policy("aya_vision"))


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_more_videos_than_vllm_takes_of_a_family_are_refused(engine: str) -> None:
    built = plugins.build("engine", engine, {"max_videos": 2})
    with pytest.raises(UserError, match=r"vLLM takes at most 1 video of a prompt .* got 2"):
        built.check(policy("glm4v_moe"))
