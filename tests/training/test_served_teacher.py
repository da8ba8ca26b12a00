"""A teacher behind `vlmrl serve`: its log-probs are the loaded one's, and a run outlives its death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from helpers.chat_calls import call
from helpers.rollouts_ahead import ahead_config, begin_training
from helpers.runs import ROOT, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.schema import Advantages, MicroBatch
from vlmrl.training.teacher import LoadedTeacher, ServedTeacher
from vlmrl.training.trainer import Trainer

pytestmark = pytest.mark.slow

DISTILL = "algorithm=on_policy_distillation"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the family and tokenizer of the runs, with other weights."""
    folder = tmp_path_factory.mktemp("teacher")
    with begin_training(ahead_config(folder / "run", "engine=hf", "run.seed=1")) as trainer:
        trainer.policy.save(str(folder / "model"))
    return folder / "model"


@contextmanager
def served(model: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`vlmrl serve` of a checkpoint in a process of its own, and its address."""
    command = [sys.executable, "-m", "vlmrl", "serve", str(model), "--engine", "hf"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, "--port", str(port)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving model at http://127.0.0.1:"), line
        yield process, line.split()[3].removesuffix("/v1")
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(teacher: Path) -> Iterator[str]:
    with served(teacher) as (_, url):
        yield url


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("student")
    more = ["engine=hf", DISTILL, f"teacher.path={teacher}"]
    with begin_training(ahead_config(folder / "run", *more)) as built:
        yield built


@pytest.fixture(scope="module")
def micro(student: Trainer) -> MicroBatch:
    rollouts = student._generate(student._draw_prompts(0))
    shape = torch.ones(rollouts.shape)
    given = Advantages(shape, shape.bool(), shape)
    (batch,) = pack(rollouts, given, updates=1, micro_tokens=10**6, max_tokens=6)
    return batch.micro[0]


def test_a_server_says_what_its_model_says_in_this_process(
    server: str, student: Trainer, micro: MicroBatch
) -> None:
    assert isinstance(student.teacher, LoadedTeacher)
    found = ServedTeacher(server, 60.0, student.policy).logprobs(micro)
    torch.testing.assert_close(found, student.teacher.logprobs(micro), atol=1e-5, rtol=0)
    own = student.policy.logprobs(micro)[0].detach()
    assert (found - own)[micro.mask].abs().max() > 1e-2  # it is another model


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "expected a JSON object"),
        ({"token_ids": [1, 2], "sampling_params": {"prompt_logprobs": 5}}, "only grades"),
        ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 0}}, "at least 2"),
        ({"token_ids": [1, 10**6], "sampling_params": {"prompt_logprobs": 0}}, "vocabulary"),
        (
            {
                "token_ids": [1, 2],
                "sampling_params": {"prompt_logprobs": 0},
                "content_parts": [{"type": "image_url", "url": "/etc/passwd"}],
            },
            "opens no URLs and no files",
        ),
    ],
)
def test_what_is_no_text_to_grade_is_refused_by_name(server: str, body: object, said: str) -> None:
    status, found = call(f"{server}/inference/v1/generate", body)
    assert status == 400 and said in found


def distilling(folder: Path, url: str, *more: str) -> Config:
    return ahead_config(folder, "engine=hf", "run.steps=4", DISTILL, f"teacher.url={url}", *more)


def test_a_teacher_that_dies_ends_the_run_with_one_line_and_a_resume_goes_on_to_the_same_bytes(
    teacher: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lifecycle.train(distilling(tmp_path / "whole", server))["finished"]
    killed = tmp_path / "killed"
    with served(teacher) as (process, url):
        plain = ServedTeacher.logprobs
        asked = []

        def dying(self: ServedTeacher, micro: MicroBatch) -> torch.Tensor:
            asked.append(micro)
            if len(asked) == 3:
                process.send_signal(signal.SIGKILL)
                process.wait()
            return plain(self, micro)

        monkeypatch.setattr(ServedTeacher, "logprobs", dying)
        with pytest.raises(UserError, match=rf"^teacher: server {url}") as error:
            lifecycle.train(distilling(killed, url))
        assert "\n" not in str(error.value)
        monkeypatch.undo()
    done = [line["step"] for line in metric_lines(killed)]
    assert done == [1, 2]  # nothing was trained without its teacher
    summary = lifecycle.train(distilling(killed, server, "resume=auto"))
    assert summary["finished"] and summary["steps"] == 4
    assert final_state(killed) == final_state(tmp_path / "whole")
    assert metric_lines(killed) == metric_lines(tmp_path / "whole")
