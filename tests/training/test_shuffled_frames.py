"""The control group with shuffled frames: what it is shown, what it changes, what it must not change."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import small
from helpers.prompts import ask
from helpers.runs import final_state, metric_lines, torchrun
from helpers.videos import video, write_video
from vlmrl import plugins
from vlmrl.assemble import lifecycle
from vlmrl.config import Config, ScoringConfig, load
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.parts.strategies.shuffled_frames import ShuffledFrames, shuffle_frames
from vlmrl.schema import PromptBatch, Rollouts
from vlmrl.scoring.scorer import Scorer
from vlmrl.scoring.verifier import SHUFFLED_REWARDS, judge_group
from vlmrl.system.timers import PhaseTimers
from vlmrl.training.strategy import BatchDraw, RunParts

VARIED = f"{Path(__file__).parents[1] / 'helpers/scores.py'}:varied"

# ------------------------------------------------------------------------------------- the formula


def by_the_paper(
    ordered: list[float], shuffled: list[float], bonus: float, mu: float, above: float
) -> list[float]:
    """Rewards with the bonus, one by one, as eq. 2-3 of arXiv 2503.21776 say it."""
    p = sum(1 for reward in ordered if reward > above) / len(ordered)
    p_shuffled = sum(1 for reward in shuffled if reward > above) / len(shuffled)
    paid = []
    for reward in ordered:
        temporal = bonus if p >= mu * p_shuffled else 0.0
        paid.append(reward + temporal if reward > above else reward)
    return paid


def test_the_bonus_is_that_of_the_paper() -> None:
    rng = random.Random(0)
    paid = 0
    for _ in range(300):
        ordered = [rng.choice([0.0, 0.1, 0.4, 1.0]) for _ in range(rng.randint(1, 8))]
        control = [rng.choice([0.0, 0.1, 0.4, 1.0]) for _ in range(rng.randint(1, 4))]
        mu, above = rng.choice([0.8, 1.0, 1.5]), rng.choice([0.1, 0.5])
        options = {"ratio": mu, "correct_above": above}
        verifier: Any = plugins.build("verifier", "temporal_contrast", options)
        meta = {SHUFFLED_REWARDS: control}
        found = judge_group(verifier, ["x"] * len(ordered), ordered, meta)
        expected = by_the_paper(ordered, control, 0.3, mu, above)
        got = [r + 0.3 * v.score for r, v in zip(ordered, found, strict=True)]
        assert got == pytest.approx(expected)
        paid += got != ordered
    assert 50 < paid < 250  # both sides of the rule were tried


# ---------------------------------------------------------------------------- what the group is shown


def test_frames_change_places_and_nothing_else_does() -> None:
    for count in (2, 3, 8):
        made = video(count)
        other = shuffle_frames(made, seed=5)
        order = [next(i for i in range(count) if (made.frames[i] == f).all()) for f in other.frames]
        assert sorted(order) == list(range(count)) != order
        assert (other.times, other.indices, other.size) == (made.times, made.indices, made.size)
        assert (shuffle_frames(made, seed=5).frames == other.frames).all()
    assert (shuffle_frames(video(1), seed=5).frames == video(1).frames).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", small.FAMILIES)
def test_only_prompts_with_clips_are_asked_again(family: str) -> None:
    policy = small.policy(family)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (56, 56, 3), np.uint8))
    prompts = (ask(policy, image), ask(policy, image, video(4)), ask(policy))
    engine = Hf().start(policy)

    def made(seed: int, wanted: int = 3) -> Rollouts | None:
        config = load("quickstart", ["rollout.max_tokens=4"])
        scorer, timers = Scorer({}, ScoringConfig()), PhaseTimers()
        run_parts = RunParts(
            policy, engine, scorer, config, timers, lambda sample, media: prompts[0], None
        )
        asked = PromptBatch(prompts)
        return ShuffledFrames(wanted).ask_control_group(
            asked, BatchDraw(seed, 0, 0, 0.0), run_parts
        )

    control, again, other = made(seed=1), made(seed=1), made(seed=2)
    assert control and again and other and control.shape == (1, 3)
    asked, own = control.batch.prompts[0], prompts[1]
    assert asked.encoded.ids == own.encoded.ids
    assert torch.equal(asked.encoded.position_ids, own.encoded.position_ids)
    for name, tensor in own.encoded.tensors.items():
        same = torch.equal(tensor, asked.encoded.tensors[name])
        assert same == (name != "pixel_values_videos"), name
    assert control.completions == again.completions != other.completions
    prompts = (prompts[0], prompts[2])
    assert made(seed=1) is None


# ------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four videos and two images with a question each."""
    folder = tmp_path_factory.mktemp("rows")
    lines: list[dict[str, Any]] = []
    for n in range(4):
        write_video(folder / f"{n}.mp4", [500 * k for k in range(3 + n)])
        lines.append({"videos": [f"{n}.mp4"]})
    for n in range(2):
        Image.new("RGB", (56, 56), (90 * n, 40, 40)).save(folder / f"{n}.png")
        lines.append({"images": [f"{n}.png"]})
    text = [
        json.dumps({"id": str(i), "question": "What is it?", "answer": "a thing", **line}) + "\n"
        for i, line in enumerate(lines)
    ]
    (folder / "train.jsonl").write_text("".join(text))
    return folder


def settings(rows: Path, weight: float, size: int) -> list[str]:
    bonus = f"{{verifier: temporal_contrast, weight: {weight}, options: {{correct_above: 0.5}}}}"
    return [
        f"data.train=[{{card: records, options: {{path: {rows}}}}}]",
        f"rewards=[{VARIED}, {bonus}]",
        "rollout={prompts: 6, group_size: 3, max_tokens: 5}",
        f"strategies=[{f'{{name: shuffled_frames, options: {{group_size: {size}}}}}' if size else ''}]",
        "run={steps: 2, threads: 1, report: false, rollouts_every: 1}",
        "tracking.tensorboard=false",
        "sft=null",
        "evaluation=null",
        "checks={media_ablation_every: 0, parity_every: 0}",
    ]


def ran(rows: Path, folder: Path, weight: float, size: int) -> Path:
    config: Config = load("quickstart", [*settings(rows, weight, size), f"run.dir={folder}"])
    assert lifecycle.train(config)["finished"]
    return folder


def check_bonus(folder: Path) -> None:
    """Every reward is the item's own and the bonus; only questions about videos have one."""
    seen = set()
    for n in (1, 2):
        text = (folder / f"rollouts/step-{n}.jsonl").read_text()
        for row in map(json.loads, text.splitlines()):
            about_video = row["media"][0]["kind"] == "video"
            own = [one["verdicts"]["varied"]["score"] for one in row["completions"]]
            found = [one["verdicts"]["temporal_contrast"] for one in row["completions"]]
            assert {verdict["applies"] for verdict in found} == {about_video}
            if about_video:
                ordered, shuffled = found[0]["parts"]["ordered"], found[0]["parts"]["shuffled"]
                assert ordered == sum(score > 0.5 for score in own) / 3
                assert shuffled in (0, 0.5, 1)
                helped = ordered >= 0.8 * shuffled
                own = [score + 0.3 * (helped and score > 0.5) for score in own]
                seen.add(helped)
            assert [one["reward"] for one in row["completions"]] == pytest.approx(own, abs=1e-6)
    assert seen == {True, False}


def weights(folder: Path) -> dict[str, bytes]:
    return {k: v for k, v in final_state(folder).items() if k != "state"}


@pytest.mark.slow
def test_the_control_group_is_not_trained_on_and_its_bonus_is(rows: Path, tmp_path: Path) -> None:
    without = ran(rows, tmp_path / "without", weight=0, size=0)
    unpaid = ran(rows, tmp_path / "unpaid", weight=0, size=2)
    paid = ran(rows, tmp_path / "paid", weight=0.3, size=2)
    # a bonus of no weight: the control group was there, and the training took no notice of it
    assert weights(unpaid) == weights(without)
    assert weights(paid) != weights(without)
    for plain, with_control in zip(metric_lines(without), metric_lines(unpaid), strict=True):
        new = set(with_control) - set(plain)
        assert {
            "shuffled_frames/ordered",
            "shuffled_frames/shuffled",
            "shuffled_frames/bonus_share",
        } <= new
        assert {k: with_control[k] for k in plain} == plain
    check_bonus(paid)


@pytest.mark.nightly
def test_several_processes_compare_as_one_does(rows: Path, tmp_path: Path) -> None:
    arguments = [*settings(rows, 0.3, 2), f"run.dir={tmp_path / 'two'}"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", *arguments)
    assert done.returncode == 0, done.stderr
    check_bonus(tmp_path / "two")


def test_a_control_group_and_rollouts_ahead_are_refused_together() -> None:
    with pytest.raises(
        UserError, match="strategies ask the policy that wrote the batch: expected rollout"
    ):
        load(
            "quickstart",
            ["strategies=[shuffled_frames]", "rollout.max_staleness=1", "engine=vllm_server"],
        )
