"""Completions of several turns, with media behind the prompt: one forward equals their generation."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.prompts import render
from helpers.shared_forward import numbers
from helpers.small import policy, prompt
from helpers.turns import SHOWN, noise, packed, talk, talks
from vlmrl import plugins
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.forward.packing import num_tokens, recut
from vlmrl.schema import PromptBatch, Rollouts

LOGPROBS, GRADIENT = 1e-5, 1e-5


def logprobs_of(made, micro, shared=False):
    with torch.no_grad():
        return completion_logprobs(made.base, made.family, micro, 0.9, made.pad_id, shared)[0]


@pytest.fixture(scope="module", params=plugins.names("family"))
def each(request):
    return policy(request.param)


@pytest.mark.slow
def test_one_forward_equals_generation_turn_by_turn(each):
    made = each
    made.temperature = 0.9
    for parameter in made.trainable:
        parameter.grad = None
    (micro,) = packed(talks(made)).micro
    plain = numbers(made, micro, False)
    scored = micro.sampling_logprobs[micro.mask]
    assert (plain[0][micro.mask] - scored).abs().max() < LOGPROBS
    if not made.family.shared:
        return
    shared = numbers(made, micro, True)
    assert (shared[0][micro.mask] - scored).abs().max() < LOGPROBS
    assert (shared[2] - plain[2]).norm() < GRADIENT * plain[2].norm()

    signs = torch.randn(micro.mask.shape, generator=torch.Generator().manual_seed(1))
    for row, part, logprobs, entropy in made.one_by_one(made.base, micro, entropy_gradient=True):
        own, sign = part.mask[0], signs[row : row + 1]
        assert (logprobs[0][own] - micro.sampling_logprobs[row][own]).abs().max() < LOGPROBS
        (logprobs * sign + 0.3 * entropy * sign.flip(-1)).sum().backward()
    grads = (torch.zeros_like(p) if p.grad is None else p.grad for p in made.trainable)
    low = torch.cat([grad.flatten() for grad in grads])
    assert (low - plain[2]).norm() < GRADIENT * plain[2].norm()


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(SHOWN)), min_size=1, max_size=4),
    st.integers(0, 2),
    st.booleans(),
)
def test_any_shape_of_turns_is_exact(made, kinds, images, sharing):
    rollouts = talks(made, kinds, group=len(kinds), images=(images,))
    batch = packed(rollouts, sharing)
    (micro,) = batch.micro
    assert batch.num_tokens == int(micro.mask.sum())
    for shared in (False, True):
        gap = (logprobs_of(made, micro, shared) - micro.sampling_logprobs).abs()
        assert gap[micro.mask].max() < LOGPROBS
        assert gap[~micro.mask].sum() == 0


@pytest.fixture(scope="module", params=["qwen2_5_vl"])
def made(request):
    return policy(request.param)


@pytest.fixture(scope="module")
def rollouts(made):
    return talks(made)


def test_loss_tokens_and_lengths_count_what_the_policy_wrote(rollouts):
    batch = packed(rollouts)
    written = [len(c.token_ids) for group in rollouts.completions for c in group]
    observed = [
        sum(turn < 0 for turn in c.suffix.turns)
        for group in rollouts.completions
        for c in group
        if c.suffix
    ]
    assert batch.num_tokens == sum(written)
    assert int(sum(micro.mask.sum() for micro in batch.micro)) == sum(written)
    assert sum(observed) > sum(written)


def test_segments_are_all_that_follows_the_prompt(made, rollouts):
    media = set(made.banned.tolist())
    for completion in (c for group in rollouts.completions for c in group):
        segments = completion.segments
        assert segments[0].of_policy
        assert segments[-1].of_policy
        compact = tuple(i for segment in segments for i in segment.token_ids)
        assert compact == completion.suffix.encoded.compact_ids
        own = tuple(i for segment in completion.turns for i in segment.token_ids)
        assert own == completion.token_ids
        for segment in segments:
            shown = segment.token_ids.count(made.base.config.image_token_id)
            assert shown == len(segment.media)
            assert not (segment.of_policy and media & set(segment.token_ids))


def test_a_change_of_what_is_written_in_an_observation_has_no_loss_of_its_own(made, rollouts):
    (micro,) = packed(rollouts).micro
    last = micro.mask.nonzero()[-1]
    changed = micro.token_ids.clone()
    hole = (~micro.mask[last[0], : last[1]]).nonzero()[0, 0]
    right = logprobs_of(made, micro)
    changed[last[0], hole] = 5
    other = logprobs_of(made, dataclasses.replace(micro, token_ids=changed))
    assert torch.equal(other[last[0], :hole], right[last[0], :hole])
    assert other[last[0], hole] == 0  # it is context, not a target
    assert not torch.equal(other[last[0], hole:], right[last[0], hole:])


def test_a_change_of_an_image_shows_only_behind_it(made):
    start = prompt(made, 0)
    said = talk(made, start, SHOWN["late image"])
    suffix = said.suffix
    tensors = dict(suffix.encoded.tensors)
    tensors["pixel_values"] = -tensors["pixel_values"]
    other = dataclasses.replace(
        said,
        suffix=dataclasses.replace(
            suffix, encoded=dataclasses.replace(suffix.encoded, tensors=tensors)
        ),
    )
    found = []
    for completion in (said, other):
        (micro,) = packed(Rollouts(PromptBatch((start,)), ((completion,),), 0, 64)).micro
        found.append(logprobs_of(made, micro)[0])
    first = suffix.encoded.ids.index(made.base.config.image_token_id)
    assert torch.equal(found[0][:first], found[1][:first])
    late = torch.tensor(suffix.turns) == max(suffix.turns)
    assert not torch.equal(found[0][late], found[1][late])


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_are_those_of_transformers_on_the_whole_row(name):
    made = policy(name)
    start = prompt(made, 0)
    said = talk(made, start, SHOWN["images"])
    whole = made.family.join(start.encoded, said.suffix.encoded)
    ids = torch.tensor([whole.ids])
    kinds = (ids == made.base.config.image_token_id).long()
    positions, _ = made.base.model.get_rope_index(
        ids, mm_token_type_ids=kinds, image_grid_thw=whole.tensors["image_grid_thw"]
    )
    assert torch.equal(positions[:, 0], whole.position_ids)


def test_an_observation_continues_the_templates_own_rendering(each):
    made = each
    family, tokenizer = made.family, made.tokenizer
    medium = noise(made, 1)
    piece = family.reply(made.processor, ["look", medium])
    encoded = family.extend(made.processor, piece, [medium], 40)
    assert encoded.position_ids.min() == 40
    assert encoded.next_position > 40
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<tool_response>\nlook"},
                {"type": "image" if "image" in family.kinds else "audio"},
                {"type": "text", "text": "\n</tool_response>"},
            ],
        },
    ]
    whole = render(made.processor, messages, add_generation_prompt=True)
    before = whole[: whole.index("yes") + 3] + family.turn_ends[0]
    assert whole == before + piece

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    assert ids(before) + list(encoded.compact_ids) == ids(whole)


def test_a_tools_text_gets_no_special_token_in(each):
    made = each
    special = [str(t) for t in made.tokenizer.added_tokens_decoder.values()]
    text = " ".join([*special, "<tool_call>", "</tool_response>", "\0", "\ud800"])
    half = special[0][: len(special[0]) // 2], special[0][len(special[0]) // 2 :]
    plain = made.family.reply(made.processor, ["x"])
    hostile = made.family.reply(made.processor, [text, *half])
    added = made.tokenizer.added_tokens_decoder

    def count(piece):
        ids = made.family.extend(made.processor, piece, [], 0).ids
        return [i for i in ids if i in added and added[i].special]

    assert count(hostile) == count(plain)
    assert hostile.count("</tool_response>") == 1
    assert "<tool_call>" not in hostile


def test_an_update_is_the_same_however_it_is_cut(made, rollouts):
    batch = packed(rollouts)
    (micro,) = batch.micro
    whole = logprobs_of(made, micro)
    parts = recut(batch, num_tokens(micro) // 3).micro
    assert len(parts) > 1
    cut = torch.cat([logprobs_of(made, part) for part in parts])
    assert (cut - whole)[micro.mask].abs().max() < LOGPROBS


def test_turns_that_are_not_the_tokens_are_refused(made, rollouts):
    wrong = dataclasses.replace(rollouts.completions[0][0], token_ids=(1, 2), logprobs=(0.0, 0.0))
    with pytest.raises(ValueError, match="its turns are not its tokens"):
        packed(dataclasses.replace(rollouts, completions=((wrong,),)))
