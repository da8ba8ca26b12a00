"""What a run writes: whole lines, whole files, each image once, nothing after a resumed step."""

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.disk import largest_file
from vlmrl.config import parse
from vlmrl.errors import UserError
from vlmrl.runs import run_folder
from vlmrl.runs.rollout_rows import rows
from vlmrl.schema import (
    Advantages,
    Box,
    BoxTrack,
    Completion,
    Encoded,
    Frame,
    Media,
    Parsed,
    Point,
    Prompt,
    PromptBatch,
    Rewards,
    Rollouts,
    Sample,
    Span,
    StepReport,
    Truth,
    Verdict,
)
from vlmrl.system import files
from vlmrl.truths.json_form import to_json

NO_IDS = Encoded((), (), {}, torch.zeros(1, 0), 0)


def completion(answer: str | None) -> Completion:
    parsed = Parsed(answer, "left", "think", answer is not None, 1.0)
    return Completion(f"<answer>{answer}</answer>", parsed, Frame(84, 84), token_ids=(1, 2, 3))


def prompt(name: str, colour: str) -> Prompt:
    sample = Sample(
        id=name,
        source="shapes",
        parts=(Media("image", data=b"png"), f"Where is the {colour} shape?"),
        truth=Truth(boxes=(Box(0.1, 0.2, 0.5, 0.6, label=colour),)),
    )
    return Prompt(sample, "<image>", NO_IDS, Frame(84, 84), (Image.new("RGB", (84, 84), colour),))


def report(step: int) -> StepReport:
    """Two prompts with two completions each; one completion lost its verifier."""
    prompts = (prompt("a", "red"), prompt("b", "blue"))
    good = Verdict(0.5, parts={"iou": 0.5}, answer=(Box(0.1, 0.2, 0.5, 0.4),), note="close")
    verdicts = (
        ({"iou": good}, {"iou": Verdict.failed("timed out")}),
        ({"iou": Verdict(0.0, note="no answer")}, {"iou": good}),
    )
    group = (completion("[8, 17, 42, 34]"), completion(None))
    return StepReport(
        step,
        {"reward/mean": 0.25},
        Rollouts(PromptBatch(prompts), (group, group)),
        Rewards(
            torch.tensor([[0.5, 0.0], [0.0, 0.5]]),
            torch.tensor([[True, False], [True, True]]),
            verdicts,
        ),
        Advantages(
            torch.tensor([[0.0, 0.0], [-1.0, 1.0]]),
            torch.tensor([[False, False], [True, True]]),
            torch.ones(2, 2),
        ),
    )


def test_a_rollout_line_holds_the_prompt_and_every_completion(tmp_path: Path) -> None:
    path = run_folder.write_rollouts(tmp_path, report(3))
    assert path == tmp_path / "rollouts/step-3.jsonl"
    first, second = files.read_lines(path)
    assert (first["step"], first["id"], first["source"]) == (3, "a", "shapes")
    assert first["question"] == "Where is the red shape?"
    assert first["truth"] == {
        "boxes": [{"box": [0.1, 0.2, 0.5, 0.6], "label": "red"}],
        "none": False,
    }
    one, faulted = first["completions"]
    assert one["verdicts"]["iou"]["answer"] == [{"box": [0.1, 0.2, 0.5, 0.4]}]
    assert one["verdicts"]["iou"]["parts"] == {"iou": 0.5}
    assert (one["tokens"], one["finish_reason"], one["thought"]) == (3, "stop", "left")
    assert (faulted["valid"], faulted["answer"]) == (False, None)
    assert faulted["verdicts"]["iou"]["fault"] == "timed out"
    assert faulted["verdicts"]["iou"]["score"] is None
    assert [c["advantage"] for c in second["completions"]] == [-1.0, 1.0]
    assert [c["kept"] for c in second["completions"]] == [True, True]


def test_a_picture_is_stored_once_by_its_content(tmp_path: Path) -> None:
    first = files.read_lines(run_folder.write_rollouts(tmp_path, report(1)))
    again = files.read_lines(run_folder.write_rollouts(tmp_path, report(2)))
    names = [row["media"][0]["thumbnail"] for row in first]
    assert names == [row["media"][0]["thumbnail"] for row in again]
    assert sorted(names) == sorted(p.name for p in run_folder.media_folder(tmp_path).iterdir())
    stored = Image.open(run_folder.media_folder(tmp_path) / names[0])
    assert stored.size == (84, 84) and stored.getpixel((4, 4)) == (255, 0, 0)


def test_a_large_picture_is_stored_scaled_down(tmp_path: Path) -> None:
    large = replace(prompt("a", "red"), media=(Image.new("RGB", (2000, 1000), "red"),))
    one = Rollouts(PromptBatch((large,)), ((completion("1"),),))
    scored = Rewards(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), (({},),))
    (row,) = rows(tmp_path, one, scored)
    assert Image.open(tmp_path / row["media"][0]["thumbnail"]).size == (640, 320)


def test_an_evaluation_is_its_result_and_a_line_a_sample(tmp_path: Path) -> None:
    step = report(1)
    samples = rows(run_folder.media_folder(tmp_path), step.rollouts, step.rewards)
    path = run_folder.write_evaluation(tmp_path, 50, {"metrics": {"reward": 0.25}}, samples)
    assert files.read_json(path) == {"metrics": {"reward": 0.25}, "step": 50}
    lines = files.read_lines(path.with_suffix(".jsonl"))
    assert [(x["step"], x["id"], len(x["completions"])) for x in lines] == [
        (50, "a", 2),
        (50, "b", 2),
    ]
    assert all(c["advantage"] is None for line in lines for c in line["completions"])


def test_a_new_run_moves_an_earlier_one_aside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert run_folder.move_aside(run) is None
    for seed in (1, 2):
        config = {"model": {"path": "m"}, "data": {"train": ["shapes"]}, "rewards": ["box_iou"]}
        run_folder.write_config(run, parse({**config, "run": {"seed": seed}}))
        assert run_folder.move_aside(run) == tmp_path / f"run.{seed}"
    assert files.read_json(tmp_path / "run.1/config.json")["run"]["seed"] == 1


def test_config_json_has_the_run_the_versions_and_the_revision(tmp_path: Path) -> None:
    config = parse(
        {
            "model": {"path": "m"},
            "data": {"train": ["shapes"]},
            "rewards": ["box_iou"],
            "run": {"seed": 7},
        }
    )
    tree = files.read_json(run_folder.write_config(tmp_path, config))
    assert tree["run"]["seed"] == 7 and tree["rewards"][0]["verifier"] == "box_iou"
    assert tree["versions"]["torch"] == torch.__version__
    assert tree["git"] is None or len(tree["git"]["revision"]) == 40


def test_every_geometry_has_a_typed_form() -> None:
    track = BoxTrack((0.0, 0.5), (Box(0, 0, 0.1, 0.1), Box(0.1, 0, 0.2, 0.1)), label="car")
    assert to_json([Point(0.5, 0.25), Span(3, 9.5, "goal"), track, Box(0, 0, 1, 1, score=0.5)]) == [
        {"point": [0.5, 0.25]},
        {"span": [3, 9.5], "label": "goal"},
        {
            "track": [
                {"time": 0.0, "box": [0, 0, 0.1, 0.1]},
                {"time": 0.5, "box": [0.1, 0, 0.2, 0.1]},
            ],
            "label": "car",
        },
        {"box": [0, 0, 1, 1], "score": 0.5},
    ]
    assert to_json({"iou": np.float32(0.5), "n": np.int64(3)}) == {"iou": 0.5, "n": 3}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_whatever_a_verifier_answers_becomes_strict_json(value: object) -> None:
    back = json.loads(json.dumps(to_json(value), allow_nan=False))
    if isinstance(value, float):
        assert back == value if math.isfinite(value) else back is None
    else:
        assert isinstance(back, type(value))


def test_where_the_ranks_ran_is_kept_for_the_steps_that_stay(tmp_path: Path) -> None:
    for step, hosts in ((0, ["a", "b"]), (4, ["a", "c"]), (8, ["d"]), (4, ["e", "f", "g"])):
        path = run_folder.write_ranks(tmp_path, step, hosts)
    assert files.read_json(path) == {"0": ["a", "b"], "4": ["e", "f", "g"]}


def test_resuming_drops_every_later_line_and_file(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        files.append_line(run_folder.metrics_path(tmp_path), {"step": step, "reward/mean": 0.1})
        run_folder.write_rollouts(tmp_path, report(step))
        run_folder.write_evaluation(tmp_path, step, {"metrics": {}}, [])
    run_folder.rewind(tmp_path, 2)
    assert [x["step"] for x in files.read_lines(run_folder.metrics_path(tmp_path))] == [1, 2]
    assert list(run_folder.steps_in(tmp_path / "rollouts", ".jsonl")) == [1, 2]
    assert list(run_folder.steps_in(tmp_path / "evals", ".json")) == [1, 2]
    assert list(run_folder.steps_in(tmp_path / "evals", ".jsonl")) == [1, 2]


@given(st.integers(0, 40))
def test_a_killed_write_loses_at_most_its_own_line(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        for step in (1, 2, 3):
            files.append_line(path, {"step": step})
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - min(cut, len(whole))])
        files.truncate_lines(path, 2)
        files.append_line(path, {"step": 3})
        steps = [line["step"] for line in files.read_lines(path)]
        assert steps == sorted(set(steps)) and steps[-1] == 3


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not JSON"):
        files.truncate_lines(path, 3)


def test_a_line_of_a_step_out_of_order_is_named_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5}\n{"step": 2}\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"line 2: expected a step above 5, got 2; mend or delete"):
        files.truncate_lines(path, 3)
    assert len(files.read_lines(path)) == 3


def test_a_full_disk_is_one_clear_line_and_leaves_whole_files(tmp_path: Path) -> None:
    curve, summary = tmp_path / "metrics.jsonl", tmp_path / "summary.json"
    files.append_line(curve, {"step": 1, "text": "x" * 60})
    run_folder.write_summary(tmp_path, {"steps": 1})
    with largest_file(100):
        with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written: .*MiB free"):
            files.append_line(curve, {"step": 2, "text": "x" * 60})
        with pytest.raises(UserError, match=r"summary\.json: cannot be written"):
            run_folder.write_summary(tmp_path, {"note": "x" * 500})
    assert [line["step"] for line in files.read_lines(curve)] == [1]
    assert curve.read_bytes().endswith(b"\n")
    assert files.read_json(summary) == {"steps": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "summary.json"]
