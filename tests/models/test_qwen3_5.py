"""Layers that hold a state: padding, states that are handed on, their bytes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from helpers.prompts import logits, mix_images
from helpers.runs import final_state, metric_lines
from helpers.shared_forward import gaps, micro_batch
from helpers.small import CORPUS, loaded, model_config, policy
from vlmrl.assemble import lifecycle
from vlmrl.config import ModelConfig, load
from vlmrl.engines.prompt_rows import prefill
from vlmrl.errors import UserError
from vlmrl.forward import handed_states
from vlmrl.forward.sequence_parallel import find_split
from vlmrl.models import cache_sizes, delta_net
from vlmrl.models.loading import load_model
from vlmrl.system import distributed

NAMES = ("qwen3_5", "qwen3_5_moe")
each_family = pytest.mark.parametrize("name", NAMES)
LONG = CORPUS[2] * 8
LEARNING = [
    "model.build.family=qwen3_5",
    *("run.steps=20", "run.threads=1", "run.save_every=10", "run.keep_checkpoints=3"),
    *("run.report=false", "tracking.tensorboard=false", "evaluation=null", "rollout.prompts=8"),
    *("sft.max_steps=160", "sft.batch_size=16", "sft.stop_at=null"),
]
"""The quickstart with these layers: a cold start of 160 steps and 20 of reinforcement learning."""


def remembering(name: str) -> Any:
    """A policy whose states outlast many tokens; those of random weights are mostly forgotten after a few."""
    made = policy(name)
    for key, weight in made.base.named_parameters():
        if key.endswith(".A_log"):
            weight.data.fill_(-4.0)
    return made


def rows_of(model: Any, left: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of prompts of unequal lengths in one batch, padded on one side; and of each by itself."""
    family, made = model.family, mix_images(model)
    encoded = [p.encoded for p in made]
    longest = max(len(e.ids) for e in encoded) + 3
    ids, mask = torch.zeros(2, len(made), longest, dtype=torch.long)
    positions = torch.zeros(3, len(made), longest, dtype=torch.long)
    places = [slice(longest - len(e.ids), None) if left else slice(len(e.ids)) for e in encoded]
    for row, (place, e) in enumerate(zip(places, encoded, strict=True)):
        ids[row, place], mask[row, place] = torch.tensor(e.ids), 1
        positions[:, row, place] = e.position_ids
    features = family.spread(family.tower_features(model.model, encoded), encoded, range(len(made)))
    hidden = family.decode(model.model, ids, mask, positions, features)
    found = family.head(model.model)(hidden)
    return [f[place] for f, place in zip(found, places, strict=True)], [
        logits(model, [p])[0] for p in made
    ]


@each_family
@pytest.mark.parametrize("left", [True, False])
def test_padding_on_either_side_changes_no_logits(name: str, left: bool) -> None:
    with torch.no_grad():
        found, alone = rows_of(loaded(name), left)
    for row, expected in zip(found, alone, strict=True):
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 70])
@pytest.mark.parametrize("more", [1, 2, 70])
def test_a_layer_goes_on_after_states_as_if_it_had_read_all(tokens: int, more: int) -> None:
    layer = remembering("qwen3_5").base.model.language_model.layers[0].linear_attn
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, tokens + more, 64, generator=generator, requires_grad=True)
    signs = torch.randn(2, tokens + more, 64, generator=generator)
    weights = [x, *layer.parameters()]

    expected = type(layer).forward(layer, x)
    run = layer.forward
    before, states = delta_net.run_after(run, layer.layer_idx, x[:, :tokens])
    after, _ = delta_net.run_after(run, layer.layer_idx, x[:, tokens:], states)
    found = torch.cat([before, after], 1)

    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    gradients = [torch.autograd.grad((y * signs).sum(), weights) for y in (found, expected)]
    ours, theirs = (torch.cat([g.flatten() for g in each]) for each in gradients)
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()


@each_family
def test_long_completions_get_the_states_of_long_prompts(name: str) -> None:
    made = remembering(name)
    micro = micro_batch(made, (1, 2, 0, 1), longest=150)
    logprobs, gradient = gaps(made, micro)
    assert logprobs < 1e-5 and gradient < 1e-5


@pytest.mark.parametrize("which", [0, 1])
def test_a_shared_forward_without_a_state_is_another(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = remembering("qwen3_5")

    def forgetful(
        run: Any, layer: int, hidden: torch.Tensor, states: Any = None, real: Any = None
    ) -> Any:
        if states is not None:
            states = tuple(x * (number != which) for number, x in enumerate(states))
        return delta_net.run_after(run, layer, hidden, states, real)

    monkeypatch.setattr(handed_states, "run_after", forgetful)
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs > 0.1 and gradient > 0.1


@each_family
def test_a_completions_cache_has_the_bytes_that_are_forecast(name: str) -> None:
    made = policy(name)
    with torch.no_grad():
        cache, _, mask = prefill(made, mix_images(made))
    held = sum(
        x.nbytes
        for layer in cache.layers
        for x in (
            (layer.conv_states[0], layer.recurrent_states[0])
            if hasattr(layer, "recurrent_states")
            else (layer.keys, layer.values)
        )
    )
    text = made.base.config.get_text_config()
    rows, tokens = mask.shape
    size = cache_sizes.token_bytes(text, 4) * tokens + cache_sizes.state_bytes(text, 4)
    assert held == rows * size


def test_sequence_parallel_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy("qwen3_5")
    monkeypatch.setattr(distributed, "_sequence", (2, None))
    with pytest.raises(UserError, match=r"sequence_parallel: 2, but the gated delta-nets .* use 1"):
        find_split(made.base, supported=True)


@each_family
def test_files_have_the_names_and_shapes_of_published_ones(name: str, tmp_path: Path) -> None:
    made = loaded(name)
    made.family.save(made.model, str(tmp_path), made.model.state_dict())
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert saved.keys() == made.model.state_dict().keys()
    shapes = {n.split(".mlp.")[1]: tuple(w.shape) for n, w in saved.items() if ".experts." in n}
    experts = {"experts.gate_up_proj": (4, 256, 64), "experts.down_proj": (4, 64, 128)}
    assert shapes == (experts if name == "qwen3_5_moe" else {})
    assert made.family.export_names(saved).keys() == saved.keys()


@each_family
def test_a_small_models_tokenizer_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    built = load_model(model_config(name), CORPUS, seed=0)
    built.family.save(built.model, str(tmp_path), built.model.state_dict())
    built.processor.save_pretrained(tmp_path)
    read = load_model(ModelConfig(path=str(tmp_path)))
    ids = built.processor.tokenizer(LONG)["input_ids"]
    assert read.processor.tokenizer(LONG)["input_ids"] == ids
    assert "35" in built.processor.tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.nightly
def test_a_run_learns_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    def train(name: str, *more: str) -> Path:
        arguments = [f"run.dir={tmp_path / name}", *LEARNING, *more]
        assert lifecycle.train(load("quickstart", arguments))["finished"]
        return tmp_path / name

    whole = train("whole")
    again = train("again", f"resume={whole / 'checkpoints/step-10'}")
    assert final_state(again) == final_state(whole)
    rewards = [line["reward/mean"] for line in metric_lines(whole)]
    assert sum(rewards[-5:]) > sum(rewards[:5])
