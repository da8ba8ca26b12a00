"""Attention over a packed row in which the completions of a group share their prompt.

In a packed row (`shared_layout`) a prompt sees itself, and a completion sees its prompt and itself,
as if it alone followed the prompt.

`attention.dispatch` hands a `SharedMask` to every layer, which attends by it.

Legend: as in `shared_layout`; H query heads, K key heads, D head width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from vlmrl.system import torchvision_shim  # noqa: F401  before transformers

# isort: split
from transformers.masking_utils import causal_mask_function

from vlmrl.attention.dispatch import Mask, MaskFunction, cast, masked_by
from vlmrl.attention.parts import attend, attend_backward, merge
from vlmrl.forward.shared_layout import Block, SharedLayout

__all__ = ["SharedMask", "sharing"]

KeysValues = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Keys and values of every layer, [1, K, P, D] each."""


def sharing(layout: SharedLayout, prompt: KeysValues | None = None) -> AbstractContextManager[None]:
    """Make the language model read its one row of tokens as `layout` says inside this block.

    With `prompt`, the keys and values of the layout's only prompt, the row holds only the
    completion that follows it.
    """
    return masked_by(lambda function: replace(SharedMask.of(layout, function), prompt_kv=prompt))


# ------------------------------------------------------------------------------------- the masks


@dataclass(frozen=True, slots=True)
class SharedMask(Mask):
    """The object that a layer gets in place of a mask; its three parts are additive float32 or None.

    None means causal, and in `across` that everything is seen.
    """

    layout: SharedLayout
    prompt: torch.Tensor | None = None
    """[N, 1, P, P]: prompts attend to themselves."""
    across: torch.Tensor | None = None
    """[N, 1, G * C or 1, P]: completions attend to their prompt."""
    own: torch.Tensor | None = None
    """[N * G, 1, C, C]: completions attend to themselves."""
    blind: torch.Tensor | None = None
    """[N, 1, G * C]: tokens that see nothing of their prompt, as with sliding windows."""
    prompt_kv: KeysValues | None = None
    """Keys and values of the prompt where the row leaves it out."""

    @classmethod
    def of(cls, layout: SharedLayout, function: MaskFunction) -> SharedMask:
        """Return the parts of a mask that transformers made for a prompt with one completion."""
        prompts, completions = layout.prompts, layout.completions
        real = prompts.real[:, None, None, :]
        if function is causal_mask_function:
            return cls(layout, across=None if prompts.full else _make_additive(real))
        groups, per_group, longest = completions.index.shape
        p, c = prompts.index[:, None], layout.continued()[:, None]
        prompt = function(0, 0, p[..., None], p[..., None, :]) & real
        across = function(0, 0, c[..., None], p[..., None, :]) & real
        across = across.expand(groups, 1, longest, -1).repeat(1, 1, per_group, 1)
        # At each completion's own places: a function may look up what kind of token is there.
        c = completions.index.flatten(0, 1)[:, None]
        own = function(0, 0, c[..., None], c[..., None, :])
        own = own & completions.real.flatten(0, 1)[:, None, None]
        blind = ~across.any(-1)
        return cls(
            layout, _make_additive(prompt), _make_additive(across), _make_additive(own), blind
        )

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention [1, S, H, D] of a packed row, or of one completion after `prompt_kv`."""
        inputs = [query, key, value]
        if self.prompt_kv is not None:
            inputs += self.prompt_kv[layer]
            return AfterPrompt.apply(*cast(*inputs), self, scale).transpose(1, 2)
        row = (x[0].transpose(0, 1) for x in cast(*inputs))
        return Cascade.apply(*row, self, scale)[None]


def _make_additive(seen: torch.Tensor) -> torch.Tensor:
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)


# --------------------------------------------------------------------------------- the attention


class Cascade(torch.autograd.Function):
    """Attention of a packed row in three parts, merged by their log-sum-exp.

    Prompts attend to themselves, completions to their prompt, and completions to themselves. For a
    softmax over two sets of keys, lse = log(exp(lse1) + exp(lse2)) and
    out = sum_i exp(lse_i - lse) out_i. The backward of each part takes the merged out and lse,
    which makes it exact (as in ring attention, Liu et al. 2023, arXiv:2310.01889).
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: SharedMask,
        scale: float,
    ) -> torch.Tensor:
        """Return the attention [L, H, D] of query [L, H, D] on key and value [L, K, D]."""
        layout = mask.layout
        groups, per_group = layout.completions.index.shape[:2]
        q, k, v = (_split_heads(layout.prompts.take(x), groups) for x in (query, key, value))
        out, prompt_lse = attend(q, k, v, scale, mask.prompt is None, mask.prompt)
        q, *own = (layout.completions.take(x) for x in (query, key, value))
        across = _attend_prompt(_split_heads(q, groups), k, v, mask, scale)
        q, k, v = (_split_heads(x, groups * per_group) for x in (q, *own))
        alone = attend(q, k, v, scale, mask.own is None, mask.own)
        merged, lse = merge(*map(_join_heads, across), *map(_join_heads, alone))
        packed = layout.put(_join_heads(out), merged)
        ctx.save_for_backward(query, key, value, packed, prompt_lse, lse)
        ctx.mask, ctx.scale = mask, scale
        return packed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key and value."""
        *inputs, prompt_lse, lse = ctx.saved_tensors
        mask, scale = ctx.mask, ctx.scale
        layout = mask.layout
        groups, per_group = layout.completions.index.shape[:2]

        def part(block: Block) -> list[torch.Tensor]:
            return [block.take_gradient(grads[0]), *(block.take(x) for x in inputs)]

        grad, q, k, v, out = (_split_heads(x, groups) for x in part(layout.prompts))
        how = scale, mask.prompt is None, mask.prompt
        dq, dk, dv = map(_join_heads, attend_backward(grad, q, k, v, out, prompt_lse, *how))
        completions = part(layout.completions)
        grad, q, _, _, out = (_split_heads(x, groups) for x in completions)
        how = scale, False, mask.across
        across = attend_backward(grad, q, k, v, out, _split_heads(lse, groups), *how)
        grad, q, k, v, out = (_split_heads(x, groups * per_group) for x in completions)
        how = scale, mask.own is None, mask.own
        own = attend_backward(grad, q, k, v, out, _split_heads(lse, groups * per_group), *how)

        dq_across, dk_across, dv_across = map(_join_heads, across)
        dq_own, dk_own, dv_own = map(_join_heads, own)
        return (
            layout.put(dq, dq_across + dq_own),
            layout.put(dk + dk_across, dk_own),
            layout.put(dv + dv_across, dv_own),
            None,
            None,
        )


class AfterPrompt(torch.autograd.Function):
    """Attention, as in `Cascade`, of one completion after a prompt whose keys and values are given."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        prompt_key: torch.Tensor,
        prompt_value: torch.Tensor,
        mask: SharedMask,
        scale: float,
    ) -> torch.Tensor:
        """Return the attention [1, H, C, D] of query [1, H, C, D].

        `key` and `value` are [1, K, C, D], those of the prompt [1, K, P, D].
        """
        across = _attend_prompt(query, prompt_key, prompt_value, mask, scale)
        alone = attend(query, key, value, scale, mask.own is None, mask.own)
        out, lse = merge(*across, *alone)
        ctx.save_for_backward(query, key, value, prompt_key, prompt_value, out, lse)
        ctx.mask, ctx.scale = mask, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key and value, and of the prompt's key and value."""
        q, k, v, prompt_k, prompt_v, out, lse = ctx.saved_tensors
        mask, scale = ctx.mask, ctx.scale
        how = scale, False, mask.across
        dq_across, *dprompt = attend_backward(grads[0], q, prompt_k, prompt_v, out, lse, *how)
        how = scale, mask.own is None, mask.own
        dq, dk, dv = attend_backward(grads[0], q, k, v, out, lse, *how)
        return (dq + dq_across, dk, dv, *dprompt, None, None)


def _attend_prompt(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: SharedMask, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of completions on their prompt, and its log-sum-exp."""
    out, lse = attend(q, k, v, scale, False, mask.across)
    return out, lse if mask.blind is None else lse.masked_fill(mask.blind, -torch.inf)


def _split_heads(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Reshape [rows * width, heads, ...] to [rows, heads, width, ...]."""
    return x.unflatten(0, (rows, -1)).transpose(1, 2)


def _join_heads(x: torch.Tensor) -> torch.Tensor:
    """Invert `_split_heads`: [rows, heads, width, ...] to [rows * width, heads, ...]."""
    return x.transpose(1, 2).flatten(0, 1)
