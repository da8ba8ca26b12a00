"""What `train` says in its first lines, or ends with before step 1, and would else cost a night."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.chat_server import Server, chat_servers, reply_as_asked
from helpers.runs import TINY
from vlmrl import config
from vlmrl.assemble import first_look, lifecycle
from vlmrl.assemble.sources import open_training
from vlmrl.config import Config
from vlmrl.data.source import open_held_out
from vlmrl.errors import UserError

SHORT = ["run.steps=1", "sft=null", "evaluation=null", "checks.media_ablation_every=0"]


@pytest.fixture
def server() -> Iterator[Server]:
    with chat_servers() as start:
        yield start(reply_as_asked)


def settings(folder: Path, *more: str) -> Config:
    return config.load("quickstart", [*TINY, *SHORT, f"run.dir={folder / 'run'}", *more])


def boxes(folder: Path, name: str = "row-{}") -> str:
    """A source of 30 rows whose boxes are shares of the image and stated as pixels."""
    noise = np.random.default_rng(0).integers(0, 255, (28, 56, 3), np.uint8)
    Image.fromarray(noise).save(folder / "a.png")
    rows = [
        {"id": name.format(n), "image": "a.png", "q": f"Where is {n}?", "box": [0.1, 0.1, 0.5, 1.0]}
        for n in range(30)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = "columns: {id: id, image: image, question: q, boxes: box}"
    options = f"{{path: {folder / 'rows.jsonl'}, {columns}, box_space: pixel}}"
    return f"data.train=[{{name: mine, card: table, options: {options}}}]"


def lines(config: Config) -> list[str]:
    return [*first_look.warnings(config, open_training(config))]


def test_a_config_without_fault_says_nothing(tmp_path: Path) -> None:
    assert lines(settings(tmp_path)) == []


def test_places_in_another_unit_than_the_stated_one_and_equal_ids_are_said(tmp_path: Path) -> None:
    places, ids = lines(settings(tmp_path, boxes(tmp_path, "same"), "rewards=[box_iou]"))
    assert places.startswith("these boxes look like 0..1, you said pixel")
    assert ids.startswith("30 rows have an id that is another row's too, the first is 'same'")
    assert "vlmrl data check" in places


def test_rows_of_a_held_out_source_that_ask_the_same_are_said(tmp_path: Path) -> None:
    assert [*first_look.repeats(open_held_out(settings(tmp_path, "evaluation={every: 1}")))] == []
    source = boxes(tmp_path)
    rows = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    again = [row.replace('"id": "row-', '"id": "other-') for row in rows[:4]]
    (tmp_path / "rows.jsonl").write_text("".join(rows + again))
    evaluated = source.replace("data.train=", "evaluation={sources: ").replace(
        "name: mine,", "name: mine, split: train,"
    )
    (line,) = first_look.repeats(open_held_out(settings(tmp_path, evaluated + "}")))
    assert line.startswith("held-out source 'mine': 4 of its 34 rows repeat an earlier one")


@pytest.mark.parametrize(
    ("weight", "said"), [("0", 1), ("{schedule: [[0, 0.0], [0.5, 1.0]]}", 0), ("1", 0)]
)
def test_weights_that_are_0_at_all_times_are_said(tmp_path: Path, weight: str, said: int) -> None:
    found = lines(settings(tmp_path, f"rewards=[{{verifier: format, weight: {weight}}}]"))
    assert len(found) == said
    assert all("all weights of its rewards are 0" in line for line in found)


@pytest.mark.slow
def test_a_run_says_it_before_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lifecycle.train(settings(tmp_path, boxes(tmp_path), "rewards=[box_iou]"))
    printed = capsys.readouterr().out
    assert 0 <= printed.index("these boxes look like 0..1") < printed.index("step 1/1")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("said", [404, b"<html>", "OK", None])
def test_a_judge_is_asked_once_before_anything_is_loaded(
    server: Server, tmp_path: Path, said: object, named: bool
) -> None:
    server.probed = said
    url = "http://127.0.0.1:9/v1" if said is None else server.url
    where = f"url: '{url}', model: seer, attempts: 1"
    more = [f"models.grader={{{where}}}"] if named else []
    options = "model: grader" if named else where
    judge = f"rewards=[{{verifier: judge, options: {{{options}}}}}]"
    made = settings(tmp_path, *more, judge)
    if said == "OK":
        first_look.ask_models(made)
        assert not server.requests
        return
    with pytest.raises(UserError, match=f"^reward 'judge': its model {url} seer does not answer"):
        lifecycle.train(made)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_judge_that_goes_while_nothing_readable_is_written_is_named(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: bool,
) -> None:
    monkeypatch.setattr(first_look, "ASK_EVERY", 2)
    where = f"url: '{server.url}', model: seer"
    more = [f"models.grader={{{where}}}"] if named else []
    options = "model: grader" if named else where
    judge = f"rewards=[{{verifier: judge, options: {{{options}}}}}]"
    real = first_look.SilentModels.complain

    def complain(self: first_look.SilentModels, step: int) -> Iterator[str]:
        if step == 3:
            server.probed = 503  # it was there at step 2
        return real(self, step)

    monkeypatch.setattr(first_look.SilentModels, "complain", complain)
    lifecycle.train(settings(tmp_path, *more, judge, "run.steps=5"))
    printed = capsys.readouterr().out
    assert printed.count("seer does not answer: HTTP 503; nothing was asked of it") == 1
    assert printed.index("step 3/5") < printed.index("does not answer") < printed.index("step 5/5")


def test_a_checkpoint_that_is_none_ends_the_run_before_step_1(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    model = f"models.grader={{path: {tmp_path / 'empty'}}}"
    judge = "rewards=[{verifier: judge, options: {model: grader}}]"
    with pytest.raises(UserError, match=r"reward 'judge': its model .*empty .*does not answer"):
        lifecycle.train(settings(tmp_path, model, judge))
