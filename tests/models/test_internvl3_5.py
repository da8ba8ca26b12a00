"""InternVL3.5: InternVL with the text models of Qwen3, Qwen3 with experts, and gpt-oss."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from helpers.prompts import ask_about_images, hf_inputs, logits
from helpers.shared_forward import GRADIENT, LOGPROBS, gaps, micro_batch
from helpers.small import CORPUS, TEXT, advantages, mixed_batch, policy_by
from vlmrl.config import BuildConfig, LoraConfig, ModelConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.forward.packing import pack
from vlmrl.models.loading import load_model
from vlmrl.parts.families.internvl import Internvl
from vlmrl.policy.policy import Policy

CLOSE = {"atol": 1e-5, "rtol": 0}
KINDS = {
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
}


@functools.cache
def folder(kind: str, home: Path) -> str:
    """A small checkpoint with this text model, as transformers writes it."""
    build = BuildConfig(family="internvl", text={**TEXT, **KINDS[kind]}, vocab_size=320)
    recipe = replace(Internvl.small, text=kind)
    family = type("Small", (Internvl,), {"small": recipe})()
    model, processor = family.build(build, CORPUS, 0)
    path = home / kind
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return str(path)


def policy_of(kind: str, home: Path, **fields: object) -> Policy:
    return policy_by(ModelConfig(path=folder(kind, home), **fields))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("internvl3_5")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[], [(64, 48)], [(300, 90), (100, 100)]], ids=str)
def test_logits_equal_those_of_transformers(
    kind: str, sizes: list[tuple[int, int]], home: Path
) -> None:
    model = load_model(ModelConfig(path=folder(kind, home)))
    theirs = transformers.AutoModelForMultimodalLM.from_pretrained(folder(kind, home)).eval()
    made = ask_about_images(model, *sizes)
    with torch.no_grad():
        expected = theirs(**hf_inputs(model, made)).logits
    torch.testing.assert_close(logits(model, [made]), expected, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_of_the_engine_are_the_trainers(kind: str, home: Path) -> None:
    made = policy_of(kind, home)
    rollouts = Hf().start(made).generate(mixed_batch(made), Sampling(n=3, max_tokens=6, seed=1))
    (packed,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=700, max_tokens=6)
    for micro in packed.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_the_shared_forward_equals_the_plain_one(kind: str, home: Path) -> None:
    made = policy_of(kind, home)
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_reach_attention_and_dense_layers(kind: str, home: Path) -> None:
    made = policy_of(kind, home, lora=LoraConfig(rank=4, towers=["language"]))
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in made.named}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    dense = {"gate_proj", "up_proj", "down_proj"} if kind == "qwen3" else set()
    assert layers == attention | dense
