"""Log-probs of completions: the plain forward, one row per completion, towers once per prompt.

Legend: B rows (completions), T completion tokens, L = prompt + completion positions, H hidden, V vocab,
N scored positions.
"""

from __future__ import annotations

from typing import Any

import torch

from vlmrl.models.base import Family
from vlmrl.schema import Encoded, MicroBatch

CHUNK = 4096
"""Rows of logits that exist at one time: bounds memory at CHUNK x V, whatever the batch."""


def completion_logprobs(
    model: Any, family: Family, micro: MicroBatch, temperature: float, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of every completion token and the entropy at its position, both [B, T] float32.

    Values outside `micro.mask` are 0. Entropies carry no gradient. Log-probs are those of the
    distribution at the sampling temperature.
    """
    device = next(model.parameters()).device
    encoded = [prompt.encoded for prompt in micro.prompts]
    rows = micro.group.tolist()
    features = family.spread(family.tower_features(model, encoded), encoded, rows)
    ids, attention, positions, first = _rows(encoded, micro, pad_id)
    hidden = family.decode(
        model, ids.to(device), attention.to(device), positions.to(device), features
    )
    scored, where = micro.mask.nonzero(as_tuple=True)
    picked = hidden[scored.to(device), (first[scored] + where).to(device)]
    targets = micro.token_ids[scored, where].to(device)
    logprob, entropy = head_logprobs(picked, family.head(model), targets, temperature)
    out = torch.zeros(micro.mask.shape, dtype=torch.float32, device=device)
    index = (scored.to(device), where.to(device))
    return out.index_put(index, logprob), out.index_put(index, entropy)


def head_logprobs(
    hidden: torch.Tensor, head: torch.nn.Module, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and the entropy, [N] float32 each, from hidden states [N, H].

    No more than CHUNK x V logits exist at one time; the backward recomputes them.
    """
    if getattr(head, "bias", None) is not None:
        raise ValueError("language-model heads with a bias are not supported")
    weight: torch.Tensor = head.weight  # type: ignore[assignment]
    return _HeadLogProbs.apply(hidden, weight, targets, temperature)


def _rows(
    encoded: list[Encoded], micro: MicroBatch, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Right-padded rows [prompt | completion]: ids and mask [B, L], positions [A, B, L].

    Also, per row, the index whose hidden state predicts the first completion token.
    """
    prompt_lengths = torch.tensor([len(encoded[i].ids) for i in micro.group.tolist()])
    lengths = prompt_lengths + micro.lengths
    rows, longest = len(prompt_lengths), int(lengths.max())
    axes = encoded[0].position_ids.shape[0]
    ids = torch.full((rows, longest), pad_id, dtype=torch.long)
    positions = torch.zeros((axes, rows, longest), dtype=torch.long)
    for row, which in enumerate(micro.group.tolist()):
        prompt, start, end = encoded[which], int(prompt_lengths[row]), int(lengths[row])
        ids[row, :start] = torch.tensor(prompt.ids)
        ids[row, start:end] = micro.token_ids[row, : end - start]
        positions[:, row, :start] = prompt.position_ids
        positions[:, row, start:end] = prompt.next_position + torch.arange(end - start)
    attention = (torch.arange(longest) < lengths[:, None]).long()
    return ids, attention, positions, prompt_lengths - 1


class _HeadLogProbs(torch.autograd.Function):
    """log softmax(h Wᵀ / τ)[target] and the entropy, chunk by chunk, with one dW buffer.

    Checkpointing each chunk instead would make a fresh [V, H] gradient per chunk.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, tau: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, normalisers = [], [], []
        for h, t in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
            logits = (h.to(weight.dtype) @ weight.T).float() / tau
            normaliser = logits.logsumexp(-1)
            logprobs.append(logits.gather(1, t[:, None])[:, 0] - normaliser)
            logits.sub_(normaliser[:, None])
            entropies.append(-(logits.exp() * logits).sum(-1))
            normalisers.append(normaliser)
        ctx.save_for_backward(hidden, weight, targets, torch.cat(normalisers))
        ctx.tau = tau
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, normalisers = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        for start in range(0, len(targets), CHUNK):
            part = slice(start, start + CHUNK)
            h = hidden[part].to(weight.dtype)
            # d logp / d logits = onehot(target) - softmax, over the temperature
            logits = (h @ weight.T).float() / ctx.tau
            grad = logits.sub_(normalisers[part, None]).exp_().neg_()
            grad[torch.arange(len(h), device=h.device), targets[part]] += 1
            grad = (grad * (grads[0][part, None] / ctx.tau)).to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = (grad @ weight).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, h)
        return grad_hidden, grad_weight, None, None
