"""A teacher's log-probs of what the policy wrote: of a model in this process, or of one that is served."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from vlmrl.config import Config, TeacherConfig
from vlmrl.data.prompt import continue_prompt
from vlmrl.engines.vllm_parts.job import request
from vlmrl.engines.vllm_parts.media_parts import lend
from vlmrl.engines.vllm_parts.requests import EngineFault, require_same_prompt
from vlmrl.engines.vllm_parts.server import Server
from vlmrl.errors import UserError
from vlmrl.forward import packing
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import MicroBatch, TrainBatch

__all__ = ["LoadedTeacher", "ServedTeacher", "build_teacher"]

TOKEN = "VLMRL_TEACHER_TOKEN"
AT_A_TIME = 8
"""Completions that a server grades at a time."""
PROBE = "".join(map(chr, range(32, 127))) + " Where is the cat? <think></think> 3.14 naïve 東京"
"""A text whose token ids tell tokenizers apart."""


class Teacher:
    """What grades completions; a subclass defines `logprobs`."""

    def fill(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """Return the batches with the teacher's log-probs in `extra["teacher"]`, [B, T]."""
        return [packing.fill(batch, lambda m: {"teacher": self.logprobs(m)}) for batch in batches]

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """Return the log-prob of every completion token, [B, T] float32 on the CPU; 0 outside the mask."""
        raise TypeError(f"{type(self).__name__} must define logprobs")


class LoadedTeacher(Teacher):
    """A checkpoint in this process, at the temperature of the policy.

    Raises:
        UserError: it has another family or tokenizer than the policy.
    """

    def __init__(self, path: str, policy: Policy) -> None:
        settings = {"path": path, "build": None, "lora": None, "quantization": None}
        loaded = load_model(policy.config.model_copy(update=settings))
        self._policy, self._family = policy, loaded.family
        kinds = [family.model_types[0] for family in (policy.family, loaded.family)]
        if kinds[0] != kinds[1]:
            raise UserError(f"teacher: expected a model of family {kinds[0]!r}, got {kinds[1]!r}")
        _require_vocabulary(policy.tokenizer.get_vocab(), loaded.processor.tokenizer.get_vocab())
        dtype = torch.bfloat16 if policy.config.dtype == "bfloat16" else torch.float32
        self._model = loaded.model.to(policy.device, dtype).eval().requires_grad_(False)

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """Return the model's log-probs by the plain forward."""
        policy = self._policy
        with torch.no_grad():
            found, _ = completion_logprobs(
                self._model, self._family, micro.rerouted, policy.temperature, policy.pad_id
            )
        return found.cpu()


class ServedTeacher(Teacher):
    """A model on a vLLM server, which is asked for its log-probs of prompt and completion as one prompt.

    Raises:
        UserError: the server does not answer, or has another tokenizer than the policy.
    """

    def __init__(self, url: str, timeout_s: float, policy: Policy) -> None:
        self._server = Server(url.rstrip("/"), os.environ.get(TOKEN, ""), timeout_s)
        self._timeout = timeout_s
        ours = policy.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        body = {"prompt": PROBE, "add_special_tokens": False}
        theirs = self._post("/tokenize", body)["tokens"]
        if theirs != list(ours):
            raise UserError(
                f"teacher: {self._server} has another tokenizer than the policy: a text has {len(ours)} "
                f"tokens here and {len(theirs)} there, or others"
            )

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """Return what the server says, at temperature 1, of all completions."""
        found = torch.zeros(micro.mask.shape)
        lengths = micro.lengths.tolist()

        def grade(row: int) -> None:
            if lengths[row]:
                ids = micro.token_ids[row, : lengths[row]].tolist()
                prompt = continue_prompt(micro.prompts[int(micro.group[row])], ids)
                fields = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 1.0}
                with lend(prompt.media, None) as media:
                    reply = self._post("/inference/v1/generate", request(prompt, fields, media))
                require_same_prompt(prompt, reply["prompt_token_ids"])
                told = reply["prompt_logprobs"][-len(ids) :]
                found[row, : len(ids)] = torch.tensor(
                    [table[str(token)]["logprob"] for token, table in zip(ids, told, strict=True)]
                )

        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(grade, range(len(lengths))))
        return torch.where(micro.mask, found, 0.0)

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            return self._server.post(path, body, self._timeout, "teacher")
        except EngineFault as fault:
            raise UserError(str(fault)) from fault


def build_teacher(config: Config, policy: Policy, asked: bool) -> Teacher | None:
    """Return the config's teacher, None if the algorithm does not ask for one.

    Raises:
        UserError: one is asked for and there is none, or the reverse; it does not fit the policy.
    """
    given: TeacherConfig | None = config.teacher
    if asked != (given is not None):
        name = config.algorithm.name
        said = f"algorithm {name!r} needs one: set teacher.path or teacher.url"
        raise UserError(f"teacher: {said if asked else f'algorithm {name!r} does not use it'}")
    if given is None:
        return None
    if given.path is not None:
        return LoadedTeacher(given.path, policy)
    assert given.url is not None
    moments = [config.at(moment).rollout.temperature for moment in config.moments]
    if any(temperature != 1 for temperature in moments):
        raise UserError(
            f"teacher.url: a server grades at temperature 1: expected rollout.temperature 1, got {moments[0]}"
        )
    return ServedTeacher(given.url, given.timeout_s, policy)


def _require_vocabulary(ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    for token in sorted({*ours, *theirs}):
        if ours.get(token) != theirs.get(token):
            raise UserError(
                f"teacher: expected the tokenizer of the policy, got another: token {token!r} is "
                f"{theirs.get(token)} there and {ours.get(token)} here"
            )
