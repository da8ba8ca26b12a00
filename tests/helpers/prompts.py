"""Prompts around given media, what the Hugging Face processor makes of them, and their logits."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from PIL import Image

from helpers.small import audio
from helpers.videos import video
from vlmrl import plugins
from vlmrl.data.prompt import make_prompt
from vlmrl.schema import Box, Media, MediaKind, Sample, Truth, Turn
from vlmrl.schema.media import Audio, Video, kind_of

IMAGE_FAMILIES = [n for n in plugins.names("family") if "image" in plugins.load("family", n).kinds]
TRUTH = Truth(boxes=(Box(0.1, 0.1, 0.5, 0.5),))
VOXTRAL = "VoxtralProcessor"


def image(size=(84, 56), seed=0):
    """Noise of this width and height."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def ask(model, *media, text="Where is the red shape?"):
    """A prompt with these media before its text."""
    parts = (*(Media(kind_of(m), data=b"-") for m in media), text)
    sample = Sample("row-1", "t", parts, Truth())
    return make_prompt(sample, list(media), model.family, model.processor)


def ask_about_images(model, *sizes, text="Where is the red shape?"):
    """A prompt with images of these sizes before its text."""
    return ask(model, *(image(size, seed) for seed, size in enumerate(sizes)), text=text)


def mix_images(model):
    """Prompts of one image, of three, of none, of one that may become several tiles."""
    sizes = [[(64, 48)], [(100, 100), (300, 90), (64, 48)], [], [(90, 300)]]
    return [ask_about_images(model, *s, text="Where?" + " red" * i) for i, s in enumerate(sizes)]


VIDEO_CASES = {
    "one": lambda: [video(8, fps=4.0, size=(112, 84))],
    "odd": lambda: [video(5, fps=2.0, size=(84, 56))],
    "a single frame": lambda: [video(1, fps=2.0, size=(84, 56))],
    "two": lambda: [video(4, fps=2.0, size=(84, 84)), video(6, fps=5.0, size=(112, 140))],
    "mixed": lambda: [image(seed=1), video(4, fps=2.0, size=(84, 84)), image(seed=2)],
    "uneven": lambda: [video(4, times=(0.0, 0.1, 0.2, 3.0), size=(168, 168))],
}
"""Media of one prompt: one and several videos, with images, odd counts, uneven times."""


def hf_inputs(model, prompt):
    """What the HF processor makes of the same prompt."""
    videos = [m for m in prompt.media if isinstance(m, Video)]
    if videos and hasattr(model.processor.video_processor, "temporal_patch_size"):
        videos = [v.paired() for v in videos]
    heard = [m.samples for m in prompt.media if isinstance(m, Audio)]
    if type(model.processor).__name__ == VOXTRAL:
        return voxtral_inputs(model.processor, prompt.text, heard)
    given = {"audio": heard} if heard else {}
    if videos and "omni" in type(model.processor).__name__.lower():
        size = dict(model.processor.video_processor.size)  # else the class's own default
        fps = len(videos[0].frames) / videos[0].duration
        own = {"fps": fps, "do_sample_frames": False, "size": size}
        given |= {"videos": [v.frames for v in videos], "videos_kwargs": own}
    elif videos:
        given |= {"videos": [v.frames for v in videos], "do_sample_frames": False}
        given |= {"video_metadata": [v.metadata for v in videos]}
    if "image" in model.family.kinds:
        given["images"] = list(prompt.images) or None
    begun = prompt.text.startswith(model.processor.tokenizer.bos_token or "\0")
    return model.processor(
        text=[prompt.text], **given, add_special_tokens=not begun, return_tensors="pt"
    )


def render(processor, messages, **options):
    """The text that a chat template makes of messages; the method of Voxtral's processor has no templates."""
    named = type(processor).__name__
    of_class = transformers.ProcessorMixin if named == VOXTRAL else type(processor)
    return of_class.apply_chat_template(processor, messages, tokenize=False, **options)


def text_ids(model, text, media):
    """The ids that the HF processor makes of a text and the images or recordings in it."""
    processor, key = model.processor, "images"
    if own_kind(model) == "audio":
        key, media = "audio", [m.samples for m in media]
    if type(processor).__name__ == VOXTRAL:
        return voxtral_inputs(processor, text, media)["input_ids"][0].tolist()
    begun = text.startswith(processor.tokenizer.bos_token or "\0")
    out = processor(text=[text], **{key: media}, add_special_tokens=not begun, return_tensors="pt")
    return out["input_ids"][0].tolist()


def voxtral_inputs(processor, text, heard):
    """The ids of a text with 12.5 tokens a second of each recording, and the HF processor's chunks of them.

    Its `apply_chat_template` is mistral-common's: `tests/models/test_voxtral_vllm.py`.
    """
    chunk = processor.feature_extractor.n_samples
    first, *others = text.split("[AUDIO]")
    for samples, behind in zip(heard, others, strict=True):
        first += "[AUDIO]" * int(-(-len(samples) // chunk) * chunk / 16000 * 12.5) + behind
    inputs = processor.tokenizer(first, add_special_tokens=False, return_tensors="pt")
    if heard:
        own = {**processor.audio_kwargs, "pad_to_multiple_of": chunk}
        own["max_source_positions"] = chunk // 160
        inputs["input_features"] = processor._retrieve_input_features(heard, **own)
    return inputs


def logits(model, prompts, rows=None):
    """Our logits [B, T, V] of left-padded rows: towers once, spread, decode, head."""
    rows = range(len(prompts)) if rows is None else rows
    encoded = [p.encoded for p in prompts]
    longest = max(len(encoded[r].ids) for r in rows)
    some = encoded[0].position_ids
    ids = torch.full((len(rows), longest), model.processor.tokenizer.pad_token_id)
    mask, positions = torch.zeros_like(ids), some.new_zeros(len(some), *ids.shape)
    for row, r in enumerate(rows):
        n = len(encoded[r].ids)
        ids[row, -n:], mask[row, -n:] = torch.tensor(encoded[r].ids), 1
        positions[:, row, -n:] = encoded[r].position_ids
    with torch.no_grad():
        features = model.family.tower_features(model.model, encoded)
        features = model.family.spread(features, encoded, rows)
        hidden = model.family.decode(model.model, ids, mask, positions, features)
        return model.family.head(model.model)(hidden)


def own_kind(model) -> MediaKind:
    """The kind of media that tests show to a family."""
    return "image" if "image" in model.family.kinds else "audio"


def noise(model, number):
    """A medium of that kind."""
    if own_kind(model) == "audio":
        return audio(0.3 + 0.2 * number, number)
    shape = (56 + 28 * number, 84, 3)
    return Image.fromarray(np.random.default_rng(number).integers(0, 255, shape, np.uint8))


def conversation(model, **fields):
    """A sample with a system turn and two earlier exchanges, each turn of the user with a medium."""
    medium = Media(own_kind(model), data=b"-")
    history = (
        Turn("user", ("Look at this", medium, "please.")),
        Turn("assistant", ("A red shape.",)),
        Turn("user", (medium, "And this?")),
        Turn("assistant", ("Two green circles.",)),
    )
    parts = ("Now", medium, "where is it?")
    fields = {"system": "You are brief.", "history": history, **fields}
    return Sample("row-1", "test", parts, TRUTH, **fields)


def converse(model):
    """The prompt of a conversation."""
    media = [noise(model, number) for number in range(3)]
    return make_prompt(conversation(model), media, model.family, model.processor, "Answer.")


def assert_as_transformers(model, made, close=1e-5):
    """Hold ids, tensors and logits of a prompt against those of the HF processor and model."""
    inputs = hf_inputs(model, made)
    assert list(made.encoded.ids) == inputs["input_ids"][0].tolist()
    for name, tensor in made.encoded.tensors.items():
        assert torch.equal(tensor, inputs[name]), name
    with torch.no_grad():
        theirs = model.model(**inputs).logits
    torch.testing.assert_close(logits(model, [made]), theirs, atol=close, rtol=0)


def assert_rows_alone(model, prompts, rows, close=1e-5):
    """Hold the logits of prompts in rows of one batch against those of each prompt alone."""
    for row, r in zip(logits(model, prompts, rows), rows, strict=True):
        alone = logits(model, [prompts[r]])[0]
        torch.testing.assert_close(row[-len(alone) :], alone, atol=close, rtol=0)
