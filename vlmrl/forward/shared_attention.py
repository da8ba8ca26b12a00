"""Attention over a packed row in which the completions of a group share their prompt.

In a packed row (`shared_layout`) a prompt sees itself, a completion sees its prompt and itself, as
if it stood right behind its prompt alone.

The attention is registered with transformers (`AttentionInterface`, `AttentionMaskInterface`), so
the models' own code runs. Where transformers makes its mask we make a `SharedMask` instead, which
transformers hands to every layer, also when a checkpointed layer runs again in the backward.

Legend: as in `shared_layout`; H query heads, K key heads, D head width; a part of the attention has
n rows, S queries and T keys.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.system import torchvision_shim  # noqa: F401  before transformers

# isort: split
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from vlmrl.forward.shared_layout import Block, Layout, MaskFunction

__all__ = ["install"]

KeysValues = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Of every layer, [1, K, P, D] each."""

BASE = "sdpa"
"""The one attention of transformers that has a shared form; with another, the plain forward runs."""
NAME = "shared_sdpa"


def install(model: Any) -> bool:
    """Let the language model share prompts; False if its attention cannot.

    Outside `sharing` nothing changes: the attention that was configured runs.
    """
    config = model.config.get_text_config()
    able = config._attn_implementation in (BASE, NAME)
    if able and not getattr(config, "attention_dropout", None):
        config._attn_implementation = NAME
        return True
    return False


@contextlib.contextmanager
def sharing(layout: Layout, prompt: KeysValues | None = None) -> Iterator[None]:
    """Inside, the language model reads its one row of tokens as `layout` says.

    With `prompt`, the keys and values of the layout's only prompt, the row leaves the prompt out
    and holds its only completion.
    """
    token = _CURRENT.set((layout, prompt))
    try:
        yield
    finally:
        _CURRENT.reset(token)


# ------------------------------------------------------------------------------------- the masks


@dataclass(frozen=True, slots=True)
class SharedMask:
    """What a layer gets in place of a mask. The three parts are additive float32, or None.

    None stands for causal, in `across` for everything.
    """

    layout: Layout
    prompt: torch.Tensor | None = None
    """[N, 1, P, P]: prompts on themselves."""
    across: torch.Tensor | None = None
    """[N, 1, G * C or 1, P]: completions on their prompt."""
    own: torch.Tensor | None = None
    """[N * G, 1, C, C]: completions on themselves."""
    blind: torch.Tensor | None = None
    """[N, 1, G * C]: tokens that see nothing of their prompt, as with sliding windows."""
    prompt_kv: KeysValues | None = None
    """The row leaves the prompt out; these are its keys and values."""

    @classmethod
    def of(cls, layout: Layout, function: MaskFunction) -> SharedMask:
        """The parts of a mask that transformers made for a prompt with one completion."""
        prompts, completions = layout.prompts, layout.completions
        real = prompts.real[:, None, None, :]
        if function is causal_mask_function:
            return cls(layout, across=None if prompts.full else _additive(real))
        groups, per_group, longest = completions.index.shape
        p, c = prompts.index[:, None], layout.continued()[:, None]
        prompt = function(0, 0, p[..., None], p[..., None, :]) & real
        across = function(0, 0, c[..., None], p[..., None, :]) & real
        own = function(0, 0, c[..., None], c[..., None, :])
        across = across.expand(groups, 1, longest, -1).repeat(1, 1, per_group, 1)
        own = own.expand(groups, 1, longest, longest).repeat_interleave(per_group, 0)
        own = own & completions.real.flatten(0, 1)[:, None, None]
        blind = ~across.any(-1)
        return cls(layout, _additive(prompt), _additive(across), _additive(own), blind)


def _additive(seen: torch.Tensor) -> torch.Tensor:
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)


# --------------------------------------------------------------------------------- the attention


class Cascade(torch.autograd.Function):
    """Attention of a packed row in three parts, merged by their log-sum-exp.

    Prompts on themselves; completions on their prompt; completions on themselves. Of a softmax over
    two sets of keys, lse = log(exp(lse1) + exp(lse2)) and out = sum_i exp(lse_i - lse) out_i. The
    backward of each part takes the merged out and lse, which makes it exact (as in ring attention,
    Liu et al. 2023, arXiv:2310.01889).
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
        """[L, H, D] of query [L, H, D], key and value [L, K, D]."""
        layout = mask.layout
        groups, per_group = layout.completions.index.shape[:2]
        q, k, v = (_heads(layout.prompts.take(x), groups) for x in (query, key, value))
        out, prompt_lse = attend(q, k, v, scale, mask.prompt is None, mask.prompt)
        q, *own = (layout.completions.take(x) for x in (query, key, value))
        across = _across(_heads(q, groups), k, v, mask, scale)
        q, k, v = (_heads(x, groups * per_group) for x in (q, *own))
        alone = attend(q, k, v, scale, mask.own is None, mask.own)
        merged, lse = _merged(*map(_flat, across), *map(_flat, alone))
        packed = layout.put(_flat(out), merged)
        ctx.save_for_backward(query, key, value, packed, prompt_lse, lse)
        ctx.mask, ctx.scale = mask, scale
        return packed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of query, key and value."""
        *inputs, prompt_lse, lse = ctx.saved_tensors
        mask, scale = ctx.mask, ctx.scale
        layout = mask.layout
        groups, per_group = layout.completions.index.shape[:2]

        def part(block: Block) -> list[torch.Tensor]:
            return [block.take_gradient(grads[0]), *(block.take(x) for x in inputs)]

        grad, q, k, v, out = (_heads(x, groups) for x in part(layout.prompts))
        how = scale, mask.prompt is None, mask.prompt
        dq, dk, dv = map(_flat, attend_backward(grad, q, k, v, out, prompt_lse, *how))
        completions = part(layout.completions)
        grad, q, _, _, out = (_heads(x, groups) for x in completions)
        how = scale, False, mask.across
        across = attend_backward(grad, q, k, v, out, _heads(lse, groups), *how)
        grad, q, k, v, out = (_heads(x, groups * per_group) for x in completions)
        how = scale, mask.own is None, mask.own
        own = attend_backward(grad, q, k, v, out, _heads(lse, groups * per_group), *how)

        dq_across, dk_across, dv_across = map(_flat, across)
        dq_own, dk_own, dv_own = map(_flat, own)
        return (
            layout.put(dq, dq_across + dq_own),
            layout.put(dk + dk_across, dk_own),
            layout.put(dv + dv_across, dv_own),
            None,
            None,
        )


class Behind(torch.autograd.Function):
    """Attention of one completion behind a prompt whose keys and values are given, as `Cascade`."""

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
        """[1, H, C, D] of query [1, H, C, D], key and value [1, K, C, D], the prompt's [1, K, P, D]."""
        across = _across(query, prompt_key, prompt_value, mask, scale)
        alone = attend(query, key, value, scale, mask.own is None, mask.own)
        out, lse = _merged(*across, *alone)
        ctx.save_for_backward(query, key, value, prompt_key, prompt_value, out, lse)
        ctx.mask, ctx.scale = mask, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of query, key and value, and of the prompt's key and value."""
        q, k, v, prompt_k, prompt_v, out, lse = ctx.saved_tensors
        mask, scale = ctx.mask, ctx.scale
        how = scale, False, mask.across
        dq_across, *dprompt = attend_backward(grads[0], q, prompt_k, prompt_v, out, lse, *how)
        how = scale, mask.own is None, mask.own
        dq, dk, dv = attend_backward(grads[0], q, k, v, out, lse, *how)
        return (dq + dq_across, dk, dv, *dprompt, None, None)


def _across(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: SharedMask, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Completions on their prompt."""
    out, lse = attend(q, k, v, scale, False, mask.across)
    return out, lse if mask.blind is None else lse.masked_fill(mask.blind, -torch.inf)


def _merged(
    out1: torch.Tensor, lse1: torch.Tensor, out2: torch.Tensor, lse2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two sets of keys from that over each; lse1 may be -inf, lse2 not."""
    weight = (lse1 - lse2).sigmoid()[..., None]
    out = torch.lerp(out2.to(lse2.dtype), out1.to(lse1.dtype), weight).to(out1.dtype)
    return out, torch.logaddexp(lse1, lse2)


def _heads(x: torch.Tensor, rows: int) -> torch.Tensor:
    """[rows * width, heads, ...] -> [rows, heads, width, ...]."""
    return x.unflatten(0, (rows, -1)).transpose(1, 2)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """The way back: [rows, heads, width, ...] -> [rows * width, heads, ...]."""
    return x.transpose(1, 2).flatten(0, 1)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    mask: torch.Tensor | None,
    fused: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [n, H, S, D] on k, v [n, K, T, D]: out like q, log-sum-exp float32 [n, H, S].

    `fused`: PyTorch's flash kernel for the CPU, the default there; elsewhere plain matrix products,
    with S x T scores per head at one time.
    """
    if q.is_cpu if fused is None else fused:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
    scores = _scores(q, k, scale, causal, mask)
    lse = scores.logsumexp(-1).clamp_min(torch.finfo(scores.dtype).min)
    probs = scores.sub_(lse[..., None]).exp_()
    return (_folded(probs.to(v.dtype), v) @ v).view(q.shape), lse


def attend_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    causal: bool,
    mask: torch.Tensor | None,
    fused: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v; `out` and `lse` may be merged ones, of more keys than `k`."""
    if q.is_cpu if fused is None else fused:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
        )
    probs = _scores(q, k, scale, causal, mask).sub_(lse[..., None]).exp_()
    dprobs = (_folded(grad, v) @ v.transpose(-1, -2)).view(probs.shape).float()
    dot = (grad.float() * out.float()).sum(-1, keepdim=True)
    dscores = dprobs.sub_(dot).mul_(probs).mul_(scale).to(q.dtype)
    folded = _folded(dscores, k).transpose(-1, -2)
    dv = _folded(probs.to(v.dtype), v).transpose(-1, -2) @ _folded(grad, v)
    return (_folded(dscores, k) @ k).view(q.shape), folded @ _folded(q, k), dv


def _scores(
    q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool, mask: torch.Tensor | None
) -> torch.Tensor:
    """Scaled and masked scores, float32 [n, H, S, T]."""
    shape = (*q.shape[:3], k.shape[2])
    scores = (_folded(q, k) @ k.transpose(-1, -2)).view(shape).float() * scale
    if causal:
        later = torch.ones(shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(later, -torch.inf)
    return scores if mask is None else scores.add_(mask)


def _folded(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[n, H, S, ...] -> [n, K, H / K * S, ...]: the query heads of a key head are more queries."""
    return x.reshape(len(x), k.shape[1], -1, x.shape[-1])


# --------------------------------------------------------------------------- inside transformers

_CURRENT: ContextVar[tuple[Layout, KeysValues | None] | None] = ContextVar("row", default=None)


def _mask(*, mask_function: MaskFunction, **settings: Any) -> Any:
    """For `AttentionMaskInterface`: inside `sharing` a `SharedMask`, else transformers' own."""
    current = _CURRENT.get()
    if current is None:
        return sdpa_mask(mask_function=mask_function, **settings)
    layout, prompt = current
    return dataclasses.replace(SharedMask.of(layout, mask_function), prompt_kv=prompt)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, Any]:
    """For `AttentionInterface`: shared for a `SharedMask`, else transformers' own."""
    if not isinstance(attention_mask, SharedMask):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **settings
        )
    if odd := [name for name in _UNSUPPORTED if settings.get(name)]:
        raise ValueError(f"the shared forward does not know attention with {odd[0]}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    inputs = [query, key, value]
    if attention_mask.prompt_kv is not None:
        inputs += attention_mask.prompt_kv[module.layer_idx]
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        inputs = [x.to(dtype) for x in inputs]
    if attention_mask.prompt_kv is not None:
        return Behind.apply(*inputs, attention_mask, scale).transpose(1, 2), None
    row = (x[0].transpose(0, 1) for x in inputs)
    return Cascade.apply(*row, attention_mask, scale)[None], None


_UNSUPPORTED = ("dropout", "softcap", "s_aux", "position_bias")

AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
