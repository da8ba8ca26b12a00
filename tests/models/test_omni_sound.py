"""Videos that Qwen2.5-Omni hears, against Hugging Face's own code (`use_audio_in_video`)."""

import dataclasses
import functools
import json

import pytest
import torch

from helpers.audios import muxed, tone
from helpers.prompts import ask, image, logits
from helpers.shared_forward import GRADIENT, LOGPROBS, gaps, micro_batch
from helpers.small import audio, loaded, policy
from helpers.videos import video
from vlmrl.assemble import lifecycle
from vlmrl.config import ScoringConfig, load
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.evaluate import evaluate_model
from vlmrl.features.report.page import build_report
from vlmrl.monitoring.run_checks import measure_parity
from vlmrl.parts.strategies.shuffled_frames import ShuffledFrames
from vlmrl.schema import PromptBatch
from vlmrl.schema.media import PilImage, Video
from vlmrl.scoring.scorer import Scorer
from vlmrl.system.timers import PhaseTimers
from vlmrl.training.strategy import BatchDraw, RunParts

NAME = "qwen2_5_omni"


def heard(count, seconds, fps=2.0):
    return dataclasses.replace(
        video(count, fps=fps, size=(84, 56)), audio=audio(seconds, seed=count)
    )


CASES = {
    "as long as its frames": (heard(6, 3.0),),
    "shorter than a turn": (heard(2, 0.9),),
    "heard for a moment only": (heard(4, 0.2),),
    "a turn exactly": (heard(4, 2.0),),
    "one token beyond a turn": (heard(4, 2.04),),
    "heard longer than seen": (heard(4, 7.3),),
    "seen longer than heard": (heard(16, 2.7),),
    "odd frames": (heard(5, 2.6),),
    "25 frames a second": (heard(56, 2.3, fps=25.0),),
    "uneven to a turn": (heard(14, 4.7, fps=2.99),),
    "frames leap over turns": (heard(6, 20.0, fps=0.25),),
    "with an image and a recording": (image((84, 56)), heard(6, 2.9), audio(1.3)),
    "after a recording": (audio(0.7), heard(6, 4.4), image((56, 84)), audio(0.3)),
    "two": (heard(6, 2.9), image((84, 56)), heard(8, 4.2)),
}


@functools.cache
def made(case):
    return ask(loaded(NAME), *CASES[case])


def hf_inputs(model, prompt):
    """What the HF processor makes of it when it is told to hear videos."""
    clips = [m for m in prompt.media if isinstance(m, Video)]
    sounding = [m for m in prompt.media if not isinstance(m, PilImage)]
    sounds = [m.audio if isinstance(m, Video) else m for m in sounding]
    told = {"use_audio_in_video": True}
    if hasattr(model.processor, "load_audio_from_video"):  # transformers 5.23
        of_video = [clips.index(m) if isinstance(m, Video) else None for m in sounding]
        told = {"load_audio_from_video": True, "audio_from_video_indices": of_video}
    return model.processor(
        text=[prompt.text],
        images=list(prompt.images) or None,
        audio=[sound.samples for sound in sounds],
        videos=[c.paired().frames for c in clips],
        videos_kwargs={
            "fps": len(clips[0].paired().frames) / clips[0].duration,
            "do_sample_frames": False,
            "size": dict(model.processor.video_processor.size),
        },
        **told,
        return_tensors="pt",
    )


def hf_positions(model, theirs):
    positions, delta = model.model.get_rope_index(
        theirs["input_ids"],
        image_grid_thw=theirs.get("image_grid_thw"),
        video_grid_thw=theirs["video_grid_thw"],
        attention_mask=theirs["attention_mask"],
        use_audio_in_video=True,
        audio_seqlens=theirs["feature_attention_mask"].sum(-1),
        second_per_grids=theirs["video_second_per_grid"],
    )
    return positions[:, 0], len(theirs["input_ids"][0]) + delta.item()


@pytest.mark.parametrize("case", CASES)
def test_ids_tensors_and_positions_equal_those_of_transformers(case):
    model, ours = loaded(NAME), made(case).encoded
    theirs = hf_inputs(model, made(case))
    assert list(ours.ids) == theirs["input_ids"][0].tolist()
    assert ours.tensors.keys() == theirs.keys() - {
        "input_ids",
        "attention_mask",
        "video_second_per_grid",
    }
    for key, tensor in ours.tensors.items():
        assert torch.equal(tensor, theirs[key]), key
    positions, following = hf_positions(model, theirs)
    assert torch.equal(ours.position_ids, positions)
    assert ours.next_position == following
    text = model.processor.tokenizer.decode(ours.compact_ids, skip_special_tokens=False)
    assert text == made(case).text
    sounds = sum(not isinstance(medium, PilImage) for medium in CASES[case])
    assert len(ours.tensors["input_features"]) == sounds


def test_a_clip_is_heard_or_not_whatever_the_other_clips_are():
    """transformers has one switch for all videos; ours are each as transformers lays it alone."""
    model = loaded(NAME)
    pair = (heard(6, 2.9), video(8, size=(84, 56)))
    both = ask(model, *pair).encoded
    start, end = (
        getattr(model.model.config, f"vision_{mark}_token_id") for mark in ("start", "end")
    )
    starts = [i for i, token in enumerate(both.ids) if token == start]
    ends = [i + 1 for i, token in enumerate(both.ids) if token == end]
    for medium, i, j in zip(pair, starts, ends, strict=True):
        alone = ask(model, medium).encoded
        first = alone.ids.index(start)
        assert both.ids[i:j] == alone.ids[first : first + j - i]
        ours, theirs = both.position_ids[:, i:j], alone.position_ids[:, first : first + j - i]
        assert torch.equal(ours - ours[0, 0], theirs - theirs[0, 0])
    assert len(both.tensors["input_features"]) == 1


@functools.cache
def mixed():
    model = loaded(NAME)
    silent = (heard(6, 2.9), image((84, 56)), video(4, size=(84, 56)), audio(0.4))
    return [*map(made, CASES), ask(model, *silent), ask(model, video(4, size=(84, 56))), ask(model)]


def test_logits_equal_the_hf_forward_alone_and_in_rows_that_repeat_and_skip():
    model, prompts = loaded(NAME), mixed()
    with torch.no_grad():
        alone = [
            model.model(**hf_inputs(model, p), use_audio_in_video=True).logits[0]
            for p in prompts[: len(CASES)]
        ]
        alone += [logits(model, [p])[0] for p in prompts[len(CASES) :]]
    rows = [len(CASES), 0, 11, 11, 12, 2, 5, 13, 16, 10, 15]
    for row, r in zip(logits(model, prompts, rows), rows, strict=True):
        torch.testing.assert_close(row[-len(alone[r]) :], alone[r], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_what_is_generated_has_the_trainers_log_probs_and_is_that_of_the_prompt_alone():
    trained = policy(NAME)
    engine = Hf().start(trained)
    assert measure_parity(engine, trained, mixed()).max_abs < 1e-5
    sampling = Sampling(n=1, max_tokens=4, greedy=True)
    together = engine.generate(PromptBatch(tuple(mixed())), sampling).completions
    for prompt, (completion,) in zip(mixed(), together, strict=True):
        ((alone,),) = engine.generate(PromptBatch((prompt,)), sampling).completions
        assert alone.token_ids == completion.token_ids


def test_greedy_tokens_are_those_of_hfs_generate():
    trained = policy(NAME)
    engine = Hf().start(trained)
    for case in ("heard for a moment only", "with an image and a recording"):
        theirs = trained.base.generate(
            **hf_inputs(loaded(NAME), made(case)),
            use_audio_in_video=True,
            do_sample=False,
            max_new_tokens=6,
            suppress_tokens=trained.banned.tolist(),
        )
        batch = PromptBatch((made(case),))
        sampling = Sampling(n=1, max_tokens=6, greedy=True)
        ((ours,),) = engine.generate(batch, sampling).completions
        assert list(ours.token_ids) == theirs[0, len(made(case).encoded.ids) :].tolist()


@pytest.mark.parametrize("training", [{}, {"gradient_checkpointing": True}], ids=str)
def test_the_shared_forward_equals_the_plain_one(training):
    trained = policy(NAME, **training)
    names = ("heard for a moment only", "with an image and a recording", "two")
    shown = (*map(made, names), ask(loaded(NAME), video(4, size=(84, 56))))
    logprobs, gradient = gaps(trained, dataclasses.replace(micro_batch(trained), prompts=shown))
    assert logprobs < LOGPROBS
    assert gradient < GRADIENT


def test_the_control_group_hears_the_same_sound_to_shuffled_frames():
    trained = policy(NAME)
    engine = Hf().start(trained)
    prompt = ask(loaded(NAME), heard(6, 2.9), image((84, 56)))
    config = load("quickstart", ["rollout.max_tokens=3"])
    scorer, timers = Scorer({}, ScoringConfig()), PhaseTimers()
    run_parts = RunParts(
        trained, engine, scorer, config, timers, lambda sample, media: prompt, None
    )
    batch, draw = PromptBatch((prompt,)), BatchDraw(1, 0, 0, 0.0)
    control = ShuffledFrames(2).ask_control_group(batch, draw, run_parts)
    assert control is not None and control.shape == (1, 2)
    ours, other = prompt.encoded, control.batch.prompts[0].encoded
    assert ours.ids == other.ids and torch.equal(ours.position_ids, other.position_ids)
    same = {key: torch.equal(ours.tensors[key], other.tensors[key]) for key in ours.tensors}
    assert not same.pop("pixel_values_videos") and all(same.values())


# ------------------------------------------------------------------------------------- whole runs


def ran(folder, *overrides):
    """The media of the rollouts of one step on a video with sound; the report is built too."""
    rows = folder / "rows"
    rows.mkdir(exist_ok=True)
    (rows / "0.mp4").write_bytes(muxed("mp4", "aac", tone(300, 1.2, 48000), 48000, 0.0))
    line = {"id": "0", "question": "What is heard?", "answer": "a tone", "videos": ["0.mp4"]}
    (rows / "train.jsonl").write_text(json.dumps(line) + "\n")
    settings = [
        f"data.train=[{{card: records, options: {{path: {rows}}}}}]",
        "rewards=[format]",
        "rollout={prompts: 1, group_size: 2, max_tokens: 4}",
        "run={steps: 1, threads: 1, rollouts_every: 1}",
        "tracking.tensorboard=false",
        "sft=null",
        "evaluation=null",
        "checks={media_ablation_every: 0, parity_every: 0}",
        f"run.dir={folder / 'run'}",
    ]
    assert lifecycle.train(load("quickstart", [*settings, *overrides]), write_report=build_report)[
        "finished"
    ]
    (row,) = (folder / "run/rollouts/step-1.jsonl").read_text().splitlines()
    (medium,) = json.loads(row)["media"]
    return medium, (folder / "run/report.html").read_text()


@pytest.mark.nightly
def test_a_run_hears_clips_where_the_family_can_unless_the_config_says_no(tmp_path):
    omni = "model.build.family=qwen2_5_omni"
    for name, overrides, heard in (
        ("omni", (omni,), True),
        ("off", (omni, "data.video.audio=false"), False),
        ("vl", (), False),
    ):
        (tmp_path / name).mkdir()
        medium, page = ran(tmp_path / name, *overrides)
        assert ("sound" in medium) == ("<audio controls" in page) == heard
        out = tmp_path / name / "evaluated"
        evaluate_model(str(tmp_path / name / "run"), "records:train", out=out, max_tokens=4)
        (row,) = (out / "evaluation.jsonl").read_text().splitlines()
        assert ("sound" in json.loads(row)["media"][0]) == heard
    with pytest.raises(
        UserError, match=r"data\.video\.audio: expected a model that reads the audio of videos"
    ):
        ran(tmp_path / "vl", "data.video.audio=true")
