"""The shared forward gives the plain one's log-probs and gradients, or it is not used."""

import dataclasses
import json
import logging
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma3ForConditionalGeneration
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.models.gemma3 import Gemma3Config

from helpers.prompts import converse
from helpers.shared_forward import (
    GRADIENT,
    LOGPROBS,
    gaps,
    micro_batch,
    numbers,
    packed,
    rollouts_of,
    with_live_adapter,
)
from helpers.small import CORPUS, FAMILIES, TEXT, policy, prompt
from vlmrl import cli
from vlmrl.config import BuildConfig, LoraConfig, ModelConfig, OptimizerConfig
from vlmrl.errors import UserError
from vlmrl.forward import shared as shared_forward
from vlmrl.forward.logprobs import Sharing, disagreement, saving
from vlmrl.forward.packing import num_tokens, rows_of
from vlmrl.forward.shared import Cascade, SharedLayout, SharedMask, sharing
from vlmrl.models import attention
from vlmrl.models.attention import attend, attend_backward
from vlmrl.models.loading import load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.parts.families.gemma3 import Gemma3
from vlmrl.policy.policy import Policy

# ------------------------------------------------------------------------------ equal to the plain


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("images", [(1, 2, 0, 1), (0, 0, 0, 0), (2,)])
def test_it_equals_the_plain_forward(family, images):
    made = policy(family)
    counts = (3, 2, 4, 1)[: len(images)]
    logprobs, gradient = gaps(made, micro_batch(made, images, counts))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_it_equals_the_plain_forward_on_conversations(family):
    made = policy(family)
    prompts = (converse(made), prompt(made, 1))
    micro = dataclasses.replace(micro_batch(made, (1, 1), (3, 2)), prompts=prompts)
    logprobs, gradient = gaps(made, micro)
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"gradient_checkpointing": True},
        {"freeze": ["vision"]},
        {"freeze": ["vision", "projector"], "gradient_checkpointing": True},
        {"lora": LoraConfig(rank=4, towers=["vision", "language"])},
        {"lora": LoraConfig(rank=4, towers=["language"]), "gradient_checkpointing": True},
    ],
    ids=str,
)
def test_it_does_so_however_the_model_is_trained(training):
    made = with_live_adapter(policy("qwen3_vl", **training))
    logprobs, gradient = gaps(made, micro_batch(made))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


def test_it_does_so_under_sliding_windows():
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    config = ModelConfig(build=BuildConfig(text={**TEXT, **windows}, vocab_size=320))
    made = Policy(*load_model(config, CORPUS, seed=0), config)
    assert "sliding_attention" in made.base.config.text_config.layer_types
    logprobs, gradient = gaps(made, micro_batch(made, longest=12))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


def test_bfloat16_is_as_far_from_float32_as_the_plain_forward():
    exact, low = policy(), policy(dtype="bfloat16")
    micro = micro_batch(exact)
    expected = numbers(exact, micro, False)[0]
    with torch.autocast("cpu", torch.bfloat16):
        errors = [(numbers(low, micro, s)[0] - expected).abs().mean() for s in (False, True)]
    assert 0 < errors[1] < 1.5 * errors[0]


# ------------------------------------------------------------------------------------- low memory


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [{}, {"freeze": ["vision"]}, {"lora": LoraConfig(rank=4)}, {"dtype": "bfloat16"}],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_low_memory_gives_the_same_gradient_and_metrics(family, training):
    gradients, metrics = [], []
    for setting in ("off", "low_memory"):
        torch.manual_seed(0)
        made = with_live_adapter(policy(family, **training))
        made.use_optimizer(
            made.optimizer, OptimizerConfig(shared_forward=setting, max_grad_norm=1e9)
        )
        batch = packed(rollouts_of(made))[0]
        batch = dataclasses.replace(batch, micro=(micro_batch(made),))
        metrics.append(made.update([batch], Grpo(entropy_bonus=0.3), lr=0.0, progress=0.0))
        gradients.append(torch.cat([p.grad.flatten() for p in made.trainable]))
    allowed = GRADIENT if made.config.dtype == "float32" else 0.05
    assert (gradients[1] - gradients[0]).norm() < allowed * gradients[0].norm()
    for key in ("loss/total", "rollout/entropy"):
        assert metrics[1][key] == pytest.approx(metrics[0][key], rel=allowed, abs=1e-5)


def most_kept(made, batch):
    """The most bytes that autograd keeps for a backward at one time, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in made.base.parameters()}
    users, most = Counter(), 0
    sizes = {}

    class Kept:
        def __init__(self, tensor):
            nonlocal most
            self.tensor, self.storage = tensor, tensor.untyped_storage().data_ptr()
            sizes[self.storage] = tensor.untyped_storage().nbytes()
            users[self.storage] += self.storage not in weights
            most = max(most, sum(sizes[storage] for storage in +users))

        def __del__(self):
            users[self.storage] -= 1

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        made.update([batch], Grpo(), lr=0.0, progress=0.0)
    return most


@pytest.mark.slow
def test_low_memory_keeps_less_for_the_backward_than_the_plain_forward_of_one_completion():
    kept = {}
    for setting in ("off", "low_memory"):
        made = policy()
        made.use_optimizer(made.optimizer, OptimizerConfig(shared_forward=setting))
        (batch,) = packed(rollouts_of(made), micro_tokens=1 if setting == "off" else 10**6)
        kept[setting] = most_kept(made, batch)
    assert kept["low_memory"] <= kept["off"]


def test_low_memory_is_refused_where_checkpointing_would_drop_the_cache():
    made = policy(gradient_checkpointing=True)
    with pytest.raises(UserError, match="gradient_checkpointing"):
        made.use_optimizer(made.optimizer, OptimizerConfig(shared_forward="low_memory"))


# --------------------------------------------- what is wrong is noticed, by the tests and by the run


def leak(monkeypatch):
    """Completions see the earlier ones of their group."""

    layout_of = SharedLayout.of

    def one_long_completion(prompts, group, lengths):
        right = layout_of(prompts, group, lengths)
        sums = torch.zeros_like(prompts).index_add(0, group, lengths)
        wrong = layout_of(prompts, torch.arange(len(prompts)), sums)
        return dataclasses.replace(wrong, row_start=right.row_start)

    monkeypatch.setattr(SharedLayout, "of", one_long_completion)


def run_on(monkeypatch):
    """Positions of a completion go on where the one before it ended."""
    right = shared_forward.pack_row

    def wrong(micro, device):
        layout, ids, positions, scored = right(micro, device)
        for group, start in zip(micro.group, layout.row_start, strict=True):
            positions[:, 0, start:] += start - layout.prompt_end[group]
        return layout, ids, positions, scored

    monkeypatch.setattr(shared_forward, "pack_row", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("break_it", [leak, run_on])
def test_a_wrong_shared_forward_is_far_outside_the_tolerance(monkeypatch, break_it):
    made = policy()
    micro = micro_batch(made, images=(1,), counts=(3,))
    break_it(monkeypatch)
    logprobs, gradient = gaps(made, micro)
    assert logprobs > 1000 * LOGPROBS
    assert gradient > 500 * GRADIENT


@pytest.mark.slow
@pytest.mark.parametrize("break_it", [leak, run_on])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_notices_a_wrong_shared_forward_and_goes_on_without(
    monkeypatch, caplog, break_it, dtype
):
    plain, broken = policy("qwen3_vl", dtype=dtype), policy("qwen3_vl", dtype=dtype)
    plain.sharing = Sharing("off", 1.3, possible=True)
    micro = micro_batch(plain)
    expected, _ = plain.logprobs(micro)
    break_it(monkeypatch)
    with caplog.at_level(logging.WARNING, logger="vlmrl"):
        found = [broken.logprobs(micro)[0] for _ in range(2)]
    assert caplog.text.count("SHARED FORWARD SWITCHED OFF") == 1
    assert all(logprobs.equal(expected) for logprobs in found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, dropout=0.5)])
def test_a_run_finds_the_shared_forward_right(caplog, dtype, lora):
    made = policy(dtype=dtype, lora=lora)
    assert made.uses_shared_forward(micro_batch(made))
    assert made.sharing.verified
    assert made.base.training
    assert "SHARED FORWARD" not in caplog.text  # other libraries may have something to say


# ------------------------------------------------------------------------------ when it is used


def test_it_is_used_from_a_ratio_of_tokens_on():
    made = policy()
    micro = micro_batch(made, images=(1,), counts=(4,), longest=7)
    prompt_tokens = len(micro.prompts[0].encoded.ids)
    lengths = micro.lengths
    ratio = 4 * (prompt_tokens + 7) / (prompt_tokens + int(lengths.sum()))
    assert saving(micro) == pytest.approx(ratio)
    for threshold, expected in ((ratio - 0.01, True), (ratio + 0.01, False)):
        assert Sharing("auto", threshold, possible=True).pays(micro) is expected
    assert Sharing("on", ratio + 1, possible=True).pays(micro)
    assert not Sharing("off", 1.0, possible=True).pays(micro)
    assert not Sharing("on", 1.0, possible=False).pays(micro)
    assert not Sharing("on", 1.0, possible=True, verified=False).pays(micro)
    assert saving(rows_of(micro, torch.tensor([2]))) == 1


def test_the_token_budget_of_the_shared_forward_counts_a_prompt_once_and_no_padding():
    made = policy()
    rollouts = rollouts_of(made)
    prompts = [len(p.encoded.ids) for p in rollouts.batch.prompts]
    completions = [len(c.token_ids) for group in rollouts.completions for c in group]
    budget = sum(prompts) + sum(completions)
    for micro_tokens, expected in ((budget, 1), (budget - 1, 2)):
        (batch,) = packed(rollouts, micro_tokens=micro_tokens, sharing=True)
        assert len(batch.micro) == expected
    (batch,) = packed(rollouts, micro_tokens=budget)
    assert len(batch.micro) > 2


def test_it_cannot_be_switched_on_where_the_attention_has_no_shared_form():
    made = policy(attention="eager")
    settings = OptimizerConfig(shared_forward="on")
    with pytest.raises(UserError, match=r"optimizer\.shared_forward.*eager"):
        made.use_optimizer(made.optimizer, settings)
    assert not made.uses_shared_forward(micro_batch(made))


def test_the_vision_tower_sees_every_picture_once():
    made = policy()
    micro = micro_batch(made)
    patches = []
    made.base.model.visual.register_forward_pre_hook(lambda _, args: patches.append(len(args[0])))
    expected = sum(len(p.encoded.tensors["pixel_values"]) for p in micro.prompts if p.images)
    for shared in (False, True):
        patches.clear()
        numbers(made, micro, shared)
        assert patches == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_updates_old_and_reference_logprobs_are_the_same_with_it_and_without(tmp_path, lora):
    weights = {}
    for setting in ("on", "off"):
        torch.manual_seed(0)  # the adapter's weights
        made = policy(lora=lora)
        descent = torch.optim.SGD(made.trainable)
        made.use_optimizer(descent, OptimizerConfig(shared_forward=setting, max_grad_norm=1e9))
        made.keep_reference(tmp_path / setting)
        batches = packed(rollouts_of(made), updates=2, micro_tokens=200)
        for _ in range(2):
            filled = made.with_old(made.with_reference(batches))
            metrics = made.update(filled, Grpo(kl=0.1), lr=0.1, progress=0.0)
        assert metrics["update/shared"] == (setting == "on")
        own = [filled[0].micro[0].old_logprobs, filled[0].micro[0].ref_logprobs]
        weights[setting] = [*own, *made.trainable]
    for mine, other in zip(weights["on"], weights["off"], strict=True):
        torch.testing.assert_close(mine, other, atol=5e-6, rtol=0)


# --------------------------------------------------------------------- the attention by itself

GROUPS = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
    min_size=1,
    max_size=3,
)


def layout_of(groups):
    """The layout; per token its group, completion (-1: prompt), and place without the others."""
    prompts = torch.tensor([length for length, _ in groups])
    rows = [(n, length) for n, (_, lengths) in enumerate(groups) for length in lengths]
    group, lengths = torch.tensor(rows).T
    tokens = []
    for n, (length, completions) in enumerate(groups):
        start = len(tokens)
        tokens += [(n, -1, start + i) for i in range(length)]
        for number, steps in enumerate(completions):
            tokens += [(n, number, start + length + i) for i in range(steps)]
    return SharedLayout.of(prompts, group, lengths), tokens


def whole_mask(tokens, window):
    """[L, L]: which tokens a token of the packed row may see, said plainly."""
    return torch.tensor(
        [
            [
                group == other and part in (-1, mine) and here - window < there <= here
                for other, part, there in tokens
            ]
            for group, mine, here in tokens
        ]
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(GROUPS, st.sampled_from([1, 3]), st.sampled_from([1, 3, 99]), st.integers(0, 2**16))
def test_the_cascade_equals_attention_under_the_whole_mask(groups, queries_per_key, window, seed):
    layout, tokens = layout_of(groups)
    function = causal_mask_function if window == 99 else sliding_window_causal_mask_function(window)
    generator = torch.Generator().manual_seed(seed)

    def draw(heads):
        shape = (layout.length, heads, 8)
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    inputs = draw(2 * queries_per_key), draw(2), draw(2)
    out = Cascade.apply(*inputs, SharedMask.of(layout, function), 0.3)
    q, k, v = (x.transpose(0, 1)[None] for x in inputs)
    seen = whole_mask(tokens, window)
    whole = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=0.3, enable_gqa=True
    )
    expected = whole[0].transpose(0, 1)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(
        torch.autograd.grad(out, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_the_products_for_other_devices_equal_the_fused_kernel(causal, masked):
    torch.manual_seed(0)
    q, grad = torch.randn(2, 6, 5, 8), torch.randn(2, 6, 5, 8)
    k, v = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = None
    if masked:
        mask = torch.zeros(2, 1, 5, 5).masked_fill(torch.rand(2, 1, 5, 5) < 0.3, -torch.inf)
        mask.diagonal(dim1=2, dim2=3).zero_()
    how = 0.3, causal, mask
    fused, plain = (attend(q, k, v, *how, fused) for fused in (True, False))
    for mine, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(mine, other)
    grads = (attend_backward(grad, q, k, v, *fused, *how, f) for f in (True, False))
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other)


SOFT = 60
"""The id of a token of an image, in completions as in prompts."""


def small_gemma():
    config = Gemma3Config(
        text_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": 64,
            "sliding_window": 6,
        },
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
    )
    torch.manual_seed(0)
    return Gemma3ForConditionalGeneration(config).eval()


@pytest.mark.parametrize(
    "images",
    [
        pytest.param([(2, 8), (18, 22)], id="in prompts"),
        pytest.param([(2, 8), (10, 12), (13, 17), (24, 27), (29, 30)], id="in completions"),
    ],
)
def test_images_that_see_themselves_both_ways_and_windows_are_honoured(images):
    """Gemma 3: image blocks are bidirectional, most layers have a sliding window; two groups."""
    model = small_gemma()
    sizes = [(9, [3, 5]), (7, [4, 1, 2])]
    layout, tokens = layout_of(sizes)
    ids = torch.randint(0, SOFT, (1, layout.length))
    positions = torch.tensor([place for _, _, place in tokens])
    starts = torch.tensor([0, 17])[torch.tensor([group for group, _, _ in tokens])]
    kinds = torch.zeros_like(ids)
    for first, end in images:
        kinds[0, first:end] = 1

    def hidden(ids, positions, kinds):
        return model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=positions,
            token_type_ids=kinds,
        ).last_hidden_state[0]

    alone = torch.zeros(layout.length, 32)
    for group, part in {(g, p) for g, p, _ in tokens if p >= 0}:
        mine = torch.tensor([g == group and p in (-1, part) for g, p, _ in tokens])
        row = (positions - starts)[mine][None]
        alone[mine] = hidden(ids[:, mine], row, kinds[:, mine]).detach()
    assert attention.install(model)
    with sharing(layout):
        found = hidden(ids, (positions - starts)[None], kinds)
    torch.testing.assert_close(found, alone, atol=2e-5, rtol=0)


@dataclasses.dataclass(frozen=True)
class ImagesInCompletions(Gemma3):
    """Gemma 3 whose completions hold images too; an image's tokens have the embedding of `SOFT`."""

    def decode(self, model, input_ids, attention_mask, position_ids, features, cache=None):
        features = [model.get_input_embeddings()(input_ids)[input_ids == SOFT]]
        return super().decode(model, input_ids, attention_mask, position_ids, features, cache)


def one_mask_for_all(monkeypatch):
    """The mask of a group's first completion is used for all of them."""
    right = SharedMask.of

    def wrong(layout, function):
        mask = right(layout, function)
        if mask.own is None:
            return mask
        groups, per_group, _ = layout.completions.index.shape
        first = mask.own.unflatten(0, (groups, per_group))[:, 0]
        return dataclasses.replace(mask, own=first.repeat_interleave(per_group, 0))

    monkeypatch.setattr(SharedMask, "of", wrong)


@pytest.mark.parametrize("broken", [False, True])
def test_the_comparison_takes_completions_whose_masks_differ(monkeypatch, broken):
    """Only the third completion of four holds an image."""
    made = policy()
    micro = micro_batch(made, images=(0,), counts=(4,), longest=8)
    ids = torch.randint(0, SOFT, (4, 8), generator=torch.Generator().manual_seed(0))
    ids[2, 2:6] = SOFT
    micro = dataclasses.replace(micro, token_ids=ids, mask=torch.ones(4, 8, dtype=torch.bool))
    prompt = micro.prompts[0]
    encoded = dataclasses.replace(
        prompt.encoded,
        ids=tuple(i % SOFT for i in prompt.encoded.ids),
        position_ids=prompt.encoded.position_ids[:1],
    )
    micro = dataclasses.replace(micro, prompts=(dataclasses.replace(prompt, encoded=encoded),))
    model = small_gemma()
    model.config.image_token_id = SOFT
    assert attention.install(model)
    if broken:
        one_mask_for_all(monkeypatch)
    choice = Sharing("on", 1.0, possible=True)
    choice.decide(disagreement(model, ImagesInCompletions(), micro, 1.0, 0), "float32")
    assert choice.verified is not broken


# ---------------------------------------------------------------------------------- out of memory


@dataclasses.dataclass(frozen=True)
class Hungry(Grpo):
    """GRPO on a device that has no memory for more than `most` completions at one time."""

    most: int = 3

    def loss(self, inputs):
        if len(inputs.new) > self.most:
            raise torch.OutOfMemoryError("no memory")
        return super().loss(inputs)


@pytest.mark.slow
def test_out_of_memory_halves_the_budget_says_so_and_changes_nothing_else(caplog):
    gradients, batches = [], None
    for algorithm in (Grpo(), Hungry()):
        made = policy()
        batches = packed(rollouts_of(made))
        made.update(batches, algorithm, lr=0.0, progress=0.0)
        gradients.append(torch.cat([p.grad.flatten() for p in made.trainable]))
    assert (gradients[1] - gradients[0]).abs().max() < 1e-6
    assert caplog.text.count("out of memory") == 2
    assert f"{num_tokens(batches[0].micro[0]) // 2} tokens" in caplog.text
    made.update(batches, Hungry(), lr=0.0, progress=0.0)
    assert caplog.text.count("out of memory") == 2, "the smaller budget is kept"


@pytest.mark.slow
def test_out_of_memory_with_a_single_completion_is_the_users_to_solve():
    made = policy()
    with pytest.raises(UserError, match="out of memory"):
        batches = packed(rollouts_of(made))
        made.update(batches, Hungry(most=0), lr=0.0, progress=0.0)


# ------------------------------------------------------------------------------------- whole runs

SCORE = "def score(completion):\n    return sum(completion.token_ids) % 7 / 7\n"
SHORT = [
    "run.threads=1",
    "run.steps=5",
    "run.report=false",
    "tracking.tensorboard=false",
    "sft=null",
    "evaluation=null",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "rollout.max_tokens=6",
    "optimizer.epochs=2",
    "algorithm={name: grpo, options: {kl: 0.5}}",
]


@pytest.mark.slow
def test_runs_with_it_and_without_it_have_the_same_curves(tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text(SCORE)
    curves = []
    for setting in ("on", "off"):
        folder = tmp_path / setting
        more = [f"run.dir={folder}", f"rewards=[{tmp_path}/sums.py:score]"]
        more.append(f"optimizer.shared_forward={setting}")
        monkeypatch.setattr(sys, "argv", ["vlmrl", "train", "quickstart", *SHORT, *more])
        with pytest.raises(SystemExit) as done:
            cli.main()
        assert done.value.code == 0
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line) for line in lines])
    assert [line["update/shared"] for line in curves[0]] == [1.0] * 5
    assert [line["update/shared"] for line in curves[1]] == [0.0] * 5
    assert max(abs(line["loss/total"]) for line in curves[0]) > 0.01
    for one, other in zip(*curves, strict=True):
        assert one["reward/mean"] == other["reward/mean"]
        assert one["loss/total"] == pytest.approx(other["loss/total"], abs=1e-4)
        assert one["update/grad_norm"] == pytest.approx(other["update/grad_norm"], rel=1e-3)
