"""Router replay: the engine's choice of experts in every forward, weighed by the trainer's own router."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.shared_forward import numbers, packed
from helpers.small import mixed_batch, policy
from helpers.turns import packed as packed_turns
from helpers.turns import talks
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.forward.packing import rows_of
from vlmrl.policy.policy import Policy
from vlmrl.schema import Experts, MicroBatch, Rollouts

FAMILIES = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "qwen3_omni_moe")
UNKNOWN = 255


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest) -> Policy:
    return policy(request.param, router_replay=True)


def rollouts_of(made: Policy) -> Rollouts:
    engine = Hf().start(made)
    return engine.generate(mixed_batch(made), Sampling(n=3, max_tokens=6, seed=1))


def micro_of(made: Policy) -> MicroBatch:
    (batch,) = packed(rollouts_of(made))
    (micro,) = batch.micro
    return micro


def planted(made: Policy, micro: MicroBatch, seed: int = 0) -> MicroBatch:
    """The micro-batch with experts drawn by lot for every token; the rows of a prompt see it alike."""
    rng = np.random.default_rng(seed)
    routers = made.family.routers(made.base)
    layers, (num, k) = len(routers), next((r.num_experts, r.top_k) for r in routers.values())

    def draw(tokens: int) -> np.ndarray:
        order = rng.random((tokens, layers, num)).argsort(-1)
        return order[..., :k].astype(np.uint8)

    prompts = [draw(len(prompt.encoded.ids)) for prompt in micro.prompts]
    rows = zip(micro.group.tolist(), micro.lengths.tolist(), strict=True)
    return replace(micro, experts=tuple(Experts(prompts[p], draw(int(n) - 1)) for p, n in rows))


def slow_logprobs(made: Policy, micro: MicroBatch, row: int) -> torch.Tensor:
    """Log-probs of a row's tokens, its experts computed one by one for the choices that it has."""
    part = rows_of(micro, torch.tensor([row]))
    (prompt,), (experts,) = part.prompts, part.experts
    tokens = part.token_ids[0, : int(part.lengths)]
    ids = torch.cat([torch.tensor(prompt.encoded.ids), tokens[:-1]])[None]
    positions = [prompt.encoded.position_ids, part.follow(0, len(tokens) - 1)]
    chosen = np.concatenate([experts.prompt, experts.written])
    blocks = [layer.mlp for layer in made.family.language(made.base).layers]
    blocks = [block for block in blocks if hasattr(block, "experts")]
    assert len(chosen) == ids.shape[1] and chosen.shape[1] == len(blocks)
    kept = [block.forward for block in blocks]
    for number, block in enumerate(blocks):
        block.forward = slow_block(block, chosen[:, number])
    try:
        features = made.family.tower_features(made.base, [prompt.encoded])
        features = made.family.spread(features, [prompt.encoded], [0])
        hidden = made.family.decode(
            made.base, ids, torch.ones_like(ids), torch.cat(positions, 1)[:, None], features
        )[0, len(prompt.encoded.ids) - 1 :]
    finally:
        for block, forward in zip(blocks, kept, strict=True):
            block.forward = forward
    logits = made.family.head(made.base)(hidden) / 0.9
    return logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]


def slow_block(block: torch.nn.Module, chosen: np.ndarray):
    """A mixture of experts by its definition: for each token, a weighted sum over what it chose."""

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        out = []
        for x, experts in zip(hidden[0], chosen.tolist(), strict=True):
            logits = block.gate.weight @ x
            odds = logits.sigmoid() if hasattr(block, "shared_experts") else logits.exp()
            total = sum(odds[e] for e in experts)
            y = torch.zeros_like(x)
            for e in experts:
                gate, up = (block.experts.gate_up_proj[e] @ x).chunk(2)
                y = y + odds[e] / total * (block.experts.down_proj[e] @ (F.silu(gate) * up))
            if hasattr(block, "shared_experts"):
                y = y * block.gate.routed_scaling_factor + block.shared_experts(x)
            if hasattr(block, "shared_expert"):
                y = y + block.shared_expert_gate(x).sigmoid() * block.shared_expert(x)
            out.append(y)
        return torch.stack(out)[None]

    return forward


def logprobs_of(made: Policy, micro: MicroBatch, shared: bool = False) -> torch.Tensor:
    with torch.no_grad():
        return completion_logprobs(made.base, made.family, micro, 0.9, made.pad_id, shared)[0]


@pytest.mark.parametrize("shared", [False, True])
def test_replay_of_the_trainers_own_choices_changes_no_bit(made: Policy, shared: bool) -> None:
    micro = micro_of(made)
    assert all(micro.experts)
    with_replay = numbers(made, micro, shared)
    without = numbers(made, micro.rerouted, shared)
    for a, b in zip(with_replay, without, strict=True):
        assert torch.equal(a, b)


def test_low_memory_replay_of_own_choices_changes_no_bit(made: Policy) -> None:
    micro = micro_of(made)
    pairs = zip(
        made.one_by_one(made.base, micro), made.one_by_one(made.base, micro.rerouted), strict=True
    )
    for (_, _, with_replay, _), (_, _, without, _) in pairs:
        assert torch.equal(with_replay, without)


@pytest.mark.slow
def test_log_probs_of_other_choices_are_those_of_a_plain_sum_over_them(made: Policy) -> None:
    micro = planted(made, micro_of(made))
    plain, shared = logprobs_of(made, micro), logprobs_of(made, micro, shared=True)
    own = logprobs_of(made, micro.rerouted)
    made.temperature = 0.9
    with torch.no_grad():
        low = {row: one.clone() for row, _, one, _ in made.one_by_one(made.base, micro)}
    made.temperature = 1.0
    for row, length in enumerate(micro.lengths.tolist()):
        expected = slow_logprobs(made, micro, row).detach()
        for found in (plain[row], shared[row], low[row][0]):
            torch.testing.assert_close(found[:length], expected, atol=2e-5, rtol=0)
    assert (plain - own).abs().max() > 1e-2


def test_gradients_of_all_forwards_agree_and_reach_the_router(made: Policy) -> None:
    micro = planted(made, micro_of(made))
    plain, shared = (numbers(made, micro, s)[2] for s in (False, True))
    assert (shared - plain).norm() < 1e-5 * plain.norm()
    (name,) = [n for n in made.named if n.endswith("layers.1.mlp.gate.weight")]
    logprobs, _ = completion_logprobs(made.base, made.family, micro, 1.0, made.pad_id)
    (grad,) = torch.autograd.grad(logprobs[:, ::2].sum(), [made.named[name]])
    assert grad.abs().max() > 1e-4


@pytest.mark.parametrize("shared", [False, True])
def test_checkpointed_layers_choose_again_what_they_chose(made: Policy, shared: bool) -> None:
    name = made.config.build.family
    other = policy(name, router_replay=True, gradient_checkpointing=True)
    micro = planted(made, micro_of(made))
    expected, found = numbers(made, micro, shared), numbers(other, micro, shared)
    torch.testing.assert_close(found[2], expected[2], atol=1e-6, rtol=1e-5)
    assert (numbers(made, micro.rerouted, shared)[2] - expected[2]).norm() > 0.1 * expected[
        2
    ].norm()


def test_where_nothing_is_known_the_router_chooses(made: Policy) -> None:
    micro = planted(made, micro_of(made))
    forgotten = [
        Experts(np.full_like(e.prompt, UNKNOWN), np.full_like(e.written, UNKNOWN))
        for e in micro.experts
        if e
    ]
    own = logprobs_of(made, micro.rerouted)
    assert torch.equal(logprobs_of(made, replace(micro, experts=tuple(forgotten))), own)
    alone = replace(  # each row with a prompt of its own
        micro,
        prompts=tuple(micro.prompts[which] for which in micro.group.tolist()),
        group=torch.arange(len(micro.group)),
        experts=(None, *micro.experts[1:]),
    )
    for shared in (False, True):
        found = logprobs_of(made, alone, shared)
        torch.testing.assert_close(found[0], own[0], atol=1e-5, rtol=0)
        assert (found[1:] - own[1:]).abs().max() > 1e-2


def test_old_log_probs_are_of_the_engines_choice_and_those_of_the_reference_are_not(
    made: Policy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made.keep_reference(tmp_path_factory.mktemp("reference") / "reference")
    (batch,) = packed(rollouts_of(made))
    batch = replace(batch, micro=tuple(planted(made, m) for m in batch.micro))
    (passed,) = made.with_old(made.with_reference([batch]))
    for before, after in zip(batch.micro, passed.micro, strict=True):
        ours = completion_logprobs(made.base, made.family, before, 1.0, made.pad_id)[0]
        alone = completion_logprobs(made.base, made.family, before.rerouted, 1.0, made.pad_id)[0]
        assert after.old_logprobs is not None and after.ref_logprobs is not None
        torch.testing.assert_close(after.old_logprobs, ours.detach(), atol=1e-5, rtol=0)
        torch.testing.assert_close(after.ref_logprobs, alone.detach(), atol=1e-5, rtol=0)
        assert (ours - alone).abs().max() > 1e-2


def test_an_update_on_several_turns_knows_the_choices_of_all_tokens(made: Policy) -> None:
    (micro,) = packed_turns(talks(made)).micro
    for experts, suffix, own in zip(micro.experts, micro.suffixes, micro.lengths, strict=True):
        assert experts is not None and int(experts.written.max()) < 4
        assert len(experts.written) == (len(suffix.encoded.ids) if suffix else int(own)) - 1
    with_replay, without = (numbers(made, m, False) for m in (micro, micro.rerouted))
    for a, b in zip(with_replay, without, strict=True):
        assert torch.equal(a, b)


def test_what_was_chosen_when_a_token_was_sampled_counts() -> None:
    def rows(*values: int) -> np.ndarray:
        return np.array(values, np.uint8)[:, None, None]

    first = Experts(
        rows(1, 2), rows(3)
    )  # two tokens of the prompt, two written, of which one was read
    later = Experts(rows(9, 9, 9, 4, 5), rows(6, 7))  # the last of the first turn and one observed
    both = first.then(later)
    assert both.prompt.ravel().tolist() == [1, 2]
    assert both.written.ravel().tolist() == [3, 4, 5, 6, 7]


def test_models_without_experts_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"model\.router_replay: a model of type 'qwen2_5_vl' has no"
    ):
        policy("qwen2_5_vl", router_replay=True)
