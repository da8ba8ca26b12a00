"""`vlmrl data demonstrate`: a teacher's best verified answer becomes a demonstration; others are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.chat_calls import save_small_model
from helpers.chat_server import Server, chat_servers
from helpers.runs import TINY
from vlmrl.assemble import lifecycle
from vlmrl.config import Config, load
from vlmrl.data.source import Source, open_configured
from vlmrl.errors import UserError
from vlmrl.features.curate.demonstrate import demonstrate
from vlmrl.runs.output.events import Demonstrated
from vlmrl.schema import Demo, Frame
from vlmrl.truths import prompting

pytestmark = pytest.mark.slow

RIGHT = "<think>I count {0}.</think><answer>{0}</answer>"


def reply(body: dict[str, Any]) -> str | int:
    """What the teacher says: right in every other sample, always wrong of row 3, nothing of row 4."""
    content = body["messages"][-1]["content"]
    assert content[0]["type"] == "image_url"
    number = int(content[1]["text"].removeprefix("How red is ").rstrip("?"))
    if number == 4:
        return 400
    said = RIGHT.format(number)
    return said.replace(f">{number}<", ">wrong<") if number == 3 or body["seed"] % 2 else said


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with chat_servers() as start:
        yield start(reply)


def settings(folder: Path, url: str, *more: str) -> Config:
    """Eight rows, of which row 5 has no image."""
    rows = []
    for number in range(8):
        Image.new("RGB", (56, 56), (20 * number, 0, 0)).save(folder / f"{number}.png")
        row = {"id": f"r{number}", "image": f"{number}.png", "question": f"How red is {number}?"}
        rows.append({**row, "answer": str(number)})
    (folder / "5.png").write_bytes(b"no image")
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = "{id: id, image: image, question: question, answer: answer}"
    options = f"{{path: {folder}/train.jsonl, columns: {columns}}}"
    source = f"data.train=[{{card: table, name: mine, options: {options}, template: think_answer}}]"
    big = f"models.big={{url: {url}, model: m, attempts: 1}}"
    own = ["sft=null", "evaluation=null", "rewards=[exact]", "data.quarantine_limit=1", source, big]
    return load("quickstart", [*TINY, "evaluation.metric=reward", *own, *more])


def write(config: Config, out: Path, **more: Any) -> Demonstrated:
    given = {"samples": 6, "metric": "exact", "threshold": 1.0, "block": 4}
    return demonstrate(config, "big", out, **(given | more))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Path:
    """A folder with the rows and `out.jsonl`, written without a stop."""
    folder = tmp_path_factory.mktemp("rows")
    found = write(settings(folder, server.url), folder / "out.jsonl")
    assert found.finished and found.rows == 8 and found.kept == 5
    assert sum(found.dropped.values()) == 3 and len(found.named) == 3
    return folder


def test_the_best_answer_that_verifies_is_kept_and_the_others_are_named(folder: Path) -> None:
    found = lines(folder / "out.jsonl")
    assert [one["row"] for one in found] == list(range(8))
    for one in found:
        if one["row"] in (3, 4, 5):
            assert one["text"] is None and one["dropped"]
        else:
            assert one["text"] == RIGHT.format(one["row"]) and one["reward"] == 1.0
            assert one["thought"] == f"I count {one['row']}." and 1 <= one["passed"] < 6
    assert found[3]["dropped"] == "none has exact of 1"
    assert found[4]["dropped"] == "the teacher gave no answer"
    assert "5.png" in found[5]["dropped"]


def test_what_was_killed_goes_on_to_the_same_lines_and_asks_nothing_twice(
    folder: Path, server: Server, tmp_path: Path
) -> None:
    out = folder / "again.jsonl"
    data = (folder / "out.jsonl").read_bytes()
    out.write_bytes(data[: data.index(b'"row": 6') + 3])  # the second block is torn
    (folder / "out.jsonl.replies").rename(folder / "again.jsonl.replies")
    before = len(server.requests)
    found = write(settings(folder, server.url), out, resume=True)
    assert found.finished and lines(out) == lines(folder / "out.jsonl")
    asked = [body["messages"][-1]["content"][1]["text"] for body in server.requests[before:]]
    assert set(asked) <= {"How red is 4?"}  # of which there is no reply to keep
    with pytest.raises(UserError, match="made with another samples"):
        write(settings(folder, server.url), out, samples=2, resume=True)
    with pytest.raises(UserError, match="exists; --resume goes on with it"):
        write(settings(folder, server.url), out)


def source_of(folder: Path, server: Server, file: str = "out.jsonl", **more: Any) -> Source:
    config = settings(folder, server.url)
    update = {"demonstrations": str(folder / file), **more}
    return open_configured(config, config.data.train[0].model_copy(update=update))


def test_a_source_uses_the_rows_of_which_an_answer_is_kept(folder: Path, server: Server) -> None:
    source = source_of(folder, server)
    samples = [source.sample(index) for index in range(len(source.rows))]
    assert [sample.id for sample in samples] == ["r0", "r1", "r2", "r6", "r7"]
    for sample in samples:
        assert sample.demo is not None and sample.truth.text == (sample.id[1:],)
        written = prompting.demonstrate(sample.demo, sample.template, Frame())
        assert written == RIGHT.format(sample.id[1:])
        dropped = prompting.demonstrate(replace(sample.demo, thought=""), sample.template, Frame())
        assert dropped == f"<think>\n\n</think><answer>{sample.id[1:]}</answer>"
    assert len(source_of(folder, server, split="train[:3]").rows) == 3


def test_a_file_of_other_data_or_without_a_row_is_refused(folder: Path, server: Server) -> None:
    for change, said in (
        ({"name": "other"}, "expected demonstrations of other:train"),
        ({"file": "short.jsonl"}, "expected a line for row 7, got none"),
        ({"file": "wrong.jsonl"}, "names row 2 'r9', but its id is 'r2'"),
        ({"file": "train.jsonl"}, "expected the manifest"),
    ):
        text = (folder / "out.jsonl").read_text().splitlines(keepends=True)
        (folder / "short.jsonl").write_text("".join(text[:-1]))
        (folder / "wrong.jsonl").write_text("".join(text).replace('"id": "r2"', '"id": "r9"'))
        with pytest.raises(UserError, match=said):
            source_of(folder, server, **change)


def test_a_cold_start_imitates_what_was_kept(folder: Path, server: Server, tmp_path: Path) -> None:
    shown = settings(folder, server.url).data.train[0].model_dump(mode="json", exclude_none=True)
    shown["demonstrations"] = str(folder / "out.jsonl")
    more = [f"run.dir={tmp_path / 'run'}", "run.steps=1", "rollout.prompts=2"]
    more += [
        "sft={max_steps: 3, batch_size: 2, decay_steps: 1}",
        f"sft.sources=[{json.dumps(shown)}]",
    ]
    assert lifecycle.train(settings(folder, server.url, *more))["finished"]
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run/sft.jsonl").open()]
    assert len(losses) == 3 and losses[-1] < losses[0]


def test_a_teacher_that_is_down_ends_the_command_with_one_line(
    folder: Path, tmp_path: Path
) -> None:
    config = settings(folder, "http://127.0.0.1:9/v1", "models.big.timeout_s=2")
    with pytest.raises(UserError, match=r"^models\.big does not answer: .*--resume goes on$"):
        write(config, tmp_path / "out.jsonl")
    assert lines(tmp_path / "out.jsonl") == []


def test_a_checkpoint_answers_by_the_engine(folder: Path, server: Server, tmp_path: Path) -> None:
    model = save_small_model(tmp_path / "tiny")
    config = settings(folder, server.url, "rewards=[format]")
    given = {"samples": 2, "metric": "format", "threshold": 0.0, "limit": 3}
    found = demonstrate(config, str(model), tmp_path / "out.jsonl", **given)
    assert found.finished and found.rows == 3
    again = demonstrate(config, str(model), tmp_path / "again.jsonl", **given)
    assert replace(again, file=found.file) == found and lines(tmp_path / "again.jsonl") == lines(
        tmp_path / "out.jsonl"
    )


def test_a_demonstration_for_another_view_is_refused() -> None:
    from helpers.small import policy
    from vlmrl.data.prompt import make_prompt
    from vlmrl.schema import Box, Media, PromptBatch, Sample, Truth
    from vlmrl.training import sft

    made = policy()
    image = Image.new("RGB", (56, 56))
    said = Demo(thought="so", completion="<answer>[1, 2, 3, 4]</answer>", frame=Frame(56, 56))
    truth = Truth(boxes=(Box(0, 0, 1, 1),))
    media = (Media("image", data=b"-"), "where?")
    sample = Sample("row", "test", media, truth, "answer_only", demo=said)
    seen = make_prompt(sample, [image], made.family, made.processor)
    with pytest.raises(UserError, match="was written for 56 x 56 pixels in space 'pixel'"):
        sft.demonstrations(made, PromptBatch((seen,)), 0.0, seed=0)
    fits = replace(seen, sample=replace(sample, demo=replace(said, frame=seen.frame)))
    (group,) = sft.demonstrations(made, PromptBatch((fits,)), 0.0, seed=0).completions
    assert group[0].text == said.completion
