"""`vlmrl data rate`: pass rates by row, resumed by whole blocks; a row that cannot be rated is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.runs import TINY
from helpers.turns import script_turns
from vlmrl.config import Config, load
from vlmrl.errors import UserError
from vlmrl.features.curate.rate import rate
from vlmrl.runs.output.outputs import JsonLines

pytestmark = pytest.mark.slow


def settings(tmp_path: Path, *more: str) -> Config:
    """Ten rows, of which row 5 has no image and row 8 no question."""
    rows = []
    for number in range(10):
        Image.new("RGB", (56, 56), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
        row = {"id": f"r{number}", "image": f"{number}.png", "question": "How red?"}
        rows.append({**row, "answer": str(number)})
    (tmp_path / "5.png").write_bytes(b"no image")
    del rows[8]["question"]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "train.jsonl").write_text(text)
    columns = "{id: id, image: image, question: question, answer: answer}"
    options = f"{{path: {tmp_path}/train.jsonl, columns: {columns}}}"
    source = f"data.train=[{{card: table, name: mine, options: {options}}}]"
    return load("quickstart", [*TINY, "sft=null", "evaluation=null", source, *more])


def ratings(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ratings of all rows, made without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    rated = rate(settings(folder), folder / "out.jsonl", samples=3, block=4, threshold=0.4)
    assert rated.finished and rated.rows == 10 and sum(rated.solved.values()) == 8
    return folder / "out.jsonl"


def test_each_row_is_rated_by_its_completions(whole: Path) -> None:
    found = ratings(whole)
    assert [one["row"] for one in found] == list(range(10))
    assert [one["id"] for one in found] == [f"r{i}" for i in range(10)]
    for one in (one for one in found if not one["fault"]):
        assert one["n"] == 3 and 0 < one["reward"] < 1
        assert 3 * one["pass_rate"] == pytest.approx(round(3 * one["pass_rate"]))
    assert len({one["reward"] for one in found}) == 9  # eight rewards, and none


def test_a_row_that_cannot_be_rated_is_named_and_has_no_number(whole: Path) -> None:
    faults = {one["row"]: one for one in ratings(whole) if one["fault"]}
    assert set(faults) == {5, 8}
    assert all(one["pass_rate"] is None and one["n"] == 0 for one in faults.values())
    assert "5.png" in faults[5]["fault"] and "question" in faults[8]["fault"]


def test_a_rating_that_was_killed_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = settings(whole.parent), tmp_path / "out.jsonl"
    data = whole.read_bytes()
    out.write_bytes(data[: data.index(b'"row": 6') + 3])  # the second block is torn
    with JsonLines() as output:
        rated = rate(config, out, samples=3, block=4, threshold=0.4, resume=True, output=output)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    done = [one["done"] for one in told if one["what"] == "rating"]
    assert done[0] == 4 and done[-1] == 10 and rated.finished
    # Six of the ten rows were rated since.
    assert told[-1]["rate"] == pytest.approx(6 / told[-1]["seconds"])
    assert ratings(out) == ratings(whole)


def test_another_way_of_rating_is_refused_by_its_name(whole: Path) -> None:
    config = settings(whole.parent)
    with pytest.raises(UserError, match="exists; --resume goes on with it"):
        rate(config, whole)
    with pytest.raises(UserError, match="another samples: expected 2, got 3; choose another --out"):
        rate(config, whole, samples=2, block=4, threshold=0.4, resume=True)
    hot = settings(whole.parent, "rollout.temperature=2")
    with pytest.raises(UserError, match="made with another rollout"):
        rate(hot, whole, samples=3, block=4, threshold=0.4, resume=True)
    with pytest.raises(UserError, match=r"reward of source 'mine' \(reward, varied\), got 'iou'"):
        rate(config, whole, metric="iou", resume=True)


def test_its_file_chooses_rows_of_a_run(whole: Path) -> None:
    """The row without an image stays, and is refused when it is drawn."""
    from vlmrl.data.source import open_configured

    rates = {one["row"]: one["pass_rate"] for one in ratings(whole)}
    chosen = [row for row, rate in rates.items() if rate is None or rate > 0.5]
    config = settings(whole.parent)
    update = {"ratings": str(whole), "where": "pass_rate > 0.5"}
    source = open_configured(config, config.data.train[0].model_copy(update=update))
    assert source.rows.positions == chosen  # type: ignore[attr-defined]
    assert 2 < len(chosen) < 10


def test_a_source_with_tools_is_rated_by_rollouts_of_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[str] = []

    def say(prompt: Any) -> str:
        prompts.append(prompt.text)
        call = '<tool_call>{"name": "calculator", "arguments": {"expression": "2 + 1"}}</tool_call>'
        return "<answer>3</answer>" if "<tool_response>\n3" in prompt.text else call

    script_turns(monkeypatch, say)
    config = settings(
        tmp_path,
        "data.train.0.tools=[calculator]",
        "rewards=[{verifier: exact}]",
        "rollout.max_tokens=64",
    )
    assert rate(config, tmp_path / "out.jsonl", samples=2, limit=4, metric="exact").finished
    assert all('"name": "calculator"' in text for text in prompts)
    assert [one["pass_rate"] for one in ratings(tmp_path / "out.jsonl")] == [0.0, 0.0, 0.0, 1.0]
