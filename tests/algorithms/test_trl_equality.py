"""Our advantages, losses and gradients beside TRL's, on completions TRL generated and scored."""

import os

import pytest
import torch

import vlmrl.system.torchvision_shim  # noqa: F401  (before trl, which imports torchvision)
from vlmrl import plugins
from vlmrl.algorithms.base import LossInputs
from vlmrl.schema import (
    Frame,
    MicroBatch,
    Prompt,
    PromptBatch,
    Rewards,
    Rollouts,
    Sample,
    TrainBatch,
    Truth,
    Verdict,
)

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
trl = pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402, TID251  (TRL takes nothing else)
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from trl.experimental import gmpo  # noqa: E402

PROMPTS = ["a b"] * 4 + ["c"] * 4 + ["b d a"] * 4
SCORES = [1.0, 0.0, 0.25, 0.5, 0.2, 0.2, 0.2, 0.2, 0.0, 0.0, 1.0, 0.0]
MAX_TOKENS = 12

SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
CASES = [
    ("grpo", {}, {"loss_type": "grpo"}),
    ("grpo", {"kl": 0.3}, {"loss_type": "grpo", "use_bias_correction_kl": False}),
    ("grpo", {"kl": 0.3, "kl_unbiased": True}, {"loss_type": "grpo"}),
    ("grpo", {"dual_clip": 1.4}, {"loss_type": "grpo", "delta": 1.4}),
    ("dr_grpo", {}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    ("dapo", {"dynamic_sampling_batches": 0}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    (
        "dapo",
        {"dynamic_sampling_batches": 0, "kl": 0.3, "kl_unbiased": True},
        {"loss_type": "dapo", "epsilon_high": 0.28},
    ),
    ("lite_ppo", {}, {"loss_type": "dapo", "scale_rewards": "batch"}),
    ("rloo", {}, {}),
    (
        "grpo",
        {"aggregation": "token", "scale": "batch"},
        {"loss_type": "bnpo", "scale_rewards": "batch"},
    ),
    ("gspo", {}, {"loss_type": "grpo", **SEQUENCE}),
    ("gspo_token", {}, {"loss_type": "grpo", **SEQUENCE}),
    ("luspo", {}, {"loss_type": "luspo", **SEQUENCE}),
    ("gmpo", {}, {"epsilon": 0.4}),
    ("gmpo", {"kl": 0.3}, {"epsilon": 0.4}),
    ("cispo", {"ratio_cap": 1.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
    (
        "cispo",
        {"scale": "batch"},
        {"loss_type": "cispo", "epsilon_high": 5.0, "scale_rewards": "batch"},
    ),
    ("sapo", {}, {"loss_type": "sapo"}),
    ("vespo", {}, {"loss_type": "vespo"}),
]
NOISE = {"rloo": 0.1, "gspo": 1e-3, "gspo_token": 1e-3, "luspo": 1e-3, "cispo": 1.0}
"""Spread of the old policy about the new one: clipping acts on some tokens or completions only."""
UNCLIPPED = ("sapo", "vespo")


def trainer_of(name, options, scores, folder):
    """A real TRL trainer of a tiny model that makes completions of random length, and its batch."""
    words = ["<pad>", "<eos>", *"abcdefgh"]
    vocabulary = models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="a")
    tokenizer = Tokenizer(vocabulary)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    kind = {"rloo": "RLOO", "gmpo": "GMPO"}.get(name, "GRPO")
    home = gmpo if kind == "GMPO" else trl
    arguments = getattr(home, f"{kind}Config")(
        str(folder),
        per_device_train_batch_size=len(PROMPTS),
        num_generations=4,
        max_completion_length=MAX_TOKENS,
        beta=0.0,
        report_to="none",
        use_cpu=True,
        bf16=False,
        **options,
    )
    tables = scores if isinstance(scores[0], list) else [scores]
    trainer = getattr(home, f"{kind}Trainer")(
        Qwen2ForCausalLM(config),
        [lambda completions, table=table, **_: table for table in tables],
        args=arguments,
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
        ),
        train_dataset=Dataset.from_list([{"prompt": p} for p in PROMPTS]),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer, trainer._generate_and_score_completions([{"prompt": p} for p in PROMPTS])


def logprobs_of(trainer, batch):
    """Log-probs of the completion tokens, [B, T], with gradient."""
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    kept = batch["completion_ids"].shape[1]
    return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, kept)[0]


def our_advantages(recipe, scores):
    """Advantages [P, G] by our recipe; a score of None is a fault."""
    total = torch.tensor([0.0 if s is None else s for s in scores]).view(-1, 4)
    valid = torch.tensor([s is not None for s in scores]).view(-1, 4)
    sample = Sample("id", "source", ("?",), Truth())
    prompt = Prompt(sample, "?", None, Frame())  # type: ignore[arg-type]
    rollouts = Rollouts(PromptBatch((prompt,) * len(total)), ())
    return recipe.advantages(Rewards(total, valid, ()), rollouts).values


def gradients_of(trainer, loss):
    trainer.model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


@pytest.mark.parametrize(("name", "options", "theirs"), CASES)
def test_loss_and_gradients_equal_trl(name, options, theirs, tmp_path):
    trainer, batch = trainer_of(name, theirs, SCORES, tmp_path)
    recipe = plugins.build("algorithm", name, options)
    mask = batch["completion_mask"].bool()
    assert len(set(mask.sum(1).tolist())) > 3, "the completions must differ in length"

    noise = torch.Generator().manual_seed(1)
    new = logprobs_of(trainer, batch)
    scale = NOISE.get(name, 0.4)
    old = new.detach() + scale * torch.randn(new.shape, generator=noise)
    ref = new.detach() + 0.5 * torch.randn(new.shape, generator=noise)

    advantages = our_advantages(recipe, SCORES).view(-1, 1)
    output = recipe.loss(
        LossInputs(
            new=new,
            old=old,
            sampling=old,
            ref=ref if recipe.kl else None,
            advantages=advantages,
            mask=mask,
            weights=torch.ones(len(SCORES)),
            num_tokens=int(mask.sum()),
            num_rollouts=len(SCORES),
            max_tokens=MAX_TOKENS,
        )
    )
    ours = gradients_of(trainer, output.loss)

    trainer.beta = recipe.kl
    moved = {
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "old_logps": (old * mask).sum(1),
    }
    expected = trainer.compute_loss(trainer.model, {**batch, **moved})
    gradients = gradients_of(trainer, expected)

    torch.testing.assert_close(output.loss, expected, atol=1e-5, rtol=0)
    for key, gradient in gradients.items():
        torch.testing.assert_close(ours[key], gradient, atol=1e-5, rtol=0)
    assert max(g.abs().max() for g in gradients.values()) > 1e-2
    clipped = [
        output.metrics[k] for k in ("loss/clip_low", "loss/clip_high") if k in output.metrics
    ]
    if name not in UNCLIPPED:
        assert 0 < sum(clipped) < mask.sum(), "clipping must act somewhere, but not everywhere"


@pytest.mark.parametrize(("name", "options", "theirs"), [CASES[0], CASES[4], CASES[7], CASES[8]])
def test_advantages_equal_trl_also_with_faulted_completions(name, options, theirs, tmp_path):
    scores = [1.0, None, 0.25, 0.5, None, None, None, 0.7, 0.2, 0.9, 1.0, 0.0]
    _, batch = trainer_of(name, theirs, scores, tmp_path)
    ours = our_advantages(plugins.build("algorithm", name, options), scores)
    torch.testing.assert_close(ours.flatten(), batch["advantages"], atol=1e-5, rtol=0)


def test_rewards_normalised_one_by_one_equal_trl(tmp_path):
    other = [0.1, 0.3, 0.3, 0.0, 1.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    theirs = {
        "multi_objective_aggregation": "normalize_then_sum",
        "reward_weights": [1.0, 0.5],
    }
    _, batch = trainer_of("grpo", theirs, [SCORES, other], tmp_path)
    recipe = plugins.build("algorithm", "gdpo", {"weights": {"other": 0.5}})
    verdicts = [
        {"scores": Verdict(a), "other": Verdict(b)} for a, b in zip(SCORES, other, strict=True)
    ]
    total = (torch.tensor(SCORES) + torch.tensor(other)).view(-1, 4)
    grouped = tuple(tuple(verdicts[p : p + 4]) for p in range(0, 12, 4))
    found = recipe.estimate(Rewards(total, torch.ones_like(total).bool(), grouped))
    torch.testing.assert_close(found.flatten(), batch["advantages"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_training_on_uncertain_tokens_equals_trl(share, tmp_path):
    theirs = {"loss_type": "dapo", "epsilon_high": 0.28, "top_entropy_quantile": share}
    trainer, batch = trainer_of("high_entropy", theirs, SCORES, tmp_path)
    options = {"share": share, "dynamic_sampling_batches": 0}
    recipe = plugins.build("algorithm", "high_entropy", options)
    mask = batch["completion_mask"].bool()
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    whole = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    new, entropies, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, whole, mask.shape[1], compute_entropy=True
    )
    old = new.detach() + 0.4 * torch.randn(new.shape, generator=torch.Generator().manual_seed(1))
    advantages = our_advantages(recipe, SCORES).view(-1, 1)
    rows = len(SCORES)
    micro = MicroBatch(
        prompts=(),
        group=torch.zeros(rows, dtype=torch.long),
        token_ids=batch["completion_ids"],
        mask=mask,
        sampling_logprobs=old,
        advantages=advantages,
        weights=torch.ones(rows),
        extra={"entropy": entropies.detach()},
    )
    (made,) = recipe.prepare([TrainBatch((micro,), int(mask.sum()), rows, MAX_TOKENS)])
    kept = made.micro[0].extra["token_weight"][mask].mean().item()
    assert abs(kept - share) < 0.1
    output = recipe.loss(
        LossInputs(
            new=new,
            old=old,
            sampling=old,
            ref=None,
            advantages=advantages,
            mask=mask,
            weights=torch.ones(rows),
            num_tokens=int(mask.sum()),
            num_rollouts=rows,
            max_tokens=MAX_TOKENS,
            extra=made.micro[0].extra,
        )
    )
    ours = gradients_of(trainer, output.loss)
    expected = trainer.compute_loss(trainer.model, {**batch, "old_per_token_logps": old})
    gradients = gradients_of(trainer, expected)
    torch.testing.assert_close(output.loss, expected, atol=1e-5, rtol=0)
    for key, gradient in gradients.items():
        torch.testing.assert_close(ours[key], gradient, atol=1e-5, rtol=0)
    assert max(g.abs().max() for g in gradients.values()) > 1e-2


TRUNCATE, MASK = "truncated", "decoupled"
SAMPLED = [
    ("grpo", {"correction": TRUNCATE}, {"loss_type": "grpo"}, "token_truncate"),
    ("grpo", {"correction": MASK, "kl": 0.3}, {"loss_type": "grpo"}, "token_mask"),
    (
        "grpo",
        {"correction": TRUNCATE, "correction_level": "sequence"},
        {"loss_type": "grpo"},
        "sequence_truncate",
    ),
    (
        "grpo",
        {"correction": MASK, "correction_level": "sequence", "off_policy_threshold": 0.02},
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.02},
        "sequence_mask",
    ),
    (
        "grpo",
        {"kl": 0.3, "off_policy_threshold": 0.02, "aggregation": "constant", "scale": "none"},
        {"loss_type": "dr_grpo", "scale_rewards": "none", "off_policy_mask_threshold": 0.02},
        "token_truncate",
    ),
    (
        "gspo",
        {"correction": MASK, "correction_level": "sequence"},
        {"loss_type": "grpo", **SEQUENCE},
        "sequence_mask",
    ),
    (
        "gspo",
        {"correction_level": "token", "aggregation": "token", "off_policy_threshold": 0.02},
        {"loss_type": "dapo", "off_policy_mask_threshold": 0.02, **SEQUENCE},
        "token_truncate",
    ),
    (
        "luspo",
        {"correction_level": "sequence"},
        {"loss_type": "luspo", **SEQUENCE},
        "sequence_truncate",
    ),
    (
        "cispo",
        {"correction": MASK, "correction_level": "sequence"},
        {"loss_type": "cispo", "epsilon_high": 5.0},
        "sequence_mask",
    ),
    ("vespo", {"correction": TRUNCATE}, {"loss_type": "vespo"}, "token_truncate"),
    ("vespo", {"correction": MASK}, {"loss_type": "vespo"}, "token_mask"),
]
BOUNDS = {"token": (0.85, 1.15), "sequence": (0.7, 1.3)}


def sampled_of(trainer, batch):
    """The batch as TRL makes it of a vLLM whose log-probs are not the trainer's; then the weights move."""
    real = batch["completion_mask"].bool()
    noise = torch.Generator().manual_seed(3)
    said = logprobs_of(trainer, batch).detach()
    said = said + 0.2 * torch.randn(said.shape, generator=noise)

    def replayed(prompts):
        prompt_ids, completion_ids, logprobs = (
            [row[kept].tolist() for row, kept in zip(values, masks, strict=True)]
            for values, masks in (
                (batch["prompt_ids"], batch["prompt_mask"].bool()),
                (batch["completion_ids"], real),
                (said, real),
            )
        )
        return prompt_ids, completion_ids, None, ["?"] * len(prompts), logprobs, {}, None, []

    trainer._generate, trainer.use_vllm = replayed, True
    made = trainer._generate_and_score_completions([{"prompt": p} for p in PROMPTS])
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=noise)
    return made


@pytest.mark.parametrize(("name", "options", "theirs", "mode"), SAMPLED)
def test_corrections_of_another_engine_equal_trl(name, options, theirs, mode, tmp_path):
    floor, cap = BOUNDS[mode.partition("_")[0]]
    bounds = {"vllm_importance_sampling_clip_min": floor, "vllm_importance_sampling_clip_max": cap}
    theirs = {**theirs, **bounds, "vllm_importance_sampling_mode": mode}
    if "kl" in options:
        theirs["use_bias_correction_kl"] = False
    trainer, batch = trainer_of(name, theirs, SCORES, tmp_path)
    batch = sampled_of(trainer, batch)
    recipe = plugins.build(
        "algorithm", name, {**options, "importance_cap": cap, "importance_floor": floor}
    )
    mask, weight = batch["completion_mask"].bool(), batch["importance_sampling_ratio"]
    new, old = logprobs_of(trainer, batch), batch["old_per_token_logps"]
    ref = old + 0.5 * torch.randn(old.shape, generator=torch.Generator().manual_seed(4))
    bounded = (weight == 0) | (weight == floor) | (weight == cap)
    assert 0 < bounded.float().mean() < 1, "the bounds must act somewhere, but not everywhere"
    output = recipe.loss(
        LossInputs(
            new=new,
            old=old,
            sampling=batch["sampling_per_token_logps"],
            ref=ref if recipe.kl else None,
            advantages=our_advantages(recipe, SCORES).view(-1, 1),
            mask=mask,
            weights=torch.ones(len(SCORES)),
            num_tokens=int(mask.sum()),
            num_rollouts=len(SCORES),
            max_tokens=MAX_TOKENS,
        )
    )
    ours = gradients_of(trainer, output.loss)
    trainer.beta = recipe.kl
    expected = trainer.compute_loss(trainer.model, {**batch, "ref_per_token_logps": ref})
    gradients = gradients_of(trainer, expected)
    torch.testing.assert_close(output.loss, expected, atol=1e-6, rtol=0)
    for key, gradient in gradients.items():
        torch.testing.assert_close(ours[key], gradient, atol=1e-6, rtol=1e-6)
    assert max(g.abs().max() for g in gradients.values()) > 1e-2
    if recipe.off_policy_threshold is not None:
        assert 0 < output.metrics["loss/off_policy"] < mask.sum()
