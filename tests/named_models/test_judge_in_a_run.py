"""Two steps of GRPO with a judge on the loopback: what it is shown, and what a resumed run pays."""

from __future__ import annotations

import base64
import io
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.chat_server import Server, chat_servers
from helpers.runs import TINY, metric_lines
from vlmrl import config
from vlmrl.assemble import lifecycle
from vlmrl.errors import UserError

SIDE = 56
"""Pixels of a side of the images as the policy sees them; they are drawn larger."""


def images_of(body: dict[str, Any]) -> list[Image.Image]:
    parts = [
        part for m in body["messages"] if isinstance(m["content"], list) for part in m["content"]
    ]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]


def score_of(text: str) -> int:
    """What the scripted judge thinks of a completion, from 0 to 10."""
    return sum(text.strip().encode("utf-8", "surrogatepass")) % 11


def grade(body: dict[str, Any]) -> str:
    data = json.loads(body["messages"][1]["content"][-1]["text"])
    return json.dumps({"score": score_of(data["candidate"])})


@pytest.fixture
def server() -> Iterator[Server]:
    with chat_servers() as start:
        yield start(grade)


def train(server: Server, folder: Path, *more: str, verifier: str = "judge") -> dict[str, Any]:
    model = f"{{url: '{server.url}', model: seer, attempts: 1, timeout_s: 20}}"
    judge = (
        f"{{verifier: {verifier}, "
        "options: {model: grader, media: true, part: text, max_chars: 100000}}"
    )
    overrides = [
        *TINY, "run.steps=2", "run.save_every=1", "run.rollouts_every=1", "sft=null",
        f"model.max_pixels={SIDE * SIDE}", f"model.min_pixels={SIDE * SIDE}",
        f"models.grader={model}", f"rewards=[{judge}]", "evaluation=null",
        "checks.media_ablation_every=0", f"run.dir={folder}",
    ]  # fmt: skip
    return lifecycle.train(config.load("quickstart", [*overrides, *more]))


def groups(folder: Path, verifier: str = "judge") -> list[list[tuple[str, float | None]]]:
    """The texts of every group of the run, and what the judge gave each."""
    rows = [
        json.loads(line)
        for step in (1, 2)
        for line in (folder / f"rollouts/step-{step}.jsonl").read_text().splitlines()
    ]
    return [
        [(one["text"], one["verdicts"][verifier]["score"]) for one in row["completions"]]
        for row in rows
    ]


def verdicts(folder: Path) -> list[tuple[str, float | None]]:
    return [one for group in groups(folder) for one in group]


@pytest.mark.slow
def test_the_judge_of_a_run_sees_what_the_policy_saw_and_a_resumed_run_pays_nothing(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert train(server, folder)["finished"]
    found = verdicts(folder)
    assert len(found) == 24
    for text, score in found:
        assert score == pytest.approx(score_of(text) / 10 if text.strip() else 0.0)
    asked = len(server.requests)
    assert 0 < asked <= 24
    for body in server.requests:
        assert body["model"] == "seer" and [i.size for i in images_of(body)] == [(SIDE, SIDE)]
    spread = [np.asarray(images_of(body)[0]).std() for body in server.requests]
    assert min(spread) > 1  # a drawn image, not a blank one
    lines = metric_lines(folder)
    for line in lines:
        assert line["model/grader/failed"] == 0 and line["model/grader/questions"] <= 12
    assert sum(line["model/grader/requests"] for line in lines) == asked
    # The second step once more, from the checkpoint of the first: all its questions are known.
    shutil.rmtree(folder / "checkpoints/step-2")
    (folder / "summary.json").unlink()
    assert train(server, folder, "resume=auto")["finished"]
    assert len(server.requests) == asked
    assert verdicts(folder) == found
    assert metric_lines(folder)[1]["model/grader/known"] == 1


@pytest.mark.slow
def test_a_judge_that_is_down_ends_the_run_in_one_line_and_scores_nothing(
    server: Server, tmp_path: Path
) -> None:
    server.script = lambda body: 503
    with pytest.raises(
        UserError, match=r"(?s)^verifier 'judge' failed on 24 of its last 24.*HTTP 503$"
    ):
        train(server, tmp_path / "run", "rollout.prompts=8")
    assert not (tmp_path / "run/metrics.jsonl").exists()


PAIRS = "judge_pairwise"


def compare(body: dict[str, Any]) -> str:
    """Names the candidate of the larger number."""
    data = json.loads(body["messages"][1]["content"][-1]["text"])
    first, second = score_of(data["first"]), score_of(data["second"])
    return json.dumps({"better": "tie" if first == second else ("first", "second")[first < second]})


def wins(texts: list[str]) -> list[float]:
    """What a tournament pays each of some texts, by a plain loop."""
    found = []
    for g, text in enumerate(texts):
        others = [other.strip() for i, other in enumerate(texts) if i != g]
        own = text.strip()
        paid = [
            0.5 if other == own else float(bool(own)) if not (own and other)
            else 0.5 + 0.5 * ((score_of(own) > score_of(other)) - (score_of(own) < score_of(other)))
            for other in others
        ]  # fmt: skip
        found.append(sum(paid) / len(paid) if own else 0.0)
    return found


@pytest.mark.slow
def test_a_server_of_pairs_that_dies_in_the_middle_scores_nothing_0_and_the_run_goes_on_later(
    tmp_path: Path,
) -> None:
    with chat_servers() as start:
        server = start(compare)
        whole, folder, more = tmp_path / "whole", tmp_path / "run", "rollout.prompts=8"
        assert train(server, whole, more, verifier=PAIRS)["finished"]
        expected = groups(whole, PAIRS)
        for group in expected:
            assert [s for _, s in group] == pytest.approx(wins([text for text, _ in group]))
        lines = metric_lines(whole)
        for line in lines:
            assert line[f"judge/{PAIRS}/orders_agree"] == 1.0
            assert line.get(f"judge/{PAIRS}/first_wins", 0.5) == 0.5
        assert {i.size for body in server.requests for i in images_of(body)} == {(SIDE, SIDE)}
        asked = [int(line["model/grader/requests"]) for line in lines]
        assert asked[1] > 12
        server.kill()
        server = start(compare, port=server.server_address[1])
        last = asked[0] + 5

        def until_killed(body: dict[str, Any]) -> str:
            if len(server.requests) == last:
                threading.Thread(target=server.kill).start()
            return compare(body)

        server.script = until_killed
        with pytest.raises(UserError, match=r"(?s)^verifier 'judge_pairwise' failed on .*refused"):
            train(server, folder, more, verifier=PAIRS)
        assert len(metric_lines(folder)) == 1  # the second step was never scored
        server = start(compare, port=server.server_address[1])
        assert train(server, folder, more, "resume=auto", verifier=PAIRS)["finished"]
        assert groups(folder, PAIRS) == expected
        assert len(server.requests) <= asked[1]  # what was answered before the end is known
