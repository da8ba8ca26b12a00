"""Router replay: the trainer's forward chooses the experts that the engine chose in the rollout.

Source: Ma et al. 2025, "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference
Routers", arXiv:2510.11370 (R3). The choice is the engine's, the weights of the chosen experts are those
that the trainer's own router gives them, and gradient flows through these. Where the choice of a token
is not known, the trainer's router makes it.

Legend: B rows, T tokens, k experts of a token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from vlmrl.models.attention import cast
from vlmrl.models.base import Family
from vlmrl.schema import Experts, MicroBatch
from vlmrl.system import torchvision_shim  # noqa: F401  before transformers

if TYPE_CHECKING:
    from vlmrl.forward.sequence_parallel import Slice, Split
    from vlmrl.forward.shared import SharedLayout


# --------------------------------------------------------------------------------------------------
# Experts under autocast: computed in its dtype, as linear layers are.
#
# transformers' grouped product, which autocast does not know, computes in the dtype of the weights. Where
# these train they are float32, so that most of a mixture of experts would be computed in float32.


# isort: split


BASE = "grouped_mm"
"""The only implementation that is replaced; models with any other are left alone."""
NAME = "autocast_grouped_mm"


def install_experts(model: Any) -> None:
    """Let the experts of a model be computed in the dtype of autocast, where it is on."""
    config = model.config.get_text_config()
    if getattr(config, "_experts_implementation", None) == BASE:
        config._experts_implementation = NAME


class _Cast:
    """A module of experts whose weights are in the dtype of autocast; all else is the module's own."""

    def __init__(self, experts: Any) -> None:
        self._experts = experts
        self.gate_up_proj, self.down_proj = cast(experts.gate_up_proj, experts.down_proj)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._experts, name)


def _compute(
    experts: object, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    return grouped_mm_experts_forward(_Cast(experts), hidden, index, weights)  # type: ignore[arg-type]


ALL_EXPERTS_FUNCTIONS.register(NAME, _compute)


# --------------------------------------------------------------------------------------------------
# Replay the choices of routers that the engine made.


UNKNOWN = -1


def choices_of_rows(micro: MicroBatch, longest: int) -> torch.Tensor | None:
    """Return the choices of the rows [prompt | completion] of `longest` tokens, int16.

    They are [B, T, layers, k], `UNKNOWN` where the trainer chooses; None where it chooses everywhere.
    """
    if not micro.experts:
        return None
    made, of_prompts = _make(micro, len(micro.group), longest), _of_prompts(micro)
    pairs = zip(micro.group.tolist(), micro.experts, micro.lengths.tolist(), strict=True)
    for row, (which, experts, length) in enumerate(pairs):
        start = len(micro.prompts[which].encoded.ids)
        if which in of_prompts:
            _put(made[row], of_prompts[which].prompt, 0, start)
        if experts is not None:
            _put(made[row], experts.written, start, start + length)
    return made


def choices_of_packed(micro: MicroBatch, layout: SharedLayout) -> torch.Tensor | None:
    """Return the choices [1, T, layers, k] of a packed row, see `choices_of_rows`."""
    if not micro.experts:
        return None
    made = _make(micro, 1, layout.length)
    for which, experts in _of_prompts(micro).items():
        end = int(layout.prompt_end[which])
        _put(made[0], experts.prompt, end - len(micro.prompts[which].encoded.ids), end)
    lengths = (micro.lengths - 1).clamp(min=0).tolist()
    for row, of_row in enumerate(micro.experts):
        if of_row is not None:
            start = int(layout.row_start[row])
            _put(made[0], of_row.written, start, start + lengths[row])
    return made


def _of_prompts(micro: MicroBatch) -> dict[int, Experts]:
    """Return for each prompt the choices by which all of its rows see it: those of the first row."""
    by_prompt: dict[int, Experts] = {}
    for which, experts in zip(micro.group.tolist(), micro.experts, strict=True):
        if experts is not None:
            by_prompt.setdefault(which, experts)
    return by_prompt


def _make(micro: MicroBatch, rows: int, tokens: int) -> torch.Tensor:
    some = next(experts for experts in micro.experts if experts is not None)
    return torch.full((rows, tokens, *some.prompt.shape[1:]), UNKNOWN, dtype=torch.int16)


def _put(row: torch.Tensor, choices: np.ndarray, start: int, end: int) -> None:
    """Write what was found of the first tokens of `row[start:end]`."""
    room = min(end, len(row)) - start
    some = choices[: max(0, room)]
    numbers = np.where(some == np.iinfo(choices.dtype).max, UNKNOWN, some.astype(np.int16))
    row[start : start + len(some)] = torch.from_numpy(numbers)


@contextlib.contextmanager
def replaying(model: Any, family: Family, choices: torch.Tensor | None) -> Iterator[None]:
    """Let the routers choose these experts [B, T, layers, k] for the tokens [B, T] inside this block.

    None: they make their own choice.
    """
    if choices is None:
        yield
        return
    here = choices.to(next(model.parameters()).device)
    pairs = zip(family.routers(model).values(), here.unbind(2), strict=True)
    hooks = [
        router.register_forward_hook(partial(_choose, family, of_layer.flatten(0, 1)))
        for router, of_layer in pairs
    ]
    token = _ACTIVE.set(partial(replaying, model, family, here))
    try:
        yield
    finally:
        _ACTIVE.reset(token)
        for hook in hooks:
            hook.remove()


def decode(
    split: Split | None,
    model: object,
    family: Family,
    choices: torch.Tensor | None,
    ids: torch.Tensor,
    *inputs: Any,
) -> tuple[torch.Tensor, Slice | None]:
    """Return the hidden states that `family.decode` finds for ids [B, T], and the slice that they are.

    They are [B, S, H] of this rank's slice, or without `split` [B, T, H] and None. `choices`
    [B, T, layers, k] are experts, see `replaying`.
    """
    with contextlib.ExitStack() as stack:
        own = None
        if split is not None:
            own = stack.enter_context(split.over(model, family, ids.shape[1]))
            choices = None if choices is None else own.cut(choices, 1)
        stack.enter_context(replaying(model, family, choices))
        return family.decode(model, ids, *inputs), own


def again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return what a checkpointed layer runs in, now and again in the backward (`context_fn` of torch)."""
    active = _ACTIVE.get()
    return contextlib.nullcontext(), contextlib.nullcontext() if active is None else active()


_ACTIVE: ContextVar[Callable[[], AbstractContextManager[None]] | None] = ContextVar(
    "active", default=None
)


def _choose(
    family: Family,
    choices: torch.Tensor,
    router: object,
    _: object,
    output: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor, ...]:
    """Replace what a router returns for N tokens by these choices [N, k] and their weights."""
    logits, _, own = output
    replayed = choices.to(own.dtype)
    experts = torch.where(replayed == UNKNOWN, own, replayed)
    return logits, family.weigh(router, logits, experts), experts
