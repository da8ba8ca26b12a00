"""Optimizers with small state and 4-bit weights: they train, resume, export, and say what they need."""

import sys
import typing

import pytest
import torch
from transformers import AutoModelForImageTextToText

from helpers.small import CORPUS, advantages, mixed_batch, model_config, policy
from vlmrl.config import LoraConfig, ModelConfig, OptimizerConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.models.loading import Loaded, load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy import quantization
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy

pytest.importorskip("bitsandbytes")
LORA = LoraConfig(rank=4, towers=["language"])
# QLoRA (arXiv:2305.14314), appendix E.
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
NF4 += [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
NF4 += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941]
NF4 += [0.7229568362236023, 1.0]


def batch_for(made):
    engine = Hf().start(made)
    rollouts = engine.generate(mixed_batch(made), Sampling(n=3, max_tokens=6, seed=1))
    batches = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=10**6, max_tokens=6)
    return batches, rollouts


def with_optimizer(made, name):
    config = OptimizerConfig(lr=1e-2, max_grad_norm=1e9, name=name)
    made.use_optimizer(adamw(made.trainable, lr=1e-2, name=name), config)
    return made


def flat(made):
    return torch.cat([p.detach().flatten() for p in made.trainable])


def state_bytes(made):
    tensors = (t for s in made.optimizer.state.values() for t in s.values())
    return sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))


# ------------------------------------------------------------------------------------- optimizers


def test_the_config_names_every_optimizer():
    annotation = OptimizerConfig.model_fields["name"].annotation
    assert set(typing.get_args(annotation)) == {"adamw", *quantization.OPTIMIZERS}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", quantization.OPTIMIZERS)
def test_their_updates_are_nearly_those_of_adamw(name):
    exact, near = with_optimizer(policy(), "adamw"), with_optimizer(policy(), name)
    batches, _ = batch_for(exact)
    start = flat(exact)
    for made in (exact, near):
        for _ in range(3):
            made.update(batches, Grpo(), 1e-3, 0.0)
    moved = flat(exact) - start
    gap = (flat(near) - flat(exact)).norm() / moved.norm()
    assert 0 < gap < (0.15 if "8bit" in name else 1e-3)
    if "8bit" in name:
        assert state_bytes(near) < 0.5 * state_bytes(exact)  # small weights keep 32 bits


def test_eight_bits_resume_exactly(tmp_path):
    made = with_optimizer(policy(), "adamw_8bit")
    batches, _ = batch_for(made)
    made.update(batches, Grpo(), 1e-3, 0.0)
    torch.save(made.optimizer.state_dict(), tmp_path / "optimizer.pt")
    again = with_optimizer(policy(), "adamw_8bit")
    again.base.load_state_dict(made.base.state_dict())
    again.optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for one in (made, again):
        one.update(batches, Grpo(), 1e-3, 0.0)
    assert torch.equal(flat(made), flat(again))


@pytest.mark.parametrize("name", ["adamw_8bit", "nf4"])
def test_without_the_library_the_message_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        UserError, match=rf"{name} needs bitsandbytes: pip install 'vlmrl-perception\[bits"
    ):
        if name == "nf4":
            policy(lora=LORA, quantization="nf4")
        else:
            with_optimizer(policy(), name)


# ----------------------------------------------------------------------------------- 4-bit weights


@pytest.fixture(scope="module")
def small():
    """A policy on 4-bit weights after two updates of its adapter, and the batches."""
    made = with_optimizer(policy(lora=LORA, quantization="nf4"), "adamw")
    batches, rollouts = batch_for(made)
    for _ in range(2):
        made.update(batches, Grpo(), 1e-2, 0.0)
    return made, batches, rollouts


def test_the_weights_are_those_of_the_paper():
    plain, made = policy(), policy(lora=LORA, quantization="nf4")
    before, after = plain.weights(), made.weights()
    codes = torch.tensor(NF4)
    rounded = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(rounded) == 2 * 6  # two layers: q, k, v, o, gate, up; a row of down has 1.5 blocks
    for name in rounded:
        blocks = before[name].reshape(-1, 64)
        largest = blocks.abs().amax(1, keepdim=True)
        nearest = (blocks / largest)[..., None].sub(codes).abs().argmin(-1)
        found = after[name].reshape(-1, 64)
        scale = found.abs().amax(1, keepdim=True)
        # A number half-way between two codes may go to either, and scales have 8 bits.
        assert ((codes[nearest] - found / scale).abs() < 1e-5).float().mean() > 0.999
        assert (scale / largest - 1).abs().mean() < 0.01


def test_only_the_adapter_trains_and_the_weights_take_a_seventh(small):
    made, _, _ = small
    names = {n for n, p in made.base.named_parameters() if p.requires_grad}
    assert names
    assert all(".lora_" in name for name in names)
    layer = made.base.model.language_model.layers[0].mlp.up_proj.base_layer
    bytes_of_it = layer.weight.nbytes + layer.weight.quant_state.absmax.nbytes
    assert bytes_of_it < 4 * layer.in_features * layer.out_features / 7


def test_what_is_saved_is_the_model_that_was_trained(small, tmp_path):
    made, batches, _ = small
    made.save(str(tmp_path))
    model = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    plain = Policy(*Loaded(model, made.processor, made.family), ModelConfig(path=str(tmp_path)))
    micro = batches[0].micro[0]
    with torch.no_grad():
        gap = (plain.logprobs(micro)[0] - made.logprobs(micro)[0]).abs().max()
        fresh = policy(lora=LORA, quantization="nf4").logprobs(micro)[0]
    assert gap < 1e-5
    assert (fresh - made.logprobs(micro)[0]).abs().max() > 1e-2


def test_the_shared_forward_serves_it(small):
    made, batches, _ = small
    assert made.sharing.verified
    assert made.update(batches, Grpo(), 0.0, 0.0)["update/shared"] == 1


def test_an_adapter_is_put_back_on_the_same_weights(small):
    made, batches, _ = small
    again = policy(lora=LORA, quantization="nf4")
    again.restore(made.training_state())
    micro = batches[0].micro[0]
    with torch.no_grad():
        assert torch.equal(made.logprobs(micro)[0], again.logprobs(micro)[0])


def test_in_bfloat16_it_trains_too():
    made = with_optimizer(policy(lora=LORA, quantization="nf4", dtype="bfloat16"), "adamw")
    batches, _ = batch_for(made)
    found = made.update(batches, Grpo(), 1e-3, 0.0)
    assert found["update/grad_norm"] > 0
    assert found["update/skipped"] == 0


def test_without_lora_it_is_refused():
    with pytest.raises(ValueError, match=r"set model\.lora"):
        load_model(model_config(quantization="nf4"), CORPUS)
