"""The experts that engines choose, recorded while they generate, for `model.router_replay`.

Legend: P prompts, L tokens of the longest, N tokens of a forward, k experts of a token.
"""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from vlmrl.engines.base import ServedPolicy
from vlmrl.errors import UserError
from vlmrl.schema import Experts
from vlmrl.schema.rollouts import expert_dtype


def routers_of(policy: ServedPolicy) -> dict[int, Any]:
    """Return the policy's routers, by layer, if its config replays their choices; else nothing."""
    if not policy.config.router_replay:
        return {}
    routers: dict[int, Any] = policy.family.routers(policy.base)
    return routers


# --------------------------------------------------------------------------- the trainer's own model


class Recorder:
    """What the routers of the policy chose in a prefill and in the decoding steps that follow it."""

    def __init__(self, num_layers: int, num_experts: int) -> None:
        self.layers: list[list[torch.Tensor]] = [[] for _ in range(num_layers)]
        """Of each layer [N, k] of the forwards since the last look."""
        self._dtype = expert_dtype(num_experts)
        self._prompts: list[np.ndarray] = []
        self._written: list[list[np.ndarray]] = []

    def prefilled(self, mask: torch.Tensor, num_rows: int) -> None:
        """Note a prefill of left-padded prompts, `mask` [P, L], that get `num_rows` rows each."""
        if not self.layers:
            return
        seen = mask.cpu().numpy().astype(bool)
        choices = self._take()
        choices = choices.reshape(*seen.shape, *choices.shape[1:])
        self._prompts = [of_prompt[own] for of_prompt, own in zip(choices, seen, strict=True)]
        self._written = [[] for _ in range(len(seen) * num_rows)]

    def decoded(self, rows: torch.Tensor) -> None:
        """Note a step that read one token of each of these rows."""
        if self.layers:
            for row, choices in zip(rows.tolist(), self._take(), strict=True):
                self._written[row].append(choices)

    def of(self, row: int, num_tokens: int) -> Experts | None:
        """Return the choices for a row of `num_tokens` tokens; the last one was not read."""
        if not self.layers:
            return None
        prompt = self._prompts[row * len(self._prompts) // len(self._written)]
        written = self._written[row][: num_tokens - 1]
        return Experts(prompt, np.stack(written) if written else prompt[:0])

    def _take(self) -> np.ndarray:
        """Return [N, layers, k] of the one forward since the last look."""
        choices = torch.stack([layer for (layer,) in self.layers], 1)
        for layer in self.layers:
            layer.clear()
        return choices.cpu().numpy().astype(self._dtype)


@contextlib.contextmanager
def watching(policy: ServedPolicy) -> Iterator[Recorder]:
    """Record inside what the policy's routers choose, if its config replays it."""
    routers = routers_of(policy)
    made = Recorder(len(routers), max((r.num_experts for r in routers.values()), default=0))
    hooks = [
        router.register_forward_hook(partial(_note, choices))
        for router, choices in zip(routers.values(), made.layers, strict=True)
    ]
    try:
        yield made
    finally:
        for hook in hooks:
            hook.remove()


def _note(
    choices: list[torch.Tensor], _: object, __: object, output: tuple[torch.Tensor, ...]
) -> None:
    choices.append(output[2])


# ------------------------------------------------------------------------------------------- vLLM


class StepRecorder:
    """What vLLM's routers choose, step by step, on a CPU: its own recorder works on GPUs only.

    `install` it in a worker. What vLLM takes from its prefix cache it does not compute: whoever wrote
    the prefix has the choices.
    """

    def __init__(self, layers: Sequence[int], num_experts: int) -> None:
        self._layers, self._dtype = layers, expert_dtype(num_experts)
        self._step: dict[int, torch.Tensor] = {}
        self._found: dict[str, list[tuple[int, np.ndarray]]] = {}
        """By request: where each stretch begins, and [N, layers, k] of it."""

    def install(self, worker: Any) -> None:
        """Watch the routers and the steps of this worker of vLLM from now on."""
        from vllm.model_executor.layers.fused_moe.layer import MoERunner

        runner = worker.model_runner
        for module in runner.get_model().modules():
            if isinstance(module, MoERunner):
                module.router.set_capture_fn(partial(self._step.__setitem__, module.layer_id))
        execute = runner.execute_model

        def watched(scheduled: Any, *args: Any, **given: Any) -> Any:
            self._step.clear()
            out = execute(scheduled, *args, **given)
            if scheduled.total_num_scheduled_tokens:
                self._note(runner.input_batch.req_ids, scheduled)
            return out

        runner.execute_model = watched

    def _note(self, requests: Sequence[str], scheduled: Any) -> None:
        """Note a step, whose tokens are those of these requests in order."""
        begins = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        cached = scheduled.scheduled_cached_reqs
        begins |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        step = torch.stack([self._step[layer] for layer in self._layers], 1)
        choices, at = step.cpu().numpy().astype(self._dtype), 0
        for request in requests:
            count = scheduled.num_scheduled_tokens[request]
            stretch = (begins[request], choices[at : at + count])
            self._found.setdefault(request, []).append(stretch)
            at += count

    def take(self, request: str, num_tokens: int) -> np.ndarray:
        """Return [num_tokens, layers, k] of a request that is done, and forget it."""
        stretches = self._found.pop(request)
        shape = (num_tokens, *stretches[0][1].shape[1:])
        made = np.full(shape, np.iinfo(self._dtype).max, self._dtype)
        for begin, stretch in stretches:
            made[begin : begin + len(stretch)] = stretch[: max(0, num_tokens - begin)]
        return made

    def clear(self) -> None:
        """Forget all requests."""
        self._found.clear()


def join_group(known: Sequence[np.ndarray], num_prompt_tokens: int) -> list[Experts]:
    """Return the choices of a group's completions from what is known of each, prompt included.

    Of the prompt all have what the first knows, and what it does not know from the next that does.
    """
    prompt = known[0][:num_prompt_tokens].copy()
    for other in known[1:]:
        unknown = prompt == np.iinfo(prompt.dtype).max
        prompt[unknown] = other[:num_prompt_tokens][unknown]
    return [Experts(prompt, choices[num_prompt_tokens:].copy()) for choices in known]


def select_layers(routers: Mapping[int, Any], known: np.ndarray, num_tokens: int) -> np.ndarray:
    """Return [N, layers, k] of the layers that have experts, of what vLLM tells of all layers.

    Raises:
        ValueError: it is not what `num_tokens` tokens of this model have.
    """
    last, some = max(routers), next(iter(routers.values()))
    if known.ndim != 3 or known.shape[::2] != (num_tokens, some.top_k) or known.shape[1] <= last:
        raise ValueError(
            f"experts: expected {num_tokens} tokens, more than {last} layers and {some.top_k} of each, "
            f"got {known.shape}"
        )
    return known[:, list(routers)].astype(expert_dtype(some.num_experts))


def read_routes(
    routers: Mapping[int, Any], num_prompt_tokens: int, choices: Sequence[Mapping[str, Any]]
) -> Sequence[Experts | None]:
    """Return the choices of a group, of a server's answer; None each where there are no routers.

    Raises:
        UserError: the server does not tell them.
        ValueError: they cannot be read.
    """
    if not routers:
        return [None] * len(choices)
    stored = []
    for choice in choices:
        if choice.get("routed_experts") is None:
            raise UserError(
                "model.router_replay: the server does not tell which experts it chose; start it with "
                "--enable-return-routed-experts"
            )
        packed = io.BytesIO(base64.b64decode(choice["routed_experts"]))
        num_tokens = num_prompt_tokens + len(choice["token_ids"]) - 1
        stored.append(select_layers(routers, np.load(packed, allow_pickle=False), num_tokens))
    return join_group(stored, num_prompt_tokens)
