"""Videos in the Qwen families and GLM's: ids, pixels, positions and logits against Hugging Face."""

import functools

import pytest
import torch

from helpers.prompts import VIDEO_CASES, ask, hf_inputs, logits
from helpers.shared_forward import GRADIENT, LOGPROBS, gaps, micro_batch
from helpers.small import FAMILIES, advantages, loaded, policy
from helpers.videos import video
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.schema import PromptBatch

CLOSE = {"atol": 1e-5, "rtol": 0}
OTHERS = ("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe")
each_family = pytest.mark.parametrize("name", (*FAMILIES, *OTHERS))
shared_policy = functools.cache(policy)


def hf_positions(model, inputs):
    keys = ("input_ids", "mm_token_type_ids", "image_grid_thw", "video_grid_thw")
    given = {key: inputs[key] for key in (*keys, "second_per_grid_ts") if key in inputs}
    if "second_per_grid_ts" in given:
        given["second_per_grid_ts"] = torch.as_tensor(given["second_per_grid_ts"])
    positions, delta = model.model.model.get_rope_index(**given)
    return positions[:, 0], inputs["input_ids"].shape[1] + delta.item()


@each_family
@pytest.mark.parametrize("case", VIDEO_CASES)
def test_ids_pixels_and_positions_equal_the_hf_processors(name, case):
    model = loaded(name)
    made = ask(model, *VIDEO_CASES[case]())

    theirs = hf_inputs(model, made)

    assert list(made.encoded.ids) == theirs["input_ids"][0].tolist()
    assert set(made.encoded.tensors) <= set(theirs)
    for key, tensor in made.encoded.tensors.items():
        assert torch.equal(tensor, theirs[key])
    placeholders = (model.processor.image_token_id, model.processor.video_token_id)
    assert sum(i in placeholders for i in made.encoded.compact_ids) == len(made.media)
    positions, following = hf_positions(model, theirs)
    if name != "qwen2_5_vl":  # for it see below
        assert torch.equal(made.encoded.position_ids, positions)
        assert made.encoded.next_position == following


@pytest.mark.parametrize("case", VIDEO_CASES)
def test_qwen2_5_positions_are_hfs_but_text_never_shares_those_of_frames(case):
    model = loaded("qwen2_5_vl")
    made = ask(model, *VIDEO_CASES[case]())
    theirs, _ = hf_positions(model, hf_inputs(model, made))
    ours, ids = made.encoded.position_ids, torch.tensor(made.encoded.ids)
    tokens = (model.processor.image_token_id, model.processor.video_token_id)

    late = 0  # by how much transformers is behind: it counts on from rows and columns alone
    for place in range(len(ids)):
        media, before = ids[place] in tokens, place and ids[place - 1] in tokens
        if before and not media:
            late = int(ours[:, :place].max()) + 1 - int(theirs[0, place])
        assert torch.equal(ours[:, place], theirs[:, place] + late), place
    assert made.encoded.next_position == int(ours.max()) + 1


def test_qwen2_5_counts_seconds():
    model = loaded("qwen2_5_vl")
    per_second = model.model.config.vision_config.tokens_per_second
    made = ask(model, video(8, fps=4.0, size=(56, 56)))
    is_video = torch.tensor(made.encoded.ids) == model.processor.video_token_id
    times = made.encoded.position_ids[0, is_video]
    assert (times - times[0]).unique().tolist() == [
        0,
        per_second // 2,
        per_second,
        3 * per_second // 2,
    ]


def test_qwen3_writes_the_seconds_of_uneven_frames():
    model = loaded("qwen3_vl")
    made = ask(model, video(6, times=(0.0, 0.1, 0.2, 3.0, 7.0, 7.5), size=(64, 64)))
    text = model.processor.tokenizer.decode(made.encoded.ids)
    assert [f"<{t} seconds>" in text for t in ("0.1", "1.6", "7.2")] == [True] * 3


def test_glm_writes_the_whole_second_behind_every_two_frames():
    model = loaded("glm4v_moe")
    made = ask(model, video(6, times=(0.0, 0.1, 1.2, 3.0, 7.9, 8.5), size=(56, 56)))
    text = model.processor.tokenizer.decode(made.encoded.ids)
    marks = "<|begin_of_image|>", "<|image|>" * 4, "<|end_of_image|>"
    steps = "".join(f"{''.join(marks)}{second}" for second in (0, 1, 7))
    assert f"<|begin_of_video|>{steps}<|end_of_video|>" in text


@each_family
@pytest.mark.parametrize("size", [(100, 60), (300, 40), (640, 480)])
def test_the_frame_of_a_clip_holds_sizes_and_duration(name, size):
    model = loaded(name)
    made = ask(model, video(4, fps=2.0, size=size))
    factor = model.processor.video_processor.patch_size
    _, rows, columns = made.encoded.tensors["video_grid_thw"][0].tolist()
    frame = made.frame
    assert (frame.width, frame.height) == size
    assert (frame.resized_width, frame.resized_height) == (columns * factor, rows * factor)
    assert (frame.duration, frame.space) == (2.0, model.family.space)


@each_family
def test_a_clip_that_the_model_refuses_is_a_clear_error(name):
    with pytest.raises(UserError, match="video of 3x900 pixels is refused"):
        ask(loaded(name), video(4, fps=2.0, size=(3, 900)))


@each_family
@pytest.mark.parametrize("case", ["one", "two", "mixed"])
def test_logits_equal_the_hf_models_own_forward(name, case):
    model = loaded(name)
    made = ask(model, *VIDEO_CASES[case]())
    inputs = hf_inputs(model, made)
    if name.startswith("glm") and case == "mixed":  # transformers counts its frames, images, twice
        with pytest.raises(ValueError, match="Image features and image tokens do not match"):
            model.model(**inputs)
        return
    with torch.no_grad():
        theirs = model.model(**inputs, position_ids=made.encoded.position_ids[:, None]).logits
    torch.testing.assert_close(logits(model, [made]), theirs, **CLOSE)


@each_family
def test_rows_of_mixed_media_equal_each_prompt_alone(name):
    model = loaded(name)
    prompts = [ask(model, *VIDEO_CASES[c]()) for c in ("mixed", "one", "two")] + [ask(model)]
    rows = [1, 1, 0, 3, 2, 0]
    alone = [logits(model, [p])[0] for p in prompts]
    for row, r in zip(logits(model, prompts, rows), rows, strict=True):
        torch.testing.assert_close(row[-len(alone[r]) :], alone[r], **CLOSE)


@pytest.mark.slow
@each_family
def test_the_hf_engines_log_probs_and_the_shared_forward_are_the_trainers(name):
    made = shared_policy(name)
    prompts = tuple(ask(made, *VIDEO_CASES[c]()) for c in ("one", "mixed", "two"))
    engine = Hf().start(made)
    rollouts = engine.generate(PromptBatch(prompts), Sampling(n=2, max_tokens=6, seed=1))
    (packed,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=2000, max_tokens=6)
    for micro in packed.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5
    drawn = {t for group in rollouts.completions for c in group for t in c.token_ids}
    assert not drawn & set(made.banned.tolist())

    import dataclasses

    micro = dataclasses.replace(micro_batch(made, (0, 0, 0), (3, 2, 4)), prompts=prompts)
    logprobs, gradient = gaps(made, micro)
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT
