"""Engine `vllm_server` with videos and audio: the server sees what the trainer sees, to the bit."""

import base64
import dataclasses
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.prompts import VIDEO_CASES, ask
from helpers.small import mixed_batch, policy
from helpers.videos import video
from helpers.vllm_engine import SMALL, change, engine_for, listening_policy, tokens

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")


from vlmrl.engines import serve
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm_parts import job
from vlmrl.engines.vllm_parts.requests import (
    EngineFault,
    as_seen,
    pack,
    request,
    sampling_fields,
    unpack,
)
from vlmrl.engines.vllm_parts.server import RequestRefused
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.errors import UserError
from vlmrl.monitoring.run_checks import measure_parity
from vlmrl.schema import PromptBatch

GREEDY = Sampling(n=1, max_tokens=8, greedy=True)


def served(made, **options):
    return VllmServer(enforce_eager=True, **SMALL, **options).start(made)


def videos_of(made):
    """One prompt for each case: one and several videos, with images, odd counts, uneven times."""
    return [ask(made, *media()) for media in VIDEO_CASES.values()]


def logprobs(rollouts):
    return torch.tensor([c.logprobs for group in rollouts.completions for c in group])


def ids_seen(engine, made, prompt):
    """The prompt's ids after media expansion, as the server has them."""
    prompt = made.family.served(made.processor, prompt)
    fields = sampling_fields(made, GREEDY, 0)
    asked = job.Job([prompt], GREEDY, 0)
    asked.deadline = time.monotonic() + 60
    return job.ask(engine._servers[0], prompt, fields, asked).prompt_ids


@pytest.fixture(scope="module")
def pair():
    """A policy and an engine with one server; tests give both their weights back."""
    made = policy()
    engine = served(made, max_videos=2)
    yield made, engine
    engine.close()


def test_clips_have_the_trainers_ids_and_log_probs_before_and_after_a_sync(pair):
    made, engine = pair
    start = [weight.clone() for weight in made.trainable]
    prompts = [*videos_of(made), *mixed_batch(made).prompts]
    for prompt in prompts:
        assert ids_seen(engine, made, prompt) == prompt.encoded.ids
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    change(made)
    assert measure_parity(engine, made, prompts).max_abs > 1e-2  # the server does not know yet
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    with torch.no_grad():
        for weight, first in zip(made.trainable, start, strict=True):
            weight.copy_(first)
    made.version += 1
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5


def test_both_vllm_engines_and_hf_agree_on_clips(pair):
    made, server = pair
    inside = engine_for(made, max_videos=2)
    hf = Hf().start(made)
    batch = PromptBatch(tuple(videos_of(made)))
    reference = hf.generate(batch, GREEDY)
    for engine in (server, inside):
        found = engine.generate(batch, GREEDY)
        assert tokens(found) == tokens(reference)
        assert (logprobs(found) - logprobs(reference)).abs().max() < 1e-5
    inside.close()


def test_the_same_frames_at_other_times_are_another_clip(pair):
    made, engine = pair
    fast, slow = video(4, fps=2.0), video(4, fps=0.25)
    assert np.array_equal(fast.frames, slow.frames)
    prompts = [ask(made, one) for one in (fast, slow, fast)]
    positions = [prompt.encoded.position_ids for prompt in prompts]
    assert positions[0].max() < positions[1].max()
    assert measure_parity(engine, made, prompts).max_abs < 1e-5


def test_recordings_have_the_trainers_ids_and_log_probs_before_and_after_a_sync():
    made = listening_policy()
    engine = served(made)
    prompts = mixed_batch(made).prompts
    assert sum(len(prompt.media) for prompt in prompts) == 4
    for prompt in prompts:
        assert ids_seen(engine, made, prompt) == prompt.encoded.ids
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    change(made)
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    hf, batch = Hf().start(made), PromptBatch(prompts)
    assert tokens(engine.generate(batch, GREEDY)) == tokens(hf.generate(batch, GREEDY))
    engine.close()


def test_more_clips_than_the_server_was_started_for_are_refused_by_name(pair):
    made, engine = pair
    with pytest.raises(UserError, match=r"'row-1': 3 videos exceed the engine's max_videos \(2\)"):
        engine.generate(PromptBatch((ask(made, video(2), video(2), video(2)),)), GREEDY)


# --------------------------------------------------------------------------- files and processes


def test_turns_and_groups_write_a_clip_once_and_a_server_reads_no_other_file(pair, tmp_path):
    made, engine = pair
    folder = Path(engine._store.media) / "rank-0"
    clip, before = video(6, fps=3.0), set(folder.iterdir())
    batch = PromptBatch((ask(made, clip), ask(made, clip)))
    for seed in (1, 2):
        engine.generate(batch, Sampling(n=2, max_tokens=4, seed=seed))
    assert len(set(folder.iterdir()) - before) == 1
    secret = tmp_path / "secret.bmp"
    Image.new("RGB", (28, 28)).save(secret)
    body = request(ask(made), sampling_fields(made, GREEDY, 0), [])
    for url in (secret.as_uri(), (folder / ".." / ".." / ".." / secret.name).as_uri()):
        wrong = {**body, "content_parts": [{"type": "image_url", "url": url}]}
        with pytest.raises((RequestRefused, EngineFault), match=r"subpath|No such file"):
            engine._servers[0].post("/inference/v1/generate", wrong, 60.0, "test")


@pytest.mark.nightly
def test_a_server_of_several_processes_takes_weights_as_one_does():
    made = policy()
    engine = served(made, max_videos=2, api_processes=2)
    prompts = [*videos_of(made), *mixed_batch(made).prompts]
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    change(made)
    engine.sync(made)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    found = engine.generate(PromptBatch(tuple(prompts)), Sampling(n=2, max_tokens=6, seed=3))
    assert {v for g in found.completions for c in g for v, _ in c.versions} == {made.version}
    engine.close()


def test_a_server_that_does_not_read_the_media_folder_is_refused(pair, tmp_path, monkeypatch):
    made, engine = pair
    monkeypatch.setenv(serve.TOKEN, engine._servers[0].token)
    other = VllmServer(urls=[engine._servers[0].url], media_folder=str(tmp_path), **SMALL)
    with pytest.raises(UserError, match=r"it may not read .*--allowed-local-media-path"):
        other.start(made)
    assert not list(tmp_path.iterdir())
    within = Path(engine._store.media)
    other = VllmServer(
        urls=[engine._servers[0].url], media_folder=str(within), max_videos=2, **SMALL
    ).start(made)
    assert measure_parity(other, made, videos_of(made)[:1]).max_abs < 1e-5
    assert list(Path(other._store.media).rglob("*")) != []
    other.close()


# -------------------------------------------------------------------------------------- the bytes


def test_a_packed_clip_comes_out_to_the_bit():
    for one in (video(5, fps=29.97), video(4, times=(0.0, 0.1, 1 / 3, 3.0), size=(168, 56))):
        frames, metadata = as_seen(one)
        got, told = unpack(pack((frames, metadata)))
        assert got.dtype == np.uint8 and np.array_equal(got, frames)
        assert told == metadata and told["do_sample_frames"] is False


def test_only_so_many_large_clips_are_on_their_way_at_a_time():
    made = policy()
    frames = np.broadcast_to(np.uint8(0), (64, 1024, 1024, 3))  # 192 MiB, without the memory
    large = dataclasses.replace(ask(made), media=(dataclasses.replace(video(2), frames=frames),))
    for prompts, width in (([ask(made)] * 8, 8), ([ask(made), large] * 4, 2), ([large], 1)):
        assert job.Job(prompts, GREEDY, 0).width(max_num_seqs=64) == width


NO_VIDEOS = {
    "nothing": b"",
    "a pickle": pickle.dumps(np.zeros((2, 4, 4, 3), np.uint8)),
    "no shape": b'{"metadata": {}}\n',
    "too few bytes": b'{"shape": [2, 4, 4, 3], "metadata": {}}\n123',
    "one image": b'{"shape": [2, 2, 3], "metadata": {}}\n123456789012',
}


@pytest.mark.parametrize("data", NO_VIDEOS.values(), ids=NO_VIDEOS)
def test_what_is_no_packed_clip_is_refused(data):
    with pytest.raises(ValueError, match=r"expected a video|frames \[T, H, W, 3\]|reshape"):
        unpack(data)


def test_the_server_refuses_what_is_no_packed_clip_and_serves_on(pair):
    made, engine = pair
    prompt = ask(made, video(2))
    body = request(prompt, sampling_fields(made, GREEDY, 0), [])
    for data in NO_VIDEOS.values():
        url = "data:video/x-vlmrl;base64," + base64.b64encode(data).decode()
        wrong = {**body, "content_parts": [{"type": "video_url", "url": url}]}
        with pytest.raises(RequestRefused, match="400"):
            engine._servers[0].post("/inference/v1/generate", wrong, 60.0, "test")
    assert len(engine.generate(PromptBatch((prompt,)), GREEDY).completions) == 1
