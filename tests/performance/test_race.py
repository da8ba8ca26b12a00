"""The race: all trainers are asked the same, in turns; an error ends its trainer, not the race."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from helpers import small
from vlmrl import config
from vlmrl.data.prompt import make_prompt
from vlmrl.data.source import open_source
from vlmrl.features.integrations.other_trainers import ForeignScorer
from vlmrl.media.decode import decode
from vlmrl.truths import prompting

FOLDER = Path(__file__).parents[2] / "performance"
TRAINER = """
import sys
from clock import Clock
clock = Clock()
for step in range(int(sys.argv[1]) + 1):
    clock.wait(step)
    with open(sys.argv[2], "a") as file:
        file.write(f"{sys.argv[3]}{step} ")
raise ValueError("no more steps") if len(sys.argv) > 4 else SystemExit
"""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_other_trainers_are_asked_what_ours_is_and_pay_the_same_answer(tmp_path: Path) -> None:
    from race_arms.rows import write_rows

    file = str(FOLDER / "configs/race_shapes.yaml")
    settings = config.load(file, ["data.train.0.options={task: grounding, count: 3}"])
    write_rows(settings, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    model, source = small.loaded("qwen2_5_vl"), open_source(settings.data.train[0])
    scorer = ForeignScorer(list(settings.rewards), None, "think_answer", "pixel")
    assert len(rows) == 3
    for index, row in enumerate(rows):
        sample = source.sample(index)
        media = decode(sample, source.access, source.reading)
        prompt = make_prompt(sample, media, model.family, model.processor)
        parts = [{"type": "image", "image": Image.open(row["images"][0])}]
        parts += [{"type": "text", "text": row["question"]}]
        asked = model.processor.apply_chat_template(
            [{"role": "user", "content": parts}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
        assert list(asked["input_ids"][0]) == list(prompt.encoded.ids)
        assert sample.demo is not None
        exact = sample.demo.__class__(sample.demo.thought, answer=sample.truth)
        text = prompting.demonstrate(exact, sample.template, prompt.frame)
        (judged,) = scorer.judge([text], [row["truth"]], [row["media"]], [""])
        assert judged.reward == pytest.approx(1.1)


def test_trainers_take_turns_and_one_that_falls_out_is_noted(tmp_path: Path) -> None:
    from race_arms import heat

    order = tmp_path / "order"
    call = [sys.executable, "-c", TRAINER]
    commands = {
        "a": [*call, "3", str(order), "a"],
        "b": [*call, "1", str(order), "b", "fails"],
        "c": [sys.executable, "-c", "raise OSError('no such model')"],
    }
    heat.race(commands, tmp_path, 3, {})

    # What follows `wait(n)` is step n + 1, made in its turn.
    assert order.read_text().split() == ["a0", "b0", "a1", "b1", "a2", "a3"]
    stamps = [json.loads(line) for line in (tmp_path / "a/stamps.jsonl").read_text().splitlines()]
    assert [stamp["step"] for stamp in stamps] == [1, 2, 3]
    assert all(stamp["wall"] > 0 and stamp["peak"] > 1 for stamp in stamps)
    assert (tmp_path / "b/error.txt").read_text() == "ValueError: no more steps\n"
    assert (tmp_path / "c/error.txt").read_text() == "OSError: no such model\n"

    heat.race(commands, tmp_path, 3, {})
    assert len(order.read_text().split()) == 6


def test_a_trainer_is_compared_with_ours_on_the_seeds_that_both_ended() -> None:
    from race_arms.table import lines_over_seeds

    def ended(cpu: float, value: float) -> dict[str, object]:
        stamps = [{"cpu": cpu, "peak": 100.0}, {"cpu": cpu, "peak": 100 * cpu}]
        return {"stamps": stamps, "curve": {0: 0.1, 10: value}}

    seeds = [
        {"vlmrl": ended(1.0, 0.5), "trl": ended(3.0, 0.4), "ms-swift": {"error": "fell out"}},
        {"vlmrl": ended(2.0, 0.7), "trl": ended(4.0, 0.6), "ms-swift": ended(2.0, 0.7)},
    ]
    assert lines_over_seeds(seeds) == [
        "vlmrl | 2 | 0.600 (0.500 to 0.700) | 1.00 | 1.00 |",
        "trl | 2 | 0.500 (0.400 to 0.600) | 2.50 (2.00 to 3.00) | 2.50 (2.00 to 3.00) |",
        "ms-swift | 1 | 0.700 | 1.00 | 1.00 |",
    ]
