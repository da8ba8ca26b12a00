"""On-policy distillation: a teacher's log-probs from this process or a server, and what is made of them."""

from __future__ import annotations

import http.server
import json
import math
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.losses import inputs_of, recipe_of
from helpers.rollouts_ahead import ahead_config, begin_training
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.schema import Advantages, MicroBatch, TrainBatch
from vlmrl.training.teacher import LoadedTeacher, ServedTeacher, Teacher, build_teacher
from vlmrl.training.trainer import Trainer

DISTILL = "algorithm=on_policy_distillation"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the family and tokenizer of the runs, with other weights."""
    folder = tmp_path_factory.mktemp("teacher")
    with begin_training(ahead_config(folder / "run", "engine=hf", "run.seed=1")) as trainer:
        trainer.policy.save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def trainer(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    folder = tmp_path_factory.mktemp("student")
    more = ["engine=hf", DISTILL, f"teacher.path={teacher}"]
    with begin_training(ahead_config(folder / "run", *more)) as built:
        yield built


@pytest.fixture(scope="module")
def micro(trainer: Trainer) -> MicroBatch:
    rollouts = trainer._generate(trainer._draw_prompts(0))
    shape = torch.ones(rollouts.shape)
    given = Advantages(0 * shape, shape.bool(), shape)  # as the recipe's, before `prepare`
    (batch,) = pack(rollouts, given, updates=1, micro_tokens=10**6, max_tokens=6)
    return batch.micro[0]


def test_the_loss_is_the_reverse_divergence_by_policy_gradient() -> None:
    noise = torch.Generator().manual_seed(0)
    old, teacher = (-torch.rand(3, 5, generator=noise) for _ in range(2))
    new = (old + 0.1 * torch.randn(3, 5, generator=noise)).requires_grad_()
    mask = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    given = inputs_of(new, teacher - old, old=old, mask=mask, extra={"teacher": teacher})
    found = recipe_of("on_policy_distillation").loss(given)
    slow, gap, said = 0.0, 0.0, new.detach()
    gradient = torch.zeros(3, 5)
    for row, length in enumerate([5, 2, 4]):
        for t in range(length):
            ratio = float((said[row, t] - old[row, t]).exp())
            reverse = float(old[row, t] - teacher[row, t])
            slow += ratio * reverse / 11
            gradient[row, t] = ratio * reverse / 11
            gap += float(said[row, t] - teacher[row, t])
    assert float(found.loss) == pytest.approx(slow, abs=1e-6)
    assert float(found.metrics["loss/teacher_kl"]) == pytest.approx(gap, abs=1e-5)
    ours = torch.autograd.grad(found.loss, new)[0]
    torch.testing.assert_close(ours, gradient, atol=1e-6, rtol=0)


def test_a_loaded_teacher_says_what_its_model_does(
    trainer: Trainer, micro: MicroBatch, teacher: Path
) -> None:
    assert isinstance(trainer.teacher, LoadedTeacher)
    found = trainer.teacher.logprobs(micro)
    own = trainer.policy.logprobs(micro)[0].detach()
    assert (found - own)[micro.mask].abs().max() > 1e-2  # it is another model
    before = {name: p.clone() for name, p in trainer.policy.base.state_dict().items()}
    trainer.policy.base.load_state_dict(trainer.teacher._model.state_dict())
    again = trainer.policy.logprobs(micro)[0].detach()
    trainer.policy.base.load_state_dict(before)
    torch.testing.assert_close(found, again, atol=1e-6, rtol=0)
    assert (found[~micro.mask] == 0).all()


def test_a_policy_comes_nearer_to_its_teacher(trainer: Trainer, micro: MicroBatch) -> None:
    policy, taught = trainer.policy, trainer.teacher.logprobs(micro)
    gaps = []
    for _ in range(6):
        now = policy.logprobs(micro)[0].detach()
        gaps.append((now - taught)[micro.mask].square().mean())
        drawn = replace(micro, sampling_logprobs=now)
        batch = TrainBatch((drawn,), int(micro.mask.sum()), len(micro.group), 6)
        filled = trainer.teacher.fill(policy.run_passes([batch], {"old"}, 0))
        ready = trainer.algorithm.prepare(filled, 0.0)
        found = policy.update(ready, trainer.algorithm, 2e-3, 0.0)
        assert found["loss/total"] == pytest.approx(found["loss/teacher_kl"], abs=1e-5)
    assert gaps[-1] < 0.7 * gaps[0], gaps


def test_another_tokenizer_or_no_teacher_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    with begin_training(
        ahead_config(tmp_path / "run", "engine=hf", "model.build.vocab_size=300")
    ) as o:
        o.policy.save(str(tmp_path / "other"))
    with pytest.raises(
        UserError, match=r"expected the tokenizer of the policy, got another: token"
    ) as e:
        LoadedTeacher(str(tmp_path / "other"), trainer.policy)
    assert "\n" not in str(e.value)
    for more, asked in ([[DISTILL], True], [["teacher.path=x"], False]):
        with pytest.raises(UserError, match=r"^teacher: algorithm"):
            build_teacher(ahead_config(tmp_path, *more), trainer.policy, asked)
    unknown = ahead_config(
        tmp_path, DISTILL, "teacher.model=big", "models.bg={url: http://x, model: m}"
    )
    with pytest.raises(UserError, match=r"teacher.model: expected one of models, got 'big'.*'bg'"):
        build_teacher(unknown, trainer.policy, True)
    there = ahead_config(
        tmp_path, DISTILL, "teacher.model=big", f"models.big={{path: '{tmp_path / 'other'}'}}"
    )
    with pytest.raises(UserError, match="expected the tokenizer of the policy, got another"):
        build_teacher(there, trainer.policy, True)
    hot = ahead_config(tmp_path, DISTILL, "teacher.url=http://x", "rollout.temperature=0.7")
    with pytest.raises(UserError, match=r"expected rollout\.temperature 1, got 0\.7"):
        build_teacher(hot, trainer.policy, True)


def test_a_teacher_with_other_marks_of_a_turn_is_refused(
    teacher: Path, trainer: Trainer, tmp_path: Path
) -> None:
    other = shutil.copytree(teacher, tmp_path / "other")
    (template,) = other.glob("chat_template*")
    template.write_text(template.read_text() + "{# another #}")
    with pytest.raises(UserError, match=r"^teacher: expected the chat template of the policy"):
        LoadedTeacher(str(other), trainer.policy)


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, 0.5])
def test_what_is_no_log_prob_is_never_trained_on(micro: MicroBatch, wrong: float) -> None:
    class Broken(Teacher):
        def logprobs(self, micro: MicroBatch) -> torch.Tensor:
            found = torch.full(micro.mask.shape, -1.0)
            found[1, 2] = wrong
            return found

    batch = TrainBatch((micro,), int(micro.mask.sum()), len(micro.group), 6)
    with pytest.raises(UserError, match=r"^teacher: the log-prob of token 2 .* expected a finite"):
        Broken().fill([batch])


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("algorithm.options.teacher_kl_in_advantage=true",),
        ("model.lora={rank: 2}", "optimizer.minibatches=3"),
    ],
)
def test_a_teacher_beside_rewards_is_asked_while_its_weight_is_above_zero(
    teacher: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    plan = "algorithm.options.teacher_kl={schedule: {linear: [0.4, 0], until: 0.4}}"
    grpo = ["engine=hf", "algorithm.name=grpo", plan, f"teacher.path={teacher}", "run.steps=4"]
    with begin_training(ahead_config(tmp_path / "run", *grpo, *more)) as built:
        reports = [built.step() for _ in range(4)]
    assert ["loss/teacher_kl" in r.metrics for r in reports] == [True, True, False, False]
    assert all(math.isfinite(r.metrics["loss/total"]) for r in reports)


# ------------------------------------------------------------------------------------------ a server


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[str]:
    """A server that answers each path by a function of the body."""

    class Exchange(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = json.dumps(answers[self.path](body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_served_teacher_says_what_a_loaded_one_does(trainer: Trainer, micro: MicroBatch) -> None:
    assert trainer.teacher is not None
    expected = trainer.teacher.logprobs(micro)
    known = {}
    for row, length in enumerate(micro.lengths.tolist()):
        encoded = micro.prompts[int(micro.group[row])].encoded
        ids = micro.token_ids[row, :length].tolist()
        tables = [{str(t): {"logprob": float(x)}} for t, x in zip(ids, expected[row], strict=False)]
        whole = [*encoded.ids, *ids]
        told = [None, *[{"0": {"logprob": -9.0}}] * (len(encoded.ids) - 1), *tables]
        asked = (*encoded.compact_ids, *ids)
        known[asked] = {"prompt_token_ids": whole, "prompt_logprobs": told}
    tokenizer = trainer.policy.tokenizer

    def tokenize(body: dict[str, Any]) -> Any:
        return {"tokens": tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}

    def generate(body: dict[str, Any]) -> Any:
        assert body["sampling_params"]["prompt_logprobs"] == 0 and body["content_parts"]
        return known[tuple(body["token_ids"])]

    answers = {"/tokenize": tokenize, "/inference/v1/generate": generate}
    with serving(answers) as url:
        served = ServedTeacher(url, 20.0, trainer.policy)
        torch.testing.assert_close(served.logprobs(micro), expected, atol=1e-6, rtol=0)
        known.update({key: {**v, "prompt_token_ids": [1, 2]} for key, v in known.items()})
        with pytest.raises(UserError, match="which differ from position"):
            served.logprobs(micro)
        for broken in ({}, {"prompt_token_ids": None}, {"prompt_token_ids": ["a"]}, []):
            answers["/inference/v1/generate"] = lambda body, told=broken: told
            with pytest.raises(UserError, match="gave an answer of another form"):
                served.logprobs(micro)
        answers["/tokenize"] = lambda body: {"tokens": [1, 2, 3]}
        with pytest.raises(UserError, match="another tokenizer than the policy"):
            ServedTeacher(url, 20.0, trainer.policy)
    with pytest.raises(UserError, match="teacher: server"):
        ServedTeacher(url, 1.0, trainer.policy)
