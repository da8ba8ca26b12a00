"""What the loss knows of a row reaches it through every forward and every cut, and at the right row."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.row_facts import RowFacts, facts_of
from helpers.shared_forward import rollouts_of
from helpers.small import policy, prompt
from vlmrl.config import OptimizerConfig
from vlmrl.data.prompt import mask_media
from vlmrl.forward.packing import pack, recut
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.schema.media import Audio


def packed(made, micro_tokens=10**6):
    rollouts, advantages = facts_of(rollouts_of(made))
    cut = {"updates": 1, "micro_tokens": micro_tokens, "max_tokens": 9}
    return rollouts, advantages, pack(rollouts, advantages, **cut)


def test_every_number_is_at_its_row_and_its_token():
    rollouts, advantages, whole = packed(policy())
    for batch in (*whole, recut(whole[0], 60), *packed(policy(), 60)[2]):
        seen = 0
        for micro in batch.micro:
            for row in range(len(micro.group)):
                p = int(micro.prompts[micro.group[row]].sample.id)
                ids = micro.token_ids[row][micro.mask[row]].tolist()
                written = [list(c.token_ids) for c in rollouts.completions[p]]
                g, size = written.index(ids), len(ids)
                if written.count(ids) > 1:
                    continue
                seen += 1
                assert torch.equal(micro.advantages[row, :size], advantages.values[p, g, :size])
                assert micro.extra["correct"][row].item() == advantages.extra["correct"][p, g]
                assert torch.equal(
                    micro.extra["place"][row, :size], torch.arange(size) / size_of(advantages)
                )
                assert micro.extra["origin"][row].item() == (3 if g == 0 else 0)
                stored = torch.tensor(rollouts.completions[p][g].logprobs) * (g == 0)
                assert torch.equal(micro.extra["stored_logprobs"][row, :size], stored)
        assert seen


def size_of(advantages):
    return advantages.values.shape[-1]


def test_numbers_for_too_few_tokens_are_refused():
    rollouts, advantages = facts_of(rollouts_of(policy()))
    short = replace(advantages, extra={"place": advantages.extra["place"][..., :2]})
    with pytest.raises(ValueError, match="place has 2 tokens"):
        pack(rollouts, short, updates=1, micro_tokens=999, max_tokens=9)


def trained(setting, micro_tokens=10**6):
    made = policy()
    descent = torch.optim.SGD(made.trainable)
    made.use_optimizer(descent, OptimizerConfig(shared_forward=setting, max_grad_norm=1e9))
    batches = packed(made, micro_tokens)[2]
    recipe = RowFacts()
    filled = made.with_masked_media(made.with_old(batches, entropy=True), seed=3)
    prepared = recipe.prepare(filled)
    chosen = torch.cat([m.extra["token_weight"][m.mask] for m in prepared[0].micro])
    assert 0 < chosen.mean() < 1
    hidden = [(m.extra["masked_media"] - m.old_logprobs).abs().max() for m in prepared[0].micro]
    assert max(hidden) > 1e-4, "hiding the media must change something"
    metrics = made.update(prepared, recipe, lr=0.1, progress=0.0)
    assert metrics["update/shared"] == (setting in ("on", "low_memory"))
    assert metrics["rollout/logprob_gap"] < 1e-4 or setting == "off"
    return [p.detach().clone() for p in made.trainable]


def test_all_forwards_and_all_cuts_give_the_same_update():
    plain = trained("off")
    for other in (trained("off", 60), trained("on"), trained("low_memory", 60)):
        for mine, theirs in zip(plain, other, strict=True):
            torch.testing.assert_close(mine, theirs, atol=5e-6, rtol=0)


def test_one_advantage_for_all_tokens_is_the_advantage_of_the_completion():
    made = policy()
    rollouts = rollouts_of(made)
    _, facts = facts_of(rollouts)
    by_row = replace(facts, values=facts.values[..., 0], extra={})
    by_token = replace(by_row, values=by_row.values[..., None].repeat(1, 1, size_of(facts)))
    weights = []
    for given in (by_row, by_token):
        made = policy()
        made.use_optimizer(torch.optim.SGD(made.trainable), OptimizerConfig())
        batches = pack(rollouts, given, updates=1, micro_tokens=10**6, max_tokens=9)
        made.update(batches, Grpo(), lr=0.1, progress=0.0)
        weights.append([p.detach().clone() for p in made.trainable])
    for mine, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=0)


# ------------------------------------------------------------------------------------ masked media


def test_hidden_patches_depend_on_seed_and_sample_alone():
    made = policy()
    shown = [prompt(made, 0, images=2), prompt(made, 1, images=1), prompt(made, 2, images=0)]

    def pixels(number, seed):
        hidden = mask_media(shown[number], made.family, made.processor, seed)
        return [np.asarray(image) for image in hidden.media]

    first = pixels(0, 1)
    assert all((a == b).all() for a, b in zip(first, pixels(0, 1), strict=True))
    assert any((a != b).any() for a, b in zip(first, pixels(0, 2), strict=True))
    assert mask_media(shown[2], made.family, made.processor, 1) is shown[2]
    for before, after in zip(shown[0].media, first, strict=True):
        black = (after == 0).all(-1)
        assert 0.2 < black.mean() < 0.95
        assert (after[~black] == np.asarray(before)[~black]).all()
        assert black[:14, :14].all() or not black[:14, :14].any()


def test_audio_is_silenced_in_pieces():
    made = policy("qwen2_audio")
    heard = prompt(made, 0)
    (hidden,) = mask_media(heard, made.family, made.processor, 1).media
    assert isinstance(hidden, Audio)
    (own,) = heard.media
    quiet = hidden.samples == 0
    assert 0.2 < quiet.mean() < 0.95
    assert (hidden.samples[~quiet] == own.samples[~quiet]).all()
