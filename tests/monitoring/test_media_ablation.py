"""Media ablation with videos and audio: what other media are, and that they leave ids alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import small
from helpers.prompts import ask, hf_inputs, image
from helpers.videos import video
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.data.prompt import make_prompt, with_media, without_tensors
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.monitoring.media_ablation import Reliance, borrow_media, make_blanks, measure_reliance
from vlmrl.schema import Media, PromptBatch, Sample, Truth
from vlmrl.schema.media import Audio, Video
from vlmrl.scoring.scorer import Scorer


def found(policy, prompts, max_tokens=8, at_once=2):
    engine = Hf().start(policy)
    rewards = {source: [RewardConfig(verifier="format")] for source in ("noise", "t")}
    with Scorer(rewards, ScoringConfig()) as scorer:
        return measure_reliance(engine, policy, scorer, prompts, max_tokens, at_once)


def prompts_of(policy, case):
    """Three prompts of one kind."""
    if case == "recordings":
        return [small.prompt(policy, number, images=1 + number % 2) for number in range(3)]
    clips = [video(count, size=(84, 56)) for count in (4, 5, 6)]
    if case == "clips":
        return [ask(policy, one) for one in clips]
    return [ask(policy, image(seed=number), one) for number, one in enumerate(clips)]


CASES = [
    ("qwen2_5_vl", "clips"),
    ("qwen2_5_vl", "images and videos"),
    ("qwen3_vl", "clips"),
    ("qwen2_audio", "recordings"),
]


@pytest.mark.parametrize(("family", "case"), CASES)
def test_other_media_move_a_model_that_looks_and_leave_a_blind_one_where_it_is(family, case):
    policy = small.policy(family)
    sighted = found(policy, prompts_of(policy, case))
    assert abs(sighted.blank_logprob_drop) > 1e-2  # of random weights: up or down
    assert abs(sighted.swap_logprob_drop) > 1e-4
    blind = found(small.blind(policy), prompts_of(policy, case))
    assert abs(blind.blank_logprob_drop) < 1e-6
    assert abs(blind.swap_logprob_drop) < 1e-6
    assert (blind.blank_reward_drop, blind.blank_reward_error) == (0, 0)  # nothing is earned at all
    assert "the model hardly looks" in (blind.complaint(0.01) or "")


def test_how_many_prompts_are_computed_at_once_changes_nothing_and_their_tensors_are_not_used():
    policy = small.policy()
    prompts = [small.prompt(policy, number) for number in range(3)]
    whole = found(policy, prompts, at_once=3).metrics()
    for count in (1, 2):
        parts = found(policy, [*map(without_tensors, prompts)], at_once=count).metrics()
        assert parts == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(("family", "case"), CASES)
def test_a_prompt_keeps_its_ids_and_positions(family, case):
    policy = small.policy(family)
    prompts = prompts_of(policy, case)
    for prompt, lent in zip(prompts, borrow_media(prompts), strict=True):
        assert lent is not None
        for other in (make_blanks(prompt), lent):
            seen = with_media(prompt, other, policy.family, policy.processor)
            assert seen.encoded.ids == prompt.encoded.ids
            assert torch.equal(seen.encoded.position_ids, prompt.encoded.position_ids)


def test_a_blank_has_the_size_the_times_and_the_length_but_no_content():
    policy = small.policy()
    own = replace(video(4, times=(0.0, 0.1, 0.2, 3.0)), audio=small.audio(0.5))
    heard = small.audio(0.3)
    gray, still, silence = make_blanks(replace(ask(policy), media=(image(), own, heard)))
    assert gray.size == image().size and gray.getextrema() == ((128, 128),) * 3
    assert still.frames.shape == own.frames.shape and (still.frames == 128).all()
    assert (still.times, still.metadata) == (own.times, own.metadata)
    assert still.audio.duration == 0.5 and not still.audio.samples.any()
    assert silence.duration == 0.3 and not silence.samples.any()
    assert silence.samples.dtype == np.float32


def heard_by(policy, prompt, media):
    """What the HF processor makes of a prompt with other media."""
    seen = replace(prompt, media=tuple(media))
    if isinstance(media[0], Video):
        return hf_inputs(policy, seen)
    samples = [medium.samples for medium in media]
    return policy.processor(text=[prompt.text], audio=samples, return_tensors="pt")


@pytest.mark.parametrize(("family", "case"), [CASES[2], CASES[3]])
def test_the_drop_is_that_of_hugging_faces_own_model_under_blank_media(family, case):
    policy = small.policy(family)
    prompt = prompts_of(policy, case)[0]
    drop = found(policy, [prompt], max_tokens=3)
    engine = Hf().start(policy)
    ((written,),) = engine.generate(PromptBatch((prompt,)), Sampling(1, 3, greedy=True)).completions
    inputs = heard_by(policy, prompt, make_blanks(prompt))
    tokens = torch.tensor(written.token_ids)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens[None]], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        text = torch.zeros(1, len(tokens), dtype=torch.long)
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], text], 1)
    with policy.generating():
        logprobs = policy.base(**inputs).logits[0, -len(tokens) - 1 : -1].log_softmax(-1)
    blank = logprobs.gather(1, tokens[:, None]).mean().item()
    assert drop.blank_logprob_drop == pytest.approx(np.mean(written.logprobs) - blank, abs=1e-5)
    assert drop.swap_logprob_drop is None  # there is no other prompt


def test_a_kind_that_does_not_arrive_is_told_apart_from_those_that_do():
    policy = small.policy("qwen2_5_omni")
    prompts = [listened(policy, image(seed=number), number) for number in range(2)]
    both = found(policy, prompts)
    assert set(both.kinds) == {"image", "audio"}
    assert all(abs(drop) > 1e-4 for drop in both.kinds.values())
    with torch.no_grad():
        for name, weight in policy.base.named_parameters():
            if "audio_tower.proj" in name:
                weight.zero_()
    deaf = found(policy, prompts)
    assert abs(deaf.kinds["audio"]) < 1e-6 < abs(deaf.kinds["image"])
    assert deaf.metrics()["media_ablation/blank_audio_logprob_drop"] == deaf.kinds["audio"]


def listened(policy, shown_image, number):
    """A prompt with an image and a recording."""
    parts = (Media("image", data=b"-"), Media("audio", data=b"-"), "What is heard?")
    media = [shown_image, small.audio(0.4, number)]
    sample = Sample(str(number), "t", parts, Truth())
    return make_prompt(sample, media, policy.family, policy.processor)


def test_a_complaint_names_the_kind():
    drops = {"image": 1.0, "video": 0.001, "audio": 0.5}
    said = Reliance(1.0, 1.0, 0.0, drops).complaint(0.01) or ""
    assert "hardly looks at its videos" in said
    assert Reliance(1.0, 1.0, 0.0, drops).complaint(0.0001) is None


# ------------------------------------------------------------------------------------ the donors


def with_own(*media):
    return replace(ask(small.policy()), media=media)


def test_a_clip_is_lent_evenly_spread_frames_of_another_at_its_own_times():
    long = video(8, size=(56, 56))
    short = video(4, size=(112, 84), times=(0.0, 0.1, 0.2, 3.0))
    (lent,) = borrow_media([with_own(short), with_own(long)])[0]
    assert lent.frames.shape == short.frames.shape and lent.frames.dtype == np.uint8
    assert (lent.times, lent.metadata) == (short.times, short.metadata)
    for frame, number in zip(lent.frames, (0, 2, 5, 7), strict=True):
        made = Image.fromarray(long.frames[number]).resize((112, 84))
        assert np.array_equal(frame, np.asarray(made))


def test_a_recording_is_lent_another_cut_or_repeated_to_its_length():
    one, other = small.audio(0.25, 1), small.audio(0.1, 2)
    (longer,), (shorter,) = borrow_media([with_own(one), with_own(other)])
    assert longer.samples.shape == one.samples.shape
    assert np.array_equal(longer.samples[:1600], other.samples)
    assert np.array_equal(longer.samples[1600:3200], other.samples)
    assert np.array_equal(shorter.samples, one.samples[:1600])
    assert isinstance(longer, Audio) and longer.rate == one.rate


def test_each_kind_comes_from_the_next_prompt_that_shows_another_of_it():
    film, music = video(4), small.audio(0.2, 1)
    mixed = with_own(image(seed=0), film)
    prompts = [mixed, with_own(music), with_own(image(seed=1)), with_own(video(6))]
    first, second, third, fourth = borrow_media(prompts)
    assert second is None  # no other recording
    assert np.array_equal(np.asarray(first[0]), np.asarray(image(seed=1)))
    assert np.array_equal(first[1].frames, video(6).frames[[0, 2, 3, 5]])
    assert np.array_equal(np.asarray(third[0]), np.asarray(image(seed=0)))
    assert len(fourth[0].frames) == 6


def test_prompts_without_a_donor_do_not_keep_others_from_being_measured():
    policy = small.policy()
    prompts = [ask(policy, image(seed=0)), ask(policy, image(seed=1)), ask(policy, video(4))]
    together = found(policy, prompts)
    assert together.swap_logprob_drop == pytest.approx(
        found(policy, prompts[:2]).swap_logprob_drop, abs=1e-6
    )
