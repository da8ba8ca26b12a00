"""A family that vLLM cannot serve is refused in one line, before vLLM starts."""

from __future__ import annotations

import pytest
import torch

from helpers.small import policy
from vlmrl import plugins
from vlmrl.errors import UserError


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("aya_vision", r"no Aya Vision since 0\.24"),
        ("voxtral", r"Voxtral in Mistral's own format alone"),
        ("gemma3n", r"embeds the ends of Gemma 3n's images and audio"),
    ],
)
def test_a_family_is_refused_with_the_reason(family: str, reason: str, engine: str) -> None:
    built = plugins.build("engine", engine, {})
    with pytest.raises(UserError, match=f"{reason}.* use engine: hf"):
        built.check(policy(family))


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_more_videos_than_vllm_takes_of_a_family_are_refused(engine: str) -> None:
    built = plugins.build("engine", engine, {"max_videos": 2})
    with pytest.raises(UserError, match=r"vLLM takes at most 1 video of a prompt .* got 2"):
        built.check(policy("glm4v_moe"))


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_states_are_served_on_a_cpu_in_bfloat16_alone(engine: str) -> None:
    made = policy("qwen3_5")
    if made.device.type != "cpu":
        pytest.skip("a GPU serves them in any dtype")
    with pytest.raises(UserError, match=r"option dtype: .* in bfloat16 alone, got float32"):
        plugins.build("engine", engine, {}).check(made)
    plugins.build("engine", engine, {"dtype": "bfloat16"}).check(made)


@pytest.mark.parametrize("engine", ["vllm", "vllm_server"])
def test_what_vllm_cannot_do_on_a_cpu_is_refused_before_it_starts(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = policy(dtype="bfloat16")
    if made.device.type != "cpu":
        pytest.skip("a GPU does it")
    with pytest.raises(UserError, match=r"option quantization: vLLM has fp8 on GPUs only"):
        plugins.build("engine", engine, {"quantization": "fp8"}).check(made)
    guesses = {"speculative_tokens": 4, "dtype": "bfloat16"}
    with pytest.raises(
        UserError, match=r"expected 0 with layers that hold a state on a CPU.* got 4"
    ):
        plugins.build("engine", engine, guesses).check(policy("qwen3_5"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    with pytest.raises(UserError, match=r"expected 0 with a CPU without AVX-512.* got 4"):
        plugins.build("engine", engine, guesses).check(made)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    plugins.build("engine", engine, guesses).check(made)


def test_guesses_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match=r"1 <= ngram_min <= ngram_max, got 4, 3 and 2"):
        plugins.build("engine", "vllm", {"speculative_tokens": 4, "ngram_min": 3, "ngram_max": 2})
    made = policy("qwen3_vl_moe", router_replay=True)
    with pytest.raises(UserError, match=r"expected 0 with model\.router_replay, got 4"):
        plugins.build("engine", "vllm", {"speculative_tokens": 4}).check(made)
