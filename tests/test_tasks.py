"""Every task of docs/train/tasks.md: data as published, a prompt, a right answer paid 1, a wrong one little.

Four are run to the end by the command line, from a cold start to the report.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import task_data
from helpers.report_page import Page
from helpers.small import CORPUS, TEXT, loaded
from vlmrl import cli
from vlmrl.answers import templates
from vlmrl.config import (
    BuildConfig,
    Config,
    ModelConfig,
    RewardConfig,
    SourceConfig,
    VideoConfig,
    load,
)
from vlmrl.data.example_data import PREFIX
from vlmrl.data.prompt import make_prompt
from vlmrl.data.source import open_source, reading_of
from vlmrl.media.access import Reading
from vlmrl.media.decode import decode
from vlmrl.models.loading import Loaded, load_model
from vlmrl.plugins import names
from vlmrl.runs import run_folder
from vlmrl.scoring.reward_components import resolve
from vlmrl.scoring.verifier import GroupVerifier
from vlmrl.truths import prompting

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples" / "tasks"


@dataclass(frozen=True)
class Task:
    """A row of the page: who writes its data (None: drawn, or example data), and wrong completions."""

    write: Callable[[Path], None] | None
    wrong: str
    family: str = "qwen2_5_vl"


def answered(text: str) -> str:
    return f"<think>so</think><answer>{text}</answer>"


FAR = '[{"time": 0, "bbox_2d": [40, 40, 56, 56]}]'
LATE = '[{"start": 1.9, "end": 2.0, "label": "Dog"}]'
TASKS = {
    "look_twice": Task(None, answered("E")),
    "temporal_grounding": Task(task_data.charades, answered("1.5 to 2")),
    "video_grounding": Task(None, answered("0 to 0.1")),
    "tracking": Task(task_data.got10k, answered(FAR)),
    "grounded_qa": Task(task_data.next_gqa, f"{answered('B')}<glue>[(1.5, 2)]</glue>"),
    "video_qa": Task(task_data.next_qa, answered("B")),
    "real_videos": Task(None, answered("zzz")),
    "audio_qa": Task(task_data.audio_qa, answered("D"), "qwen2_audio"),
    "spoken_digits": Task(task_data.spoken_digits, answered("5"), "qwen2_audio"),
    "real_audio": Task(None, answered("zzz"), "qwen2_audio"),
    "audio_tags": Task(task_data.audioset, answered("Rain"), "qwen2_audio"),
    "audio_events": Task(task_data.audioset_strong, answered(LATE), "qwen2_audio"),
    "transcription": Task(task_data.librispeech, answered("nothing at all"), "qwen2_audio"),
}
OTHERS = {"stamps", "drum_hits", "smollm_words"}
"""Their data or weights come in packages; they have tests of their own."""


def located(options: dict[str, Any], home: Path) -> dict[str, Any]:
    """Options of a card with its paths seen from `home`."""

    def within(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: within(path) for key, path in value.items()}
        return value if value.startswith(PREFIX) else str(home / value)

    return {k: within(v) if k in ("path", "root", "classes") else v for k, v in options.items()}


def config_of(name: str) -> Config:
    example = EXAMPLES / f"{name}.yaml"
    return load(str(example) if example.exists() else name)


def page_rows() -> dict[str, tuple[list[str], list[str]]]:
    """Config -> cards and verifiers, of each row of the page's table."""
    found = {}
    for line in (ROOT / "docs" / "train" / "tasks.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and "`" in line:
            name = re.sub(r"[`\[\]]|\(.*\)", "", cells[3])
            found[name] = (re.findall(r"`(\w+)`", cells[1]), re.findall(r"`(\w+)`", cells[2]))
    return found


def test_the_page_names_what_there_is() -> None:
    rows = page_rows()
    assert rows.keys() == TASKS.keys() | OTHERS
    configs = {file.stem for file in EXAMPLES.glob("[a-z]*.yaml")}
    assert configs == rows.keys() - OTHERS - {"look_twice", "video_grounding", "spoken_digits"}
    for name, (cards, verifiers) in rows.items():
        config = config_of(name)
        sources = [*config.data.train, *(config.evaluation.sources if config.evaluation else [])]
        used = {r.verifier for s in config.data.train for r in s.rewards or config.rewards}
        assert {s.card for s in sources} <= set(cards) <= set(names("card"))
        assert used - {"format"} == set(verifiers)


@functools.cache
def hearing() -> Loaded:
    """A small Qwen2-Audio that hears ten seconds."""
    build = BuildConfig(family="qwen2_audio", text=TEXT, audio={"max_source_positions": 500})
    return load_model(ModelConfig(build=build), CORPUS, seed=0)


def scores(
    source: SourceConfig, rewards: list[RewardConfig], task: Task, reading: Reading
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """What the source's first sample pays for its demonstration, and for the wrong completion."""
    opened = open_source(source, reading=reading)
    model = hearing() if task.family == "qwen2_audio" else loaded(task.family)
    sample = opened.sample(0)
    media = decode(sample, opened.access, opened.reading)
    asked = prompting.instruct(sample.template, sample.truth, model.family.space)
    prompt = make_prompt(sample, media, model.family, model.processor, asked)
    assert sample.demo and sample.text in prompt.text and len(prompt.encoded.ids) > 10
    right = prompting.demonstrate(sample.demo, sample.template, prompt.frame)
    found = []
    right = right.replace(f"<think>{templates.EMPTY_THOUGHT}</think>", "<think>so</think>")
    for text in (right, task.wrong):
        completion = templates.completion(text, sample.template, prompt.frame)
        verifiers = {r.label: resolve(r).verifier for r in rewards}
        found.append(
            {
                name: verifier(completion, sample).score
                for name, verifier in verifiers.items()
                if not isinstance(verifier, GroupVerifier)
            }
        )
    return found[0], found[1]


@pytest.mark.parametrize("name", TASKS)
def test_a_right_answer_is_paid_and_a_wrong_one_is_not(tmp_path: Path, name: str) -> None:
    task, config = TASKS[name], config_of(name)
    if task.write:
        task.write(tmp_path)
    sources = [*config.data.train, *(config.evaluation.sources if config.evaluation else [])]
    for source in sources:
        changed = {"options": {"loose": 0}} if source.card == "videos" else {}
        if source.card == "spoken_digits":
            changed = {"split": "train", "options": {"path": "digits"}}
        source = source.model_copy(update=changed)
        source.options.update(located(source.options, tmp_path))
        rewards = source.rewards or config.rewards
        right, wrong = scores(source, rewards, task, reading_of(config.data))
        for verifier, score in right.items():
            # pixels are whole, and real videos are given to a hundredth of a second
            assert score == pytest.approx(1, abs=0.02), verifier
        graded = [wrong[v] for v in wrong if v != "format"]
        assert graded and all(score is not None and score < 0.35 for score in graded)


def test_activitynet_is_grounded_alike(tmp_path: Path) -> None:
    task_data.activitynet(tmp_path)
    options = {"path": str(tmp_path / "activitynet")}
    source = SourceConfig(card="activitynet_captions", options=options)
    rewards = [RewardConfig(verifier="temporal_iou")]
    reading = Reading(video=VideoConfig())
    task = Task(None, answered("1.5 to 2"))
    assert scores(source, rewards, task, reading) == ({"temporal_iou": 1.0}, {"temporal_iou": 0.0})


# --------------------------------------------------------------------------------- to the end

SMALL = [
    "run.threads=1", "run.steps=2", "run.rollouts_every=1", "tracking.tensorboard=false",
    "data.workers=0", "rollout.prompts=2", "rollout.group_size=4", "rollout.temperature=0.3",
    "optimizer.lr=1e-5", "evaluation.every=2", "checks={media_ablation_every: 0, parity_every: 0}",
]  # fmt: skip


def trained(
    monkeypatch: pytest.MonkeyPatch, home: Path, name: str, *overrides: str
) -> tuple[list[dict[str, Any]], Page]:
    """The rollouts of the last step and the report of two steps by the command line, in `home`."""
    family = TASKS[name].family
    model = f"model={{build: {{family: {family}}}}}"
    monkeypatch.chdir(home)
    config = config_of(name)
    sources = {"data.train": config.data.train}
    if config.evaluation and config.evaluation.sources:
        sources["evaluation.sources"] = config.evaluation.sources
    paths = [
        f"{key}.{n}.options={json.dumps(located(source.options, home))}"
        for key, several in sources.items()
        for n, source in enumerate(several)
    ]
    settings = [*SMALL, model, *paths, *overrides]
    command = ["vlmrl", "train", str(EXAMPLES / f"{name}.yaml"), *settings]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    folder = home / "runs" / name
    lines = run_folder.rollouts_path(folder, 2).read_text(encoding="utf-8").splitlines()
    assert not (folder / "quarantine.jsonl").exists()
    return [json.loads(line) for line in lines], Page(folder / "report.html")


def cold_start(steps: int, card: str, options: dict[str, Any], **more: str) -> str:
    """Learns one or two demonstrations by heart, so that the rollouts hold answers to draw."""
    source = json.dumps({"card": card, "options": options, **more})
    return (
        f"sft={{sources: [{source}], validation: [{source}], max_steps: {steps}, batch_size: 2, "
        f"validate_from: {steps}, warmup_steps: 5, decay_steps: 5}}"
    )


def paid(rows: list[dict[str, Any]], verifier: str) -> float:
    """The mean score of one verifier; no verdict of a rollout is a fault."""
    verdicts = [c["verdicts"] for row in rows for c in row["completions"]]
    assert not [v for several in verdicts for v in several.values() if v["fault"]]
    found = [several[verifier]["score"] for several in verdicts]
    return sum(found) / len(found)


@pytest.mark.slow
def test_tracking_from_a_cold_start_to_boxes_on_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_data.got10k(tmp_path)
    options = {"path": str(tmp_path / "got10k")}
    start = cold_start(30, "got10k", options, template="answer_only")
    settings = ["data.video.max_frames=4", "rollout.max_tokens=120", start]
    rows, page = trained(monkeypatch, tmp_path, "tracking", *settings)
    assert paid(rows, "track") > 0.5 and paid(rows, "format") > 0.5
    assert rows[0]["media"][0]["times"] == [0.0, 1.0, 2.0, 3.0]
    drawn = [a for tag, a in page.tags if tag == "rect" and a["width"] == "14.0"]
    # The square's own place on each of four frames of 56 pixels, side by side.
    places = {(56 * n + 14 * n, 14) for n in range(4)}
    assert {(float(a["x"] or 0), float(a["y"] or 0)) for a in drawn} >= places
    truths = len(page.with_class("card")) * 4
    assert len(drawn) > truths  # the guesses, too


@pytest.mark.slow
def test_grounded_answers_from_a_cold_start_to_spans_on_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_data.next_gqa(tmp_path)
    start = cold_start(30, "next_gqa", {"path": str(tmp_path / "nextgqa")}, split="val")
    rows, page = trained(monkeypatch, tmp_path, "grounded_qa", start, "rollout.max_tokens=60")
    assert all(paid(rows, name) > 0.5 for name in ("choice", "temporal_iou", "format"))
    spans = page.with_class("span")
    assert len(spans) > len(page.with_class("card"))
    # 0.5 to 1.5 s of 1.9 s
    assert "left: 26.3%; width: 52.6%" in {a["style"] for a in spans}


@pytest.mark.slow
def test_sound_events_from_a_cold_start_to_spans_under_the_waveform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_data.audioset_strong(tmp_path)
    folder = tmp_path / "strong"
    options = {"path": str(folder), "root": str(folder / "sound")}
    start = cold_start(30, "audioset_strong", options)
    rows, page = trained(monkeypatch, tmp_path, "audio_events", start, "rollout.max_tokens=120")
    assert paid(rows, "events") > 0.5
    cards = page.with_class("card") + page.with_class("half")  # the latter: before and after
    dogs = [a for a in page.with_class("span") if a["title"] == "Dog"]
    assert len(dogs) > len(cards)
    assert {a["style"] for a in dogs} >= {"left: 0.0%; width: 62.5%"}
    lanes = [a["class"] for a in page.with_class("lane")]
    assert lanes.count("lane truth") == 2 * len(cards)  # one for the dog, one for the rain
    assert len([tag for tag, _ in page.tags if tag == "audio"]) == len(cards)


@pytest.mark.slow
def test_transcription_trains_on_the_word_error_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_data.librispeech(tmp_path)
    home = tmp_path / "LibriSpeech"
    options = {"path": {"train": str(home / "train-clean-100")}, "root": str(home)}
    start = cold_start(30, "transcripts", options)
    rows, _ = trained(monkeypatch, tmp_path, "transcription", start, "rollout.max_tokens=40")
    assert {row["truth"]["text"][0] for row in rows} == {"SEVEN FOUR TWO", "ONE NINE"}
    assert 0.3 < paid(rows, "asr") <= 1
