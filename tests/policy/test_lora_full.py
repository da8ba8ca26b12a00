"""A tower whose weights train beside LoRA: it moves, resumes and is exported, and the reference holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import PeftModel

from helpers.shared_forward import packed, rollouts_of
from helpers.small import CORPUS, model_config, policy
from vlmrl import plugins
from vlmrl.config import LoraConfig, ModelConfig, OptimizerConfig
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.monitoring.memory_forecast import rank_share
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy import adapter_folder
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import is_adapter, tower_of, towers_with_lr

LORA = LoraConfig(rank=4, full=["projector"])
FAMILIES = {name: plugins.build("family", name) for name in plugins.names("family")}


def made_of(**fields: Any) -> Policy:
    torch.manual_seed(0)  # adapters begin at random
    return policy(**{"lora": LORA, "freeze": ["vision"], **fields})


def weights_of(made: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in made.base.named_parameters()}


def logprobs(made: Policy, batches: Any) -> torch.Tensor:
    with torch.no_grad():
        return made.logprobs(batches[0].micro[0])[0]


def test_the_projector_and_the_adapters_move_and_nothing_else() -> None:
    made = made_of()
    before = weights_of(made)
    for _ in range(2):  # the first update moves only B, which is 0
        made.update(packed(rollouts_of(made)), Grpo(), lr=1e-2, progress=0.0)
    moved = {n for n, p in made.base.named_parameters() if not p.equal(before[n])}
    assert moved == set(made.named)
    assert {tower_of(n, made.family) for n in moved if not is_adapter(n)} == {"projector"}
    assert {tower_of(n, made.family) for n in moved if is_adapter(n)} == {"language"}
    assert made.frozen_towers is not None


def test_its_first_update_is_that_of_a_plain_policy_that_trains_the_projector_alone() -> None:
    """Adapters are 0 at first, so the projector's gradient and AdamW's step are those without them."""
    made, plain = made_of(), policy(freeze=["vision", "language"])
    batches = packed(rollouts_of(plain))
    for each in (made, plain):
        each.update(batches, Grpo(), lr=1e-2, progress=0.0)
    for name, weight in plain.named.items():
        assert (made.named[name].grad - weight.grad).abs().max() < 1e-6, name
        assert weight.grad.abs().max() > 1e-5 or name.endswith("bias"), name
        torch.testing.assert_close(made.named[name], weight, atol=1e-4, rtol=0)


def test_the_reference_is_a_copy_of_the_policy_as_it_was(tmp_path: Path) -> None:
    made, copy = made_of(), made_of()
    batches = packed(rollouts_of(made))
    made.keep_reference(tmp_path / "first")
    for _ in range(3):
        made.update(made.with_reference(batches), Grpo(kl=0.1), lr=1e-2, progress=0.0)
    after = logprobs(made, batches)
    expected = logprobs(copy, batches)
    assert (after - expected).abs().max() > 1e-3
    (filled,) = made.with_reference(batches)
    assert filled.micro[0].ref_logprobs.equal(expected)
    assert logprobs(made, batches).equal(after)
    again = made_of()  # what a resumed run does
    again.restore(made.training_state())
    assert logprobs(again, batches).equal(after)
    again.keep_reference(tmp_path / "second", tmp_path / "first")
    (filled,) = again.with_reference(batches)
    assert filled.micro[0].ref_logprobs.equal(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_peft_loads_both_and_merged_they_are_what_is_saved(name: str, tmp_path: Path) -> None:
    made = policy(name, lora=LORA)
    with torch.no_grad():
        for weight in made.trainable:
            weight.add_(torch.randn_like(weight) * 0.05)
    state = made.training_state()
    adapter_folder.save(tmp_path / adapter_folder.FOLDER, made, state)
    again = adapter_folder.load(tmp_path)
    assert again.keys() == state.keys()
    assert all(p.equal(again[n]) for n, p in state.items())
    base, processor, _ = load_model(model_config(name), CORPUS, seed=0)
    base.save_pretrained(tmp_path / "base")
    processor.save_pretrained(tmp_path / "base")
    reader = transformers.AutoModelForImageTextToText
    if name in ("qwen2_audio", "voxtral"):
        reader = transformers.AutoModelForMultimodalLM
    plain = reader.from_pretrained(tmp_path / "base")
    merged = PeftModel.from_pretrained(plain, tmp_path / adapter_folder.FOLDER).merge_and_unload()
    expected = made.weights()
    found = merged.state_dict()
    beside = {n for n in state if not is_adapter(n)}
    assert beside and beside <= expected.keys()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-6, rtol=0, msg=key)


def test_merged_weights_load_as_a_plain_checkpoint_of_the_same_function(tmp_path: Path) -> None:
    made = made_of()
    batches = packed(rollouts_of(made))
    for _ in range(3):
        made.update(batches, Grpo(), lr=1e-2, progress=0.0)
    made.save(str(tmp_path))
    config = ModelConfig(path=str(tmp_path))
    again = Policy(*load_model(config), config)
    torch.testing.assert_close(logprobs(again, batches), logprobs(made, batches), atol=2e-5, rtol=0)


def test_it_has_a_learning_rate_of_its_own() -> None:
    made, factors = made_of(), {"projector": 3.0}
    towers = towers_with_lr(made.named, made.family, factors)
    config = OptimizerConfig(lr=1e-3, lr_factors=factors, max_grad_norm=1e9)
    made.use_optimizer(adamw(made.trainable, lr=1e-3, eps=1e-20, towers=towers), config)
    before = weights_of(made)
    made.update(packed(rollouts_of(made)), Grpo(), lr=1e-3, progress=0.0)
    for name, weight in made.named.items():
        if "lora_A" not in name:  # B is 0, and so is A's gradient
            step = (weight - before[name]).abs().max().item()
            assert step == pytest.approx(1e-3 if is_adapter(name) else 3e-3, rel=1e-2), name


def test_on_4_bit_weights_it_trains_and_is_put_back() -> None:
    pytest.importorskip("bitsandbytes")
    made = made_of(quantization="nf4", dtype="bfloat16")
    batches = packed(rollouts_of(made))
    before = weights_of(made)
    made.update(batches, Grpo(), lr=1e-2, progress=0.0)
    own = [n for n in made.named if not is_adapter(n)]
    assert own and all(made.named[n].dtype == torch.float32 for n in own)
    assert not any(made.named[n].equal(before[n]) for n in own)
    again = made_of(quantization="nf4", dtype="bfloat16")
    again.restore(made.training_state())
    assert logprobs(again, batches).equal(logprobs(made, batches))


def test_the_forecast_counts_its_weights_as_trained() -> None:
    made = made_of()
    expected = sum(p.nbytes for n, p in made.base.named_parameters() if is_adapter(n))
    expected += sum(
        p.nbytes
        for n, p in made.base.named_parameters()
        if n.startswith(made.family.towers["projector"])
    )
    assert rank_share(made, 1).trained == expected


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"lora": {"full": ["language"]}}, "'vision', 'audio' or 'projector'"),
        (
            {"lora": {"towers": ["language", "projector"], "full": ["projector"]}},
            r"in towers or in full, got \['projector'\] in both",
        ),
        ({"lora": {"full": ["projector"]}, "freeze": ["projector"]}, r"got \['projector'\]"),
        (
            {"lora": {}, "freeze": ["language", "vision"]},
            r"lora does not train, got \['language'\]",
        ),
    ],
)
def test_a_tower_that_is_to_train_in_two_ways_is_refused(fields: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        model_config(**fields)


def test_a_tower_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"model.lora.full: \['audio'\] hold no weight that trains"):
        policy(lora=LoraConfig(full=["audio"]))


def test_vllm_is_not_sent_adapters_alone() -> None:
    VllmOptions().check(made_of())
    with pytest.raises(UserError, match=r"lora.full trains the weights of \['projector'\]"):
        VllmOptions(lora="adapter").check(made_of())
