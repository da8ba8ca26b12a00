"""The policy: cutting a batch changes nothing, towers freeze, adapters merge, weights survive a save."""

import dataclasses

import pytest
import torch

from helpers.small import FAMILIES, advantages, loaded, mixed_batch, model_config, policy
from vlmrl.config import LoraConfig, ModelConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.models.loading import load_model
from vlmrl.parts.algorithms.dapo import Dapo
from vlmrl.parts.algorithms.dr_grpo import DrGrpo
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy.policy import Policy


def rollouts_of(made, n=3, max_tokens=6):
    engine = Hf().start(made)
    return engine.generate(mixed_batch(made), Sampling(n=n, max_tokens=max_tokens, seed=1))


def packed(made, rollouts, micro_tokens=10**6, updates=1):
    return pack(
        rollouts,
        advantages(rollouts),
        updates=updates,
        micro_tokens=micro_tokens,
        max_tokens=6,
    )


def flat(made):
    return torch.cat([p.detach().flatten() for p in made.base.parameters()])


def logprobs(made, rollouts):
    (batch,) = packed(made, rollouts)
    with torch.no_grad():
        return made.logprobs(batch.micro[0])[0]


@pytest.mark.parametrize("algorithm", [Grpo(), DrGrpo(), Dapo()])
def test_the_cut_into_micro_batches_does_not_change_the_gradient(algorithm):
    gradients = []
    for micro_tokens in (10**6, 120, 1):
        made = policy()
        batches = packed(made, rollouts_of(made), micro_tokens)
        assert (len(batches[0].micro) == 1) == (micro_tokens == 10**6)
        made.max_grad_norm = 1e9
        made.update(batches, algorithm, lr=0.0, progress=0.0)
        gradients.append(torch.cat([p.grad.flatten() for p in made.trainable]))
    for other in gradients[1:]:
        assert (other - gradients[0]).abs().max() < 1e-6


@pytest.mark.parametrize("tower", ["vision", "projector", "language"])
def test_a_frozen_tower_does_not_move_and_the_others_do(tower):
    made = policy(freeze=[tower])
    before = {name: p.detach().clone() for name, p in made.base.named_parameters()}
    made.update(packed(made, rollouts_of(made)), Grpo(), lr=1e-2, progress=0.0)
    prefixes = made.family.towers[tower]
    moved = {name for name, p in made.base.named_parameters() if not p.equal(before[name])}
    assert moved
    assert not any(name.startswith(prefixes) for name in moved)


def test_freezing_everything_is_refused():
    with pytest.raises(UserError, match=r"model\.freeze"):
        policy(freeze=["vision", "projector", "language"])


@pytest.mark.parametrize("towers", [["language"], ["vision", "language"]])
def test_an_adapter_trains_alone_and_as_it_was_it_is_the_reference(towers, tmp_path):
    made = policy(lora=LoraConfig(rank=4, towers=towers))
    plain = policy()
    rollouts = rollouts_of(made)
    batches = packed(made, rollouts)
    before = logprobs(made, rollouts)
    torch.testing.assert_close(before, logprobs(plain, rollouts), atol=1e-5, rtol=0)
    made.keep_reference(tmp_path / "first")
    for _ in range(3):
        made.update(batches, Grpo(), lr=1e-2, progress=0.0)
    after = logprobs(made, rollouts)
    assert (after - before).abs().max() > 1e-3
    (filled,) = made.with_reference(batches)
    torch.testing.assert_close(filled.micro[0].ref_logprobs, before, atol=1e-5, rtol=0)
    assert logprobs(made, rollouts).equal(after)
    made.keep_reference(tmp_path / "second")  # RL begins only here
    (filled,) = made.with_reference(batches)
    assert filled.micro[0].ref_logprobs.equal(after)


def test_merged_weights_load_as_a_plain_checkpoint_of_the_same_function(tmp_path):
    made = policy(lora=LoraConfig(rank=4, towers=["vision", "language"]))
    rollouts = rollouts_of(made)
    for _ in range(3):
        made.update(packed(made, rollouts), Grpo(), lr=1e-2, progress=0.0)
    made.save(str(tmp_path))
    again = Policy(*load_model(ModelConfig(path=str(tmp_path))), ModelConfig(path=str(tmp_path)))
    torch.testing.assert_close(
        logprobs(again, rollouts), logprobs(made, rollouts), atol=2e-5, rtol=0
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_policy_loads_bit_for_bit(family, tmp_path):
    made = policy(family)
    made.save(str(tmp_path))
    again = Policy(*load_model(ModelConfig(path=str(tmp_path))), ModelConfig(path=str(tmp_path)))
    assert again.base.state_dict().keys() == made.base.state_dict().keys()
    for name, value in made.base.state_dict().items():
        assert value.equal(again.base.state_dict()[name]), name


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_the_frozen_copy_stays_the_reference_across_a_restart(tmp_path, lora):
    made = policy(lora=lora)
    rollouts = rollouts_of(made)
    batches = packed(made, rollouts)
    made.update(batches, Grpo(), lr=1e-2, progress=0.0)  # what a cold start does
    before = logprobs(made, rollouts)
    made.keep_reference(tmp_path / "reference")
    made.update(batches, Grpo(), lr=1e-2, progress=0.0)
    again = policy(lora=lora)
    again.base.load_state_dict(made.base.state_dict())
    again.keep_reference(tmp_path / "elsewhere", tmp_path / "reference")  # what a resumed run does
    (filled,) = again.with_reference(batches)
    torch.testing.assert_close(filled.micro[0].ref_logprobs, before)
    files = [(tmp_path / f / "reference.safetensors") for f in ("reference", "elsewhere")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("harm", ["cut", "flipped", "of another model", "missing"])
def test_a_reference_that_cannot_be_read_is_one_line_that_names_the_file(tmp_path, harm):
    made, folder = policy(), tmp_path / "reference"
    (made if harm != "of another model" else policy(lora=LoraConfig())).keep_reference(folder)
    file = folder / "reference.safetensors"
    data = file.read_bytes()
    if harm == "cut":
        file.write_bytes(data[:-10])
    elif harm == "flipped":
        file.write_bytes(data[:-10] + bytes([data[-10] ^ 1]) + data[-9:])
    elif harm == "missing":
        file.unlink()
    with pytest.raises(UserError, match="reference") as error:
        made.keep_reference(tmp_path / "again", folder)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_old_logprobs_stay_those_before_the_first_of_several_updates():
    made = policy()
    rollouts = rollouts_of(made)
    before = logprobs(made, rollouts)
    (batch,) = made.with_old(packed(made, rollouts))
    metrics = made.update([batch] * 3, Grpo(), lr=1e-2, progress=0.0)
    assert batch.micro[0].old_logprobs.equal(before)
    assert metrics["loss/ratio"] != 1.0


def test_gradient_checkpointing_gives_the_same_gradient():
    gradients = []
    for checkpointing in (False, True):
        made = policy(gradient_checkpointing=checkpointing)
        made.update(packed(made, rollouts_of(made)), Grpo(), lr=0.0, progress=0.0)
        gradients.append(torch.cat([p.grad.flatten() for p in made.trainable]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)


def test_bfloat16_keeps_trained_weights_in_float32_and_lowers_frozen_ones():
    made = policy(dtype="bfloat16", freeze=["vision"])
    kinds = {p.requires_grad: p.dtype for p in made.base.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    before = flat(made)
    metrics = made.update(packed(made, rollouts_of(made)), Grpo(), lr=1e-3, progress=0.0)
    assert metrics["update/skipped"] == 0
    assert not flat(made).equal(before)
    exact = policy()
    rollouts = rollouts_of(exact)
    low = policy(dtype="bfloat16")
    gap = (logprobs(low, rollouts) - logprobs(exact, rollouts)).abs().mean()
    assert gap < 0.1


def test_a_gradient_that_is_not_finite_is_counted_and_not_applied():
    made = policy()
    (batch,) = packed(made, rollouts_of(made))
    broken = dataclasses.replace(
        batch.micro[0], advantages=torch.full_like(batch.micro[0].advantages, torch.nan)
    )
    before = flat(made)
    metrics = made.update(
        [dataclasses.replace(batch, micro=(broken,))], Grpo(), lr=1e-2, progress=0.0
    )
    assert metrics["update/skipped"] == 1
    assert flat(made).equal(before)


def test_every_parameter_belongs_to_one_tower():
    for family in FAMILIES:
        model = loaded(family).model
        towers = loaded(family).family.towers
        for name, _ in model.named_parameters():
            assert sum(name.startswith(p) for p in towers.values()) == 1, name
    assert model_config().build is not None
