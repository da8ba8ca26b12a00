"""Attention on one part of the keys, with its log-sum-exp, so that parts can be merged.

Legend: n rows, S queries and T keys; H query heads, K key heads, D head width.
"""

from __future__ import annotations

import torch

__all__ = ["attend", "attend_backward", "merge"]


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
