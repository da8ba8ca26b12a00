"""Engine `vllm` on small policies."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import torch

from helpers.small import TEXT, policy, policy_by
from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.engines.vllm import Vllm
from vlmrl.engines.vllm_server import VllmServer

SERVED_TEXT = {
    # In each layer vLLM gives media the embedding of id 0, transformers that of padding, 0 as published.
    "gemma4": {"hidden_size_per_layer_input": 0},
    "lfm2_vl": {"tie_word_embeddings": True},
}
SMALL = {"max_model_len": 1024, "max_num_seqs": 64, "kv_cache_gib": 0.125, "block_size": 32}


def engine_for(made, **options):
    return Vllm(enforce_eager=True, **SMALL, **options).start(made)


def served_policy(name):
    """A policy of a family with what vLLM has built in: audio of 30 seconds, no embeddings for each layer."""
    if name == "qwen2_audio":
        return listening_policy()
    text = {**TEXT, **SERVED_TEXT.get(name, {})}
    return policy_by(ModelConfig(build=BuildConfig(family=name, text=text, vocab_size=320)))


def set_options(engine, **options):
    """Let a running engine go on with other options."""
    engine.options = dataclasses.replace(engine.options, **options)


@contextmanager
def served():
    """A policy and an engine with one server of its own."""
    made = policy()
    engine = VllmServer(enforce_eager=True, **SMALL).start(made)
    yield made, engine
    engine.close()


def change(made, seed=0, scale=0.05):
    """What an optimizer step does, only larger: every trainable weight moves."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.trainable:
            weight += scale * torch.randn(weight.shape, generator=noise)
    made.version += 1


def tokens(rollouts):
    return [[c.token_ids for c in group] for group in rollouts.completions]


def listening_policy(seconds=2):
    """A policy whose encoder takes this many seconds."""
    audio = {"max_source_positions": 50 * seconds}
    build = BuildConfig(family="qwen2_audio", text=TEXT, audio=audio, vocab_size=320)
    return policy_by(ModelConfig(build=build))
