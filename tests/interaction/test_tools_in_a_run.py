"""A source with tools in a whole run: from the config to metrics and rows."""

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.driving import end_every_turn, run_turn
from vlmrl import plugins
from vlmrl.assemble.lifecycle import train
from vlmrl.assemble.turns import opened_tools, tools_by_source, with_tools
from vlmrl.config import SourceConfig, VideoConfig, parse
from vlmrl.config.exclusions import refuse_parts
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.evaluate import evaluate_model
from vlmrl.features.check import doctor_bench
from vlmrl.features.check import doctor_model as doctor_turns
from vlmrl.interaction import driver
from vlmrl.interaction import tools as tools_room
from vlmrl.interaction.driver import Driver
from vlmrl.interaction.tool import Shown, View
from vlmrl.interaction.tools import AskedCall, Toolbox
from vlmrl.media.access import Access
from vlmrl.media.video import load_video
from vlmrl.schema import Box, Call, Completion, Frame, Media, Parsed, Sample, Segment, Truth
from vlmrl.training.metrics import crop_metrics, turn_metrics


def config_of(tmp_path, **more):
    shapes = {"card": "shapes", "options": {"task": "grounding"}, "tools": ["crop"]}
    return parse(
        {
            "run": {"name": "look", "dir": str(tmp_path / "run"), "steps": 1, "report": True},
            "model": {"build": {"family": "qwen2_5_vl"}},
            "data": {"train": [{**shapes, "instruct": False}]},
            "rollout": {
                "prompts": 2,
                "group_size": 2,
                "max_tokens": 6,
                "turns": {"max_turns": 2},
            },
            "rewards": [{"verifier": "box_iou"}],
            "evaluation": None,
            **more,
        }
    )


@pytest.mark.slow
def test_a_run_with_crops_counts_its_turns_and_writes_its_segments(tmp_path, monkeypatch):
    end_every_turn(monkeypatch)
    monkeypatch.setattr(
        driver, "parse_calls", lambda text: (AskedCall("crop", {"bbox_2d": [0, 0, 28, 28]}),)
    )
    assert train(config_of(tmp_path))["finished"]
    (metrics,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert metrics["rollout/turns"] == 2
    assert metrics["tool/used"] == 1
    assert metrics["tool/ok"] == 1
    assert 0 <= metrics["tool/crop_iou"] <= 1
    assert metrics["rollout/truncated"] == 1  # the last turn asks again
    rows = (tmp_path / "run" / "rollouts" / "step-1.jsonl").read_text().splitlines()
    said = json.loads(rows[0])["completions"][0]
    assert [segment["by"] for segment in said["segments"]] == ["policy", "tool", "policy"]
    assert said["segments"][0]["calls"][0]["outcome"] == "ok"
    (image,) = said["segments"][1]["media"]
    assert list((tmp_path / "run").rglob(image))
    assert said["finish_reason"] == "turns"
    found = evaluate_model(str(tmp_path / "run"), "shapes:val", limit=2, out=tmp_path / "evaluated")
    assert found["metrics"]["rollout/turns"] == 2
    assert found["metrics"]["tool/used"] == 1
    assert found["manifest"]["turns"]["max_turns"] == 2
    (line, _) = (tmp_path / "evaluated/evaluation.jsonl").read_text().splitlines()
    (greedy,) = json.loads(line)["completions"]
    assert greedy["segments"][0]["calls"][0]["image"] == 1


@pytest.mark.slow
def test_the_doctor_shows_a_whole_rollout_and_what_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_bench, "ROWS", 2)
    with ExitStack() as stack:
        built = doctor_bench.build(config_of(tmp_path), stack)
        (found,) = doctor_turns.turns(built)
        small = {"turns": {"max_turns": 2, "max_length": 40}}
        tight = dataclasses.replace(built, config=config_of(tmp_path, rollout=small))
        (refused,) = doctor_turns.turns(tight)
    assert found.verdict == "ok"
    assert "2 turns like this" in found.text and "1 media (max_images 8)" in found.text
    assert '{"name": "crop", "arguments": {"bbox_2d": [0, 0, ' in found.text
    assert "Image 2:" in found.text and found.text.count("<|image_pad|>") == 2
    assert refused.verdict == "FAIL" and "not even one observation fits" in refused.text


def test_a_source_that_is_named_twice_opens_its_tools_once(tmp_path, monkeypatch):
    opened = []

    class Counted(Toolbox):
        def __post_init__(self):
            super().__post_init__()
            opened.append(self)

    monkeypatch.setattr(tools_room, "Toolbox", Counted)
    source = SourceConfig(card="shapes", tools=["calculator"])
    chosen = [source, SourceConfig(card="shapes"), source]
    with opened_tools(config_of(tmp_path), chosen, "pixel") as tools:
        assert [*tools.items()] == [(source.label, opened[0])]
    assert len(opened) == 1


def test_tools_of_a_source_read_the_files_of_its_media_again(tmp_path):
    root = Path(__file__).parents[2] / "examples/data/video/clips"
    media = Media("video", path=str(root / "cars_0.mp4"))
    video = load_video(media, Access(root=str(root)), VideoConfig(fps=1.0))
    view = View((Shown(video, Frame(*video.original, duration=video.duration), source=media),))
    data = {"train": [{"card": "shapes", "tools": ["frames"]}], "media_root": str(root)}
    config = config_of(tmp_path, data=data)
    with opened_tools(config, config.data.train, "pixel") as tools:
        found = run_turn(tools["shapes"], [AskedCall("frames", {"span": [0.2, 1.2]})], view)
    assert found.fault is None and len(found.shown) == 8


def test_a_crop_is_compared_with_the_truth_of_the_image_that_it_was_cut_from():
    media = (
        Media("audio", path="a.wav"),
        Media("image", path="a.png"),
        Media("image", path="b.png"),
    )
    truth = Truth(boxes=(Box(0.0, 0.0, 0.5, 0.5), Box(0.9, 0.9, 1.0, 1.0)), image=1)
    sample = Sample("a", "s", (*media, "Where?"), truth)
    calls = (
        Call("crop", {}, box=Box(0.0, 0.0, 0.5, 1.0), image=2),
        Call("crop", {}, box=Box(0.0, 0.0, 0.5, 0.5), image=1),
        Call("rotate", {}),
        Call("crop", {}, box=Box(0.9, 0.9, 1.0, 1.0), image=2),
    )
    said = Completion(
        "",
        Parsed(None, None, "none", False, 0.0),
        Frame(),
        segments=(Segment((1,), (-1.0,), calls=calls),),
    )
    prompt = SimpleNamespace(sample=sample)
    assert crop_metrics(prompt, said) == {"tool/crop_iou": pytest.approx((0.5 + 1) / 2)}
    nothing = SimpleNamespace(sample=dataclasses.replace(sample, truth=Truth(number=1)))
    assert crop_metrics(nothing, said) == {}


def test_calls_that_never_ran_are_refused_and_have_no_curve_of_seconds():
    with Toolbox([plugins.build("tool", "calculator")]) as box:
        asked = [
            AskedCall("calculator", {"expression": "1+1"}),
            AskedCall("", {}),
            AskedCall("kalk", {}),
        ]
        calls = run_turn(box, asked).calls
    parsed = Parsed(None, None, "none", False, 0.0)
    said = Completion("", parsed, Frame(), segments=(Segment((1,), (-1.0,), calls=calls),))
    metrics = turn_metrics(said)
    assert [key for key in metrics if key.endswith("/seconds")] == ["tool/calculator/seconds"]
    assert metrics["tool/refused"] == pytest.approx(2 / 3)


def test_only_a_config_with_tools_has_a_driver(tmp_path):
    engine = Hf()
    config = config_of(tmp_path)
    assert isinstance(with_tools(config, engine), Driver)
    plain = config_of(tmp_path, data={"train": [{"card": "shapes"}]})
    assert with_tools(plain, engine) is engine
    assert tools_by_source(config, "norm1000") == {}  # instruct is off


def test_the_list_of_tools_names_the_space_of_the_policy(tmp_path):
    config = config_of(tmp_path, data={"train": [{"card": "shapes", "tools": ["crop"]}]})
    ((schema,),) = tools_by_source(config, "norm1000").values()
    assert schema["function"]["name"] == "crop"
    assert "from 0 to 1000" in str(schema)


def test_parts_that_know_a_single_turn_are_refused(tmp_path):
    config = config_of(tmp_path, strategies=["shuffled_frames"])
    with pytest.raises(
        UserError,
        match="a source has tools or an environment, which excludes strategy 'shuffled_frames'",
    ):
        refuse_parts(config)


def test_limits_that_leave_no_room_for_a_second_turn_are_refused(tmp_path):
    limits = {"max_tokens": 256, "turns": {"max_turns": 2, "max_tokens": 256}}
    with pytest.raises(UserError, match=r"rollout\.turns\.max_tokens: expected more than .* 256"):
        refuse_parts(config_of(tmp_path, rollout=limits))
    one = {**limits, "turns": {"max_turns": 1, "max_tokens": 256}}
    assert isinstance(with_tools(config_of(tmp_path, rollout=one), Hf()), Driver)
