"""MiniCPM-V 4.6: slices, numbered images over turns, videos, and states behind both kinds of padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMultimodalLM, BatchFeature

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
from vlmrl.forward.packing import pack
from vlmrl.models.loading import Loaded
from vlmrl.policy.policy import Policy
from vlmrl.schema import Prompt, PromptBatch
from vlmrl.schema.media import Decoded, Video

CLOSE = {"atol": 1e-5, "rtol": 0}
CASES: dict[str, Callable[[], list[Decoded]]] = {
    "an image": lambda: [image((64, 48))],
    "slices": lambda: [image((300, 90)), image((100, 400), seed=1)],
    "a video": lambda: [video(3, fps=2.0, size=(112, 84))],
    "frames in slices": lambda: [video(2, fps=2.0, size=(200, 100))],
    "two videos": lambda: [video(1, fps=2.0, size=(84, 84)), video(4, fps=0.1, size=(60, 140))],
    "mixed": lambda: [
        image((300, 90), seed=1),
        video(2, fps=1.0, size=(84, 84)),
        image(),
        video(1, fps=1.0),
    ],
    "text": list,
}
"""Media of one prompt."""


def theirs(model: Loaded | Policy, text: str, media: list[Decoded]) -> BatchFeature:
    """What the HF processor makes of a prompt."""
    videos = [m for m in media if isinstance(m, Video)]
    shown = {"videos": [v.frames for v in videos], "do_sample_frames": False}
    shown |= {"video_metadata": [v.metadata for v in videos]}
    images = [m for m in media if not isinstance(m, Video)]
    return model.processor(
        text=[text], images=images or None, **(shown if videos else {}), return_tensors="pt"
    )


def prompts_of(model: Loaded | Policy) -> list[Prompt]:
    return [ask(model, *CASES[case]()) for case in ("mixed", "text", "a video", "slices")]


@pytest.mark.parametrize("case", CASES)
def test_media_are_encoded_and_computed_as_by_transformers(case: str) -> None:
    model = loaded("minicpmv4_6")
    made = ask(model, *CASES[case]())
    inputs = theirs(model, made.text, CASES[case]())
    assert list(made.encoded.ids) == inputs["input_ids"][0].tolist()
    assert {*made.encoded.tensors} == {*inputs} - {"input_ids", "attention_mask"}
    for name, tensor in made.encoded.tensors.items():
        assert torch.equal(tensor, inputs[name]), name
    assert torch.equal(made.encoded.position_ids, torch.arange(len(made.encoded.ids))[None])
    with torch.no_grad():
        torch.testing.assert_close(logits(model, [made]), model.model(**inputs).logits, **CLOSE)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_rows_padded_on_either_side_equal_each_prompt_alone(left: bool) -> None:
    model, family = loaded("minicpmv4_6").model, loaded("minicpmv4_6").family
    prompts = prompts_of(loaded("minicpmv4_6"))
    encoded, rows = [p.encoded for p in prompts], [3, 0, 0, 2, 1]
    longest = max(len(e.ids) for e in encoded) + 3
    ids, mask, positions = torch.zeros(3, len(rows), longest, dtype=torch.long)
    places = [slice(-n, None) if left else slice(n) for n in (len(encoded[r].ids) for r in rows)]
    for i, (r, place) in enumerate(zip(rows, places, strict=True)):
        ids[i, place], mask[i, place] = torch.tensor(encoded[r].ids), 1
        positions[i, place] = encoded[r].position_ids
    with torch.no_grad():
        features = family.spread(family.tower_features(model, encoded), encoded, rows)
        hidden = family.decode(model, ids, mask, positions[None], features)
        found = family.head(model)(hidden)
    for i, (r, place) in enumerate(zip(rows, places, strict=True)):
        alone = logits(loaded("minicpmv4_6"), [prompts[r]])[0]
        torch.testing.assert_close(found[i, place], alone, **CLOSE)


def test_media_of_a_later_turn_are_numbered_on() -> None:
    model = loaded("minicpmv4_6")
    before, after = [image(), video(2), image(seed=1)], [video(1), image(seed=2)]
    made = ask(model, *before)
    text = model.family.reply(model.processor, ["Look:", *after])
    start = made.encoded.next_position
    more = model.family.extend(model.processor, text, after, start, made.media)
    whole = theirs(model, made.text + text, [*before, *after])
    joined = model.family.join(made.encoded, more)
    assert list(joined.ids) == whole["input_ids"][0].tolist()
    for name, tensor in joined.tensors.items():
        assert torch.equal(tensor, whole[name]), name
    shown = model.processor.tokenizer.decode(more.ids)
    assert "<image_id>1</image_id><image><|video_pad|>" in shown
    assert "<image_id>2</image_id><image><|image_pad|>" in shown


def test_a_processor_that_numbers_no_images_is_followed() -> None:
    model = loaded("minicpmv4_6")
    processor = type(model.processor)(
        image_processor=type(model.processor.image_processor)(use_image_id=False),
        video_processor=model.processor.video_processor,
        tokenizer=model.processor.tokenizer,
    )
    text = "<|image_pad|> and <|image_pad|>"
    media = [image(), image(seed=1)]
    ids = model.family.encode(processor, text, media).ids
    assert (
        list(ids)
        == theirs(model._replace(processor=processor), text, media)["input_ids"][0].tolist()
    )


def test_files_are_read_by_transformers_with_the_same_logits(tmp_path: Path) -> None:
    model = loaded("minicpmv4_6")
    model.family.save(model.model, str(tmp_path), model.model.state_dict())
    read = AutoModelForMultimodalLM.from_pretrained(tmp_path).eval()
    made = ask_about_images(model, (300, 90))
    with torch.no_grad():
        expected = read(**theirs(model, made.text, list(made.media))).logits
    torch.testing.assert_close(logits(model, [made]), expected, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_engine_and_shared_forward_are_the_plain_trainers(training: dict[str, object]) -> None:
    made = with_live_adapter(policy("minicpmv4_6", **training))
    prompts = tuple(prompts_of(made))
    rollouts = Hf().start(made).generate(PromptBatch(prompts), Sampling(2, 6, seed=1))
    (packed,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=2000, max_tokens=6)
    for micro in packed.micro:
        with torch.no_grad():
            ours, _ = made.logprobs(micro)
        assert (ours - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5
    batch = dataclasses.replace(micro_batch(made, (0,) * 4, (2, 1, 3, 2)), prompts=prompts)
    logprobs, gradient = gaps(made, batch)
    assert logprobs < 3 * LOGPROBS  # states round, too
    assert gradient < GRADIENT
