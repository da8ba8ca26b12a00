"""How a language model attends: as transformers does, or as an object in place of its mask says.

The attention is registered with transformers (`AttentionInterface`, `AttentionMaskInterface`), so
the models' own code runs. Where transformers makes its mask we make a `Mask` instead, which
transformers hands to every layer, also when a checkpointed layer runs again in the backward. Such an
object may attend on parts of the keys: `attend` gives each with its log-sum-exp, and `merge` joins them.

Legend: n rows, S queries and T keys; H query heads, K key heads, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from vlmrl.models.cache_sizes import source_of
from vlmrl.system import torchvision_shim  # noqa: F401  before transformers

# isort: split
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], torch.Tensor]
"""Attention of query [B, H, T, D] on key and value [B, K, T, D] by a mask, to [B, T, H, D]."""

MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""A mask function of transformers: (batch, head, query, key) places, broadcast, to bool: seen or not."""

BASE = "sdpa"
"""The only attention of transformers that a mask may replace; models with any other are left alone."""
NAME = "shared_sdpa"


class Mask:
    """What a layer gets in place of a mask: it attends itself."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention [N, S, H, D] of query [N, H, S, D] in this layer.

        `key` and `value` are [N, K, T, D]: what the layer's cache returned, or the row's own without one. A
        layer that attends to those of another comes with the number of that.
        """
        raise TypeError(f"{type(self).__name__} must define attend")

    def recur(
        self, layer: int, run: Callable[..., torch.Tensor], hidden: torch.Tensor
    ) -> torch.Tensor:
        """Return what a layer that holds a state makes of hidden states [N, S, H]; see `delta_net`.

        `run` is the layer's own forward.
        """
        raise TypeError(f"{type(self).__name__} must define recur")


class SlicedMask:
    """What a layer gets that sees a slice of its rows: the mask of the whole rows, and the slice."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Return the attention [B, S, H, D] of query [B, H, S, D] on key and value [B, K, S, D].

        `attend` runs over whole rows.
        """
        raise TypeError(f"{type(self).__name__} must define attend")


def install(model: Any) -> bool:
    """Let masks replace the language model's attention; return False if it does not support it.

    Outside `masked_by` nothing changes: the configured attention runs.
    """
    config = model.config.get_text_config()
    supported = config._attn_implementation in (BASE, NAME)
    if supported and not getattr(config, "attention_dropout", None):
        config._attn_implementation = NAME
        return True
    return False


def installed(model: Any) -> bool:
    """Return whether `install` was called on this model and returned True."""
    return bool(model.config.get_text_config()._attn_implementation == NAME)


@contextlib.contextmanager
def masked_by(make: Callable[[MaskFunction], Mask]) -> Iterator[None]:
    """Give the layers what `make` makes of transformers' mask functions, inside this block."""
    token = _MAKE.set(make)
    try:
        yield
    finally:
        _MAKE.reset(token)


def active_mask() -> Mask | None:
    """Return the mask that `masked_by` makes for causal layers inside its block; None outside."""
    make = _MAKE.get()
    function: Any = causal_mask_function  # stated for single places, made for many
    return None if make is None else make(function)


@contextlib.contextmanager
def sliced_by(make: Callable[[Any], SlicedMask], length: int) -> Iterator[None]:
    """Give the layers what `make` makes of the mask of whole rows of `length` tokens, inside this block.

    That mask is one of `masked_by`, or transformers' own.
    """
    token = _SLICED.set((make, length))
    try:
        yield
    finally:
        _SLICED.reset(token)


def cast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors in the dtype of autocast, where it is on: it does not know our operators."""
    if torch.is_autocast_enabled(tensors[0].device.type):
        dtype = torch.get_autocast_dtype(tensors[0].device.type)
        return tuple(x.to(dtype) for x in tensors)
    return tensors


_MAKE: ContextVar[Callable[[MaskFunction], Mask] | None] = ContextVar("make", default=None)
_SLICED: ContextVar[tuple[Callable[[Any], SlicedMask], int] | None] = ContextVar(
    "sliced", default=None
)


def _make_mask(*, mask_function: MaskFunction, **settings: Any) -> Any:
    """Make a mask of ours where one is to be made, else transformers' own (`AttentionMaskInterface`)."""
    make, sliced = _MAKE.get(), _SLICED.get()
    if sliced is not None:
        settings |= {"q_length": sliced[1], "kv_length": sliced[1]}
    mask = (
        sdpa_mask(mask_function=mask_function, **settings) if make is None else make(mask_function)
    )
    return mask if sliced is None else sliced[0](mask)


def _attend(
    module: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, Any]:
    """Attend as the mask says, also where the layer sees a slice of its rows (`AttentionInterface`)."""

    def attend_rows(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object
    ) -> torch.Tensor:
        return _attend_rows(module, q, k, v, mask, scaling, **settings)

    if isinstance(attention_mask, SlicedMask):
        return attention_mask.attend(query, key, value, attend_rows), None
    if _SLICED.get() is not None:
        raise RuntimeError("a layer that sees a slice of its rows was given no mask of the whole")
    return attend_rows(query, key, value, attention_mask), None


def _attend_rows(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None,
    **settings: Any,
) -> torch.Tensor:
    """Attend as a `Mask` says, else as transformers does."""
    if not isinstance(attention_mask, Mask):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **settings
        )[0]
    if unsupported := [name for name in _UNSUPPORTED if settings.get(name)]:
        raise ValueError(f"shared prompts do not support attention with {unsupported[0]}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = source_of(module.config, module.layer_idx)
    return attention_mask.attend(layer, query, key, value, scale)


_UNSUPPORTED = ("dropout", "softcap", "s_aux", "position_bias")

AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _make_mask)


# ----------------------------------------------------------------------------- parts of the keys


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    mask: torch.Tensor | None,
    fused: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of q [n, H, S, D] on k, v [n, K, T, D] and its log-sum-exp.

    The output has the shape and dtype of q, the log-sum-exp is [n, H, S] float32.

    Args:
        q: queries.
        k: keys.
        v: values.
        scale: factor of the scores.
        causal: whether query s sees only keys up to s.
        mask: additive mask, broadcast to [n, H, S, T].
        fused: use PyTorch's flash kernel for the CPU, the default there. Otherwise plain matrix
            products hold S x T scores per head at a time.
    """
    if q.is_cpu if fused is None else fused:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
    scores = _scores(q, k, scale, causal, mask)
    lse = scores.logsumexp(-1).clamp_min(torch.finfo(scores.dtype).min)
    probs = scores.sub_(lse[..., None]).exp_()
    return (_fold(probs.to(v.dtype), v) @ v).view(q.shape), lse


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
    """Return the gradients of q, k and v; `out` and `lse` may be merged, over more keys than `k`."""
    if q.is_cpu if fused is None else fused:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
        )
    probs = _scores(q, k, scale, causal, mask).sub_(lse[..., None]).exp_()
    dprobs = (_fold(grad, v) @ v.transpose(-1, -2)).view(probs.shape).float()
    dot = (grad.float() * out.float()).sum(-1, keepdim=True)
    dscores = dprobs.sub_(dot).mul_(probs).mul_(scale).to(q.dtype)
    folded = _fold(dscores, k).transpose(-1, -2)
    dv = _fold(probs.to(v.dtype), v).transpose(-1, -2) @ _fold(grad, v)
    return (_fold(dscores, k) @ k).view(q.shape), folded @ _fold(q, k), dv


def merge(
    out1: torch.Tensor, lse1: torch.Tensor, out2: torch.Tensor, lse2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the attention over two sets of keys; lse1 may be -inf, lse2 may not.

    lse = log(exp(lse1) + exp(lse2)) and out = sum_i exp(lse_i - lse) out_i.
    """
    weight = (lse1 - lse2).sigmoid()[..., None]
    out = torch.lerp(out2.to(lse2.dtype), out1.to(lse1.dtype), weight).to(out1.dtype)
    return out, torch.logaddexp(lse1, lse2)


def _scores(
    q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return scaled and masked scores, [n, H, S, T] float32."""
    shape = (*q.shape[:3], k.shape[2])
    scores = (_fold(q, k) @ k.transpose(-1, -2)).view(shape).float() * scale
    if causal:
        later = torch.ones(shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(later, -torch.inf)
    return scores if mask is None else scores.add_(mask)


def _fold(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Reshape [n, H, S, ...] to [n, K, H / K * S, ...]: the query heads of a key head are more queries."""
    return x.reshape(len(x), k.shape[1], -1, x.shape[-1])
