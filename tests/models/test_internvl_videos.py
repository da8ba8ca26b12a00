"""InternVL's videos: frames that are named and numbered in the text, each as one tile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from transformers import BatchFeature

from helpers.prompts import ask, ask_about_images, image, logits
from helpers.shared_forward import (
    GRADIENT,
    LOGPROBS,
    TRAININGS,
    gaps,
    micro_batch,
    with_live_adapter,
)
from helpers.small import advantages, loaded, policy
from helpers.videos import video
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.models.loading import Loaded
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt, PromptBatch
from vlmrl.schema.media import Decoded, Video

CLOSE = {"atol": 1e-5, "rtol": 0}
CASES: dict[str, Callable[[], list[Decoded]]] = {
    "one": lambda: [video(5, fps=4.0, size=(112, 84))],
    "a single frame": lambda: [video(1, fps=2.0, size=(30, 200))],
    "two": lambda: [video(3, fps=2.0, size=(84, 84)), video(3, fps=0.5, size=(60, 140))],
    "mixed": lambda: [
        image((300, 90), seed=1),
        video(2, fps=2.0, size=(84, 84)),
        image(seed=2),
        video(2, times=(0.0, 3.0)),
    ],
}
"""Media of one prompt; the HF processor takes several videos if they have as many frames."""


def theirs(model: Loaded | Policy, prompt: Prompt) -> BatchFeature:
    """What the HF processor makes of a prompt."""
    videos = [m for m in prompt.media if isinstance(m, Video)]
    shown = {"videos": [v.frames for v in videos], "do_sample_frames": False}
    shown |= {"video_metadata": [v.metadata for v in videos]}
    return model.processor(
        text=[prompt.text],
        images=list(prompt.images) or None,
        **(shown if videos else {}),
        return_tensors="pt",
    )


@pytest.mark.parametrize("case", CASES)
def test_videos_are_encoded_and_computed_as_by_transformers(case: str) -> None:
    model = loaded("internvl")
    made = ask(model, *CASES[case]())
    inputs = theirs(model, made)
    assert list(made.encoded.ids) == inputs["input_ids"][0].tolist()
    assert torch.equal(made.encoded.tensors["pixel_values"], inputs["pixel_values"])
    assert torch.equal(made.encoded.position_ids, torch.arange(len(made.encoded.ids))[None])
    compact = list(made.encoded.compact_ids)
    assert model.processor.tokenizer.decode(compact, skip_special_tokens=False) == made.text
    with torch.no_grad():
        torch.testing.assert_close(logits(model, [made]), model.model(**inputs).logits, **CLOSE)


def test_a_prompt_is_what_the_chat_template_of_the_hf_processor_makes() -> None:
    model = loaded("internvl")
    clip = video(3, fps=2.0)
    content = [{"type": "video", "video": clip.frames}, {"type": "text", "text": "Where?"}]
    inputs = model.processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        do_sample_frames=False,
    )
    assert list(ask(model, clip, text="Where?").encoded.ids) == inputs["input_ids"][0].tolist()


def test_videos_of_unequal_lengths_are_shown_as_each_alone() -> None:
    model = loaded("internvl")
    clips = [video(1, fps=2.0), video(4, fps=2.0, size=(140, 60))]
    both, *alone = (ask(model, *shown) for shown in (clips, clips[:1], clips[1:]))
    pixels = [prompt.encoded.tensors["pixel_values"] for prompt in (both, *alone)]
    assert torch.equal(pixels[0], torch.cat(pixels[1:]))
    text = model.processor.tokenizer.decode(both.encoded.ids)
    frame = f"<img>{'<IMG_CONTEXT>' * 16}</img>"
    numbered = "\n".join(f"Frame{number}: {frame}" for number in range(1, 5))
    assert f"user\nFrame1: {frame}\n{numbered}\nWhere" in text


def test_vllm_is_shown_frames_under_the_id_that_it_gives_them() -> None:
    model = loaded("internvl")
    made = ask(model, *CASES["mixed"]())
    image_id, video_id = model.processor.tokenizer.convert_tokens_to_ids(
        ["<IMG_CONTEXT>", "<video>"]
    )
    seen = model.family.served(model.processor, made)
    assert seen.media == made.media and seen.encoded.compact_ids == made.encoded.compact_ids
    ours, theirs = made.encoded.ids, seen.encoded.ids
    assert [image_id if token == video_id else token for token in theirs] == list(ours)
    text = model.processor.tokenizer.decode(theirs)
    frames = "\n".join(f"Frame{number}: <img>{'<video>' * 16}</img>" for number in (1, 2))
    assert text.count(frames) == 2 and text.count("<video>") == 64
    assert text.count("<IMG_CONTEXT>") == ours.count(image_id) - 64


def test_rows_of_mixed_media_equal_each_prompt_alone() -> None:
    model = loaded("internvl")
    prompts = [ask(model, *CASES[c]()) for c in ("mixed", "one", "two")]
    prompts += [ask_about_images(model, (300, 90)), ask_about_images(model)]
    rows = [4, 0, 2, 2, 1, 3]
    alone = [logits(model, [prompt])[0] for prompt in prompts]
    for row, r in zip(logits(model, prompts, rows), rows, strict=True):
        torch.testing.assert_close(row[-len(alone[r]) :], alone[r], **CLOSE)


def test_the_frame_of_a_clip_holds_its_size_and_duration() -> None:
    model = loaded("internvl")
    frame = ask(model, video(4, fps=2.0, size=(100, 60))).frame
    assert (frame.width, frame.height, frame.duration) == (100, 60, 2.0)
    assert frame.space == model.family.space


def test_placeholders_must_be_those_of_the_media() -> None:
    model = loaded("internvl")
    made = ask(model, video(2), image())
    with pytest.raises(UserError, match=r"1 image placeholders for 1 images, .* another order"):
        model.family.encode(model.processor, made.text, made.media[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_engine_and_shared_forward_are_the_plain_trainers(training: dict[str, object]) -> None:
    made = with_live_adapter(policy("internvl", **training))
    prompts = tuple(ask(made, *CASES[c]()) for c in ("one", "mixed", "two"))
    rollouts = Hf().start(made).generate(PromptBatch(prompts), Sampling(2, 6, seed=1))
    (packed,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=2000, max_tokens=6)
    for micro in packed.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5
    batch = dataclasses.replace(micro_batch(made, (0, 0, 0), (2, 3, 2)), prompts=prompts)
    logprobs, gradient = gaps(made, batch)
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT
