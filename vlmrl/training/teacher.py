"""A teacher's log-probs of what the policy wrote: of a model in this process, or of one that is served.

What is no log-prob, or not of the very tokens that the policy saw and wrote, ends the run with one line:
nothing is trained on it, and the last checkpoint continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from vlmrl.config import Config, ModelConfig, TeacherConfig
from vlmrl.config.named_models import checkpoint_of
from vlmrl.data.prompt import continue_prompt
from vlmrl.engines.vllm_parts.requests import EngineFault, lend, request, require_same_prompt
from vlmrl.engines.vllm_parts.server import Server
from vlmrl.errors import UserError
from vlmrl.forward import packing
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.models.loading import Loaded, load_model
from vlmrl.plugins import nearest
from vlmrl.policy import trainable
from vlmrl.policy.policy import Policy
from vlmrl.schema import MicroBatch, TrainBatch

TOKEN = "VLMRL_TEACHER_TOKEN"
AT_A_TIME = 8
"""Completions that a server grades at a time."""
PROBE = "".join(map(chr, range(32, 127))) + " Where is the cat? <think></think> 3.14 naïve 東京"
"""A text whose token ids tell tokenizers apart."""
ROUNDING = 1e-3
"""A log-prob may be above 0 by this."""


class Teacher:
    """What grades completions; a subclass defines `logprobs`."""

    def fill(self, batches: Sequence[TrainBatch]) -> list[TrainBatch]:
        """Return the batches with the teacher's log-probs in `extra["teacher"]`, [B, T].

        Raises:
            UserError: one of them is not finite or above 0, or a server does not answer.
        """
        return [packing.fill(batch, lambda m: {"teacher": self._grade(m)}) for batch in batches]

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """Return the log-prob of every completion token, [B, T] float32 on the CPU; 0 outside the mask."""
        raise TypeError(f"{type(self).__name__} must define logprobs")

    def _grade(self, micro: MicroBatch) -> torch.Tensor:
        logprobs = self.logprobs(micro)
        for row, token in (~(logprobs.isfinite() & (logprobs <= ROUNDING))).nonzero().tolist():
            sample = micro.prompts[int(micro.group[row])].sample
            raise UserError(
                f"teacher: the log-prob of token {token} of a completion of sample {sample.id!r} is "
                f"{logprobs[row, token]:g}: expected a finite number of at most 0"
            )
        return logprobs


class LoadedTeacher(Teacher):
    """A checkpoint in this process, at the temperature of the policy.

    Raises:
        UserError: it has another family, tokenizer or chat template than the policy.
    """

    def __init__(self, path: str, policy: Policy, quantization: str | None = None) -> None:
        chosen: dict[str, Any] = {"path": path, "build": None, "lora": None, "quantization": None}
        settings: ModelConfig = policy.config.model_copy(update={**chosen, "freeze": []})
        loaded = load_model(settings)
        self._policy, self._family = policy, loaded.family
        _require_same_language(policy, loaded)
        dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
        model = loaded.model.to(dtype)
        if quantization:
            trainable.quantize(model, loaded.family, settings)
        self._model = model.to(policy.device).eval().requires_grad_(False)

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """Return the model's log-probs by the plain forward."""
        temperature, pad_id = self._policy.temperature, self._policy.pad_id
        with torch.no_grad():
            parts = (self._model, self._family, micro.rerouted, temperature, pad_id)
            return completion_logprobs(*parts)[0].cpu()


class ServedTeacher(Teacher):
    """A model on a server, which is asked for its log-probs of prompt and completion as one prompt.

    Raises:
        UserError: the server does not answer, or has another tokenizer than the policy.
    """

    def __init__(self, url: str, timeout_s: float, policy: Policy, token: str = "") -> None:
        self._server = Server(url.rstrip("/"), token, timeout_s)
        self._policy = policy
        self._timeout = timeout_s
        probe = PROBE + "".join((*policy.family.turn_ends, *policy.family.media_tokens))
        ours = policy.tokenizer(probe, add_special_tokens=False)["input_ids"]
        reply = self._post("/tokenize", {"prompt": probe, "add_special_tokens": False})
        theirs = self._read(reply, lambda: [int(token) for token in reply["tokens"]])
        if theirs != list(ours):
            raise UserError(
                f"teacher: {self._server} has another tokenizer than the policy: a text has {len(ours)} "
                f"tokens here and {len(theirs)} there, or others"
            )

    def logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """Return what the server says, at temperature 1, of all completions."""
        logprobs = torch.zeros(micro.mask.shape)
        lengths = micro.lengths.tolist()

        def grade(row: int) -> None:
            if lengths[row]:
                logprobs[row, : lengths[row]] = self._grade_row(micro, row, lengths[row])

        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(grade, range(len(lengths))))
        return torch.where(micro.mask, logprobs, 0.0)

    def _grade_row(self, micro: MicroBatch, row: int, length: int) -> torch.Tensor:
        """Return the log-probs of the first `length` tokens behind the prompt of a row."""
        prompt = micro.prompts[int(micro.group[row])]
        suffix = micro.suffixes[row] if micro.suffixes else None
        if suffix is not None and suffix.encoded.tensors:
            raise UserError(
                f"teacher.url: sample {prompt.sample.id!r} was shown media between its turns, which a "
                "server cannot be shown again: use teacher.path"
            )
        ids = micro.token_ids[row, :length].tolist()
        prompt = self._policy.family.served(self._policy.processor, continue_prompt(prompt, ids))
        fields = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 1.0}
        with lend(prompt.media, None) as media:
            reply = self._post("/inference/v1/generate", request(prompt, fields, media))
        seen = self._read(reply, lambda: [int(token) for token in reply["prompt_token_ids"]])
        require_same_prompt(prompt, seen)

        def read() -> torch.Tensor:
            tables = zip(ids, reply["prompt_logprobs"][-length:], strict=True)
            return torch.tensor([float(table[str(token)]["logprob"]) for token, table in tables])

        return self._read(reply, read)

    def _read(self, reply: object, read: Any) -> Any:
        try:
            return read()
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise UserError(
                f"teacher: {self._server} gave an answer of another form ({problem}): {reply!r:.80}"
            ) from error

    def _post(self, path: str, body: Mapping[str, object]) -> Any:
        try:
            return self._server.post(path, body, self._timeout, "teacher")
        except EngineFault as fault:
            raise UserError(str(fault)) from fault


def build_teacher(config: Config, policy: Policy, asked: bool) -> Teacher | None:
    """Return the config's teacher, None if the algorithm does not ask for one.

    Raises:
        UserError: one is asked for and there is none, or the reverse; it does not fit the policy.
    """
    teacher = config.teacher
    if asked != (teacher is not None):
        name = config.algorithm.name
        missing = f"algorithm {name!r} needs one: set teacher.path, teacher.url or teacher.model"
        unused = f"algorithm {name!r} does not use it: set its option teacher_kl"
        raise UserError(f"teacher: {missing if asked else unused}")
    if teacher is None:
        return None
    path, url, token, timeout = _place(config, teacher)
    if path:
        return LoadedTeacher(path, policy, teacher.quantization)
    moments = [config.at(moment).rollout.temperature for moment in config.moments]
    if any(temperature != 1 for temperature in moments):
        raise UserError(
            f"teacher.url: a server grades at temperature 1: expected rollout.temperature 1, got {moments[0]}"
        )
    return ServedTeacher(url, timeout, policy, token)


def _place(config: Config, teacher: TeacherConfig) -> tuple[str, str, str, float]:
    """Return the path of a teacher's checkpoint, or the address, token and time limit of its server."""
    if teacher.model is None:
        return teacher.path or "", teacher.url or "", os.environ.get(TOKEN, ""), teacher.timeout_s
    if teacher.model not in config.models:
        raise UserError(
            f"teacher.model: expected one of models, got {teacher.model!r}"
            f"{nearest(teacher.model, sorted(config.models))}"
        )
    named = config.models[teacher.model]
    try:
        if path := checkpoint_of(teacher.model, named, config.model.path):
            return path, "", "", named.timeout_s
    except ValueError as error:
        raise UserError(f"teacher.model: {error}") from error
    # The address of OpenAI's API ends so; log-probs of prompts are beside that.
    url = named.url.rstrip("/").removesuffix("/v1")
    return "", url, os.environ.get(named.key_env, ""), named.timeout_s


def _require_same_language(policy: Policy, loaded: Loaded) -> None:
    """Refuse a model that reads other tokens than the policy, or was taught other marks of a turn.

    Raises:
        UserError: names the first difference.
    """
    kinds = [family.model_types[0] for family in (policy.family, loaded.family)]
    if kinds[0] != kinds[1]:
        raise UserError(f"teacher: expected a model of family {kinds[0]!r}, got {kinds[1]!r}")
    ours, theirs = policy.tokenizer.get_vocab(), loaded.processor.tokenizer.get_vocab()
    for token in sorted({*ours, *theirs}):
        if ours.get(token) != theirs.get(token):
            raise UserError(
                f"teacher: expected the tokenizer of the policy, got another: token {token!r} is "
                f"{theirs.get(token)} there and {ours.get(token)} here"
            )
    pairs = [(policy.family, policy.processor), (loaded.family, loaded.processor)]
    ends = [family.stop_token_ids(processor) for family, processor in pairs]
    if ends[0] != ends[1]:
        raise UserError(
            f"teacher: expected the policy's ends of a completion, tokens {ends[0]}, got {ends[1]}"
        )
    marks = [getattr(processor, "chat_template", None) for _, processor in pairs]
    if marks[0] != marks[1]:
        raise UserError("teacher: expected the chat template of the policy, got another")
