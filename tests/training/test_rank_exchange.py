"""What ranks tell each other of their rollouts: numbers alone, and enough for all to decide as one would."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import exchange
from helpers.runs import torchrun
from vlmrl.schema import Encoded, Frame, Media, Prompt, Sample, Truth, Turn

PROMPTS, RANKS = 8, 2
OF_ROLLOUTS = (
    *("reward/", "rollout/", "source/", "mode/", "hints/", "critiques/"),
    *("caption_sufficiency/", "blind_penalty/", "question_variants/", "masked_tags/"),
)
OF_UPDATES = (
    "rollout/entropy",
    "rollout/logprob_gap",
    "rollout/logprob_kl",
    "rollout/logprob_max_ratio",
)
"""Numbers of an update, which adds in another order; gap and divergence are near 0 with an exact engine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks wrote what every case came to."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(exchange.__file__, str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def by_two(folder: Path) -> list[dict[str, Any]]:
    """What every case came to on two ranks, by rank."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a step's rollouts, without what updates add in another order."""
    found = [json.loads(x) for x in (folder / "rollouts/step-1.jsonl").read_text().splitlines()]
    for one in (one for row in found for one in row["completions"]):
        one["advantage"] = pytest.approx(one["advantage"], abs=1e-5)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", exchange.CASES)
def test_every_rank_comes_to_the_numbers_of_one(name, by_two, folder, tmp_path):
    alone = json.loads(json.dumps(exchange.outcome(name, tmp_path)))
    for found in (of_rank[name] for of_rank in by_two):
        for key in ("rewards", "valid", "lengths", "counts"):
            assert found[key] == alone[key], key
        numbers = {k: v for k, v in alone["metrics"].items() if k.startswith(OF_ROLLOUTS)}
        for key in OF_UPDATES:
            numbers.pop(key, None)
        assert len(numbers) > 9
        assert {k: found["metrics"][k] for k in numbers} == numbers
        assert {*found["metrics"]} - {*alone["metrics"]} == {"update/useful_share"}
        assert found["metrics"]["update/tokens"] == alone["metrics"]["update/tokens"]
        for key in ({*OF_UPDATES} & {*alone["metrics"]}) | {"update/grad_norm"}:
            expected = pytest.approx(alone["metrics"][key], rel=1e-3, abs=1e-6)
            assert found["metrics"][key] == expected, key
    assert rows(folder / name) == rows(tmp_path / name)


@pytest.mark.slow
def test_the_cases_are_what_they_are_called(by_two):
    main = by_two[0]
    assert any(counts["faults"] for counts in main["plain"]["counts"].values())
    assert main["hints"]["metrics"]["hints/share"] == 1
    assert "question_variants/reward" in main["variants"]["metrics"]
    assert main["critiques"]["metrics"]["critiques/share"] > 0
    assert main["captions"]["metrics"]["reward/caption_sufficiency"] > 0
    assert main["blind"]["metrics"]["blind_penalty/blind"] > 0
    assert main["dynamic sampling"]["metrics"]["rollout/batches"] > 1


@pytest.mark.slow
def test_what_was_written_stays_with_its_rank_unless_a_part_reads_it(by_two):
    for name in exchange.CASES:
        reads = name in ("reads tokens", "masked", "critiques", "captions")
        for found in (of_rank[name] for of_rank in by_two):
            assert found["away"] > 0
            assert found["unread"] == (0 if reads else found["away"])


def gathered(found: dict[str, Any]) -> int:
    """Bytes of one rank."""
    return sum(found["sent"].values())


@pytest.mark.slow
def test_a_rollout_is_at_most_64_bytes_however_long_it_is(by_two):
    for of_rank in by_two:
        few, more, longer = (of_rank[name] for name in ("plain", "more", "longer"))
        rollouts = PROMPTS // RANKS * (len(more["lengths"][0]) - len(few["lengths"][0]))
        tokens = sum(map(sum, longer["lengths"])) - sum(map(sum, more["lengths"]))
        assert tokens > 1000
        assert 0 < (gathered(more) - gathered(few)) / rollouts <= 64
        # Sums of metrics are a few numbers more or less; one byte a token would be ten times that.
        assert abs(gathered(longer) - gathered(more)) < tokens // 20


def test_of_a_prompt_of_another_rank_no_bytes_of_media_travel():
    picture = Media("image", data=b"x" * 10**6)
    example = Sample("e", "s", (picture, "before"), Truth())
    sample = Sample(
        "a",
        "s",
        (picture, "now"),
        Truth(),
        history=(Turn("user", (picture,)),),
        examples=(example,),
    )
    encoded = Encoded((1, 2), (1, 2), {"pixel_values": torch.zeros(10**5)}, torch.zeros(1, 2), 2)
    turns = (Turn("user", (picture, "before")),)
    told = Prompt(sample, "text", encoded, Frame(1, 1), (), turns).without_media()
    assert len(pickle.dumps(told)) < 5000
    assert [m.kind for m in told.sample.media] == ["image"] * 3
    assert told.turns[0].parts[1] == "before" and told.sample.parts[1] == "now"
