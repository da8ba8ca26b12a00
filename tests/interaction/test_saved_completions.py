"""What a checkpoint keeps of completions of several turns comes back equal."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from helpers import small, turns
from helpers.small import audio
from helpers.videos import video
from vlmrl.errors import UserError
from vlmrl.interaction import saved_completions as saved
from vlmrl.schema import Box, Call


@pytest.fixture(scope="module")
def made():
    return small.policy()


def kept(completion, tmp_path):
    """What becomes of a completion in a checkpoint's files."""
    media: dict[str, np.ndarray] = {}
    text = json.dumps(saved.to_json(completion, media))
    save_file({**media, "-": np.zeros(1, np.uint8)}, tmp_path / "observed.safetensors")
    return json.loads(text), load_file(tmp_path / "observed.safetensors")


@pytest.mark.parametrize("observations", [[], [["look", 1]]])
def test_the_experts_that_an_engine_chose_come_back_equal(tmp_path, observations):
    made = small.policy("qwen3_vl_moe", router_replay=True)
    prompt = small.prompt(made)
    said = turns.talk(made, prompt, observations)
    fields, media = kept(said, tmp_path)
    assert saved.media_of([fields]) == media.keys() - {"-"}
    found = saved.from_json(made, prompt, fields, media)
    for name in ("prompt", "written"):
        before, after = getattr(said.experts, name), getattr(found.experts, name)
        assert before.dtype == after.dtype == np.uint8
        assert np.array_equal(before, after)
    assert len(found.experts.prompt) == len(prompt.encoded.ids)


@pytest.mark.parametrize("observations", [[], [["wait"]], [["look", 1], [2, "and", 0]]])
def test_a_completion_comes_back_equal(made, tmp_path, observations):
    prompt = small.prompt(made)
    said = turns.talk(made, prompt, observations)
    called = Call("crop", {"bbox_2d": [1, 2, 3, 4]}, "ok", box=Box(0.1, 0.2, 0.3, 0.4), image=1)
    first = dataclasses.replace(said.segments[0], calls=(called,), reward=0.5)
    said = dataclasses.replace(said, segments=(first, *said.segments[1:]))
    fields, media = kept(said, tmp_path)
    assert saved.media_of([fields]) == media.keys() - {"-"}
    found = saved.from_json(made, prompt, fields, media)
    shown = [medium.tobytes() for segment in found.segments for medium in segment.media]
    assert shown == [m.tobytes() for segment in said.segments for m in segment.media]
    if said.suffix is not None:
        assert found.suffix.turns == said.suffix.turns
        assert found.suffix.encoded.ids == said.suffix.encoded.ids
        assert torch.equal(found.suffix.encoded.position_ids, said.suffix.encoded.position_ids)
        for name, tensor in said.suffix.encoded.tensors.items():
            assert torch.equal(found.suffix.encoded.tensors[name], tensor)
    bare = [
        [dataclasses.replace(segment, media=()) for segment in one.segments]
        for one in (found, said)
    ]
    assert bare[0] == bare[1]
    same = dataclasses.replace(said, segments=found.segments, suffix=found.suffix)
    assert found == same


def test_audio_and_videos_lose_nothing():
    media: dict[str, np.ndarray] = {}
    heard, seen = audio(0.2), video(3)
    seen = dataclasses.replace(seen, audio=heard)
    names = [saved._store(medium, media) for medium in (heard, seen)]
    other, again = (saved._load(name, media) for name in names)
    assert np.array_equal(other.samples, heard.samples) and other.rate == heard.rate
    assert np.array_equal(again.frames, seen.frames)
    assert np.array_equal(again.audio.samples, heard.samples)
    plain = [dataclasses.replace(one, frames=None, audio=None) for one in (again, seen)]
    assert dataclasses.asdict(plain[0]) == dataclasses.asdict(plain[1])


def test_what_is_missing_is_named(made, tmp_path):
    prompt = small.prompt(made)
    fields, _ = kept(turns.talk(made, prompt, [[1]]), tmp_path)
    with pytest.raises(UserError, match="lacks what was observed"):
        saved.from_json(made, prompt, fields, {})
