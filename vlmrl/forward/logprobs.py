"""Log-probs of completions: the choice of a forward, and the plain forward.

The plain forward has one row per completion, the shared one (`shared_forward`) computes a group's
prompt once. Both run the towers once per prompt and give the same numbers.

Legend: B rows (completions), T completion tokens, L = prompt + completion positions, H hidden,
V vocab, N scored positions.
"""

from __future__ import annotations

import contextlib
import logging
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from vlmrl.forward.experts import choices_of_rows, decode
from vlmrl.forward.packing import rows_of
from vlmrl.forward.shared import shared_hidden
from vlmrl.models.attention import cast
from vlmrl.models.base import Family
from vlmrl.models.capped_head import cap_logits
from vlmrl.models.value_head import TrainedHead, head_of
from vlmrl.schema import Encoded, MicroBatch

if TYPE_CHECKING:
    from vlmrl.forward.sequence_parallel import Split

log = logging.getLogger("vlmrl")

TOLERANCE = {"float32": (1e-4, 1e-3), "bfloat16": (0.05, 0.1)}
"""How far the shared forward may be off in log-probs and gradient; rounding is far below it."""

ROWS = 2**14
"""Rows of a head's gradient that are in a smaller dtype at a time."""
CHUNK = 4096
"""Rows of logits that exist at a time; this bounds memory at CHUNK x V for any batch."""


def completion_logprobs(
    model: object,
    family: Family,
    micro: MicroBatch,
    temperature: float,
    pad_id: int,
    shared: bool = False,
    split: Split | None = None,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-prob of every completion token and the entropy there, both [B, T] float32.

    Values outside `micro.mask` are 0. Entropies carry a gradient only with `entropy_gradient`. The
    distribution is the one at the sampling temperature. `shared` computes every prompt once. The ranks of
    a `split` compute a slice of the tokens each and get all of them; all call with the same micro-batch.

    A model with a head of its own gives its numbers instead, of the states before each token, and
    entropies of 0.
    """
    if shared:
        hidden, own = shared_hidden(model, family, micro, split)
    else:
        hidden, own = _plain_hidden(model, family, micro, pad_id, split)
    head = head_of(model) or family.head(model)
    sums = scored_logprobs(hidden, head, micro, temperature, own, entropy_gradient)
    return sums if split is None else (split.sum(sums[0]), split.sum(sums[1]))


def scored_logprobs(
    hidden: torch.Tensor,
    head: torch.nn.Module,
    micro: MicroBatch,
    temperature: float,
    own: torch.Tensor | None = None,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do as `completion_logprobs` from the hidden states [N, H] that predict the scored tokens.

    With `own`, bool, they are those of only these scored tokens; the others' values are 0.
    """
    device = hidden.device
    targets = micro.token_ids[micro.mask].to(device)
    index = micro.mask.to(device).nonzero(as_tuple=True)
    if own is not None:
        here = own.to(device)
        targets, index = targets[here], (index[0][here], index[1][here])
    if isinstance(head, TrainedHead):
        logprob = head(hidden)
        entropy = torch.zeros_like(logprob)
    else:
        logprob, entropy = head_logprobs(hidden, head, targets, temperature, entropy_gradient)
    out = torch.zeros(micro.mask.shape, dtype=torch.float32, device=device)
    return out.index_put(index, logprob), out.index_put(index, entropy)


# ------------------------------------------------------------------------------------ the choice


@dataclass
class Sharing:
    """The choice of the micro-batches that take the shared forward."""

    setting: Literal["auto", "on", "low_memory", "off"]
    """`auto`: where it pays. `on`: always. `low_memory`: never, see `low_memory.py`. `off`: never."""
    threshold: float
    """The shared forward pays when the plain one has at least this many times its tokens."""
    possible: bool
    """The family and its attention support sharing."""
    verified: bool | None = None
    """True if both forwards agreed on the first micro-batch; None before it was compared."""

    def pays(self, micro: MicroBatch) -> bool:
        """Return whether the setting and the number of tokens speak for the shared forward."""
        return self.pays_at(saving(micro))

    def pays_at(self, ratio: float) -> bool:
        """Return as `pays` does, given the plain tokens for each shared one."""
        if self.setting in ("off", "low_memory") or not self.possible or self.verified is False:
            return False
        return self.setting == "on" or ratio >= self.threshold

    def decide(self, gaps: tuple[float, float], dtype: str) -> None:
        """Record a `disagreement` of a model of this dtype; one that is too large is logged."""
        allowed = TOLERANCE[dtype]
        self.verified = all(gap <= limit for gap, limit in zip(gaps, allowed, strict=True))
        if not self.verified:
            log.warning(
                "SHARED FORWARD SWITCHED OFF: on the first batch it differs from the plain forward "
                "by %.2g in log-probs (allowed: %.2g) and %.2g in the gradient (allowed: %.2g); "
                "the run goes on with the plain forward",
                *(number for pair in zip(gaps, allowed, strict=True) for number in pair),
            )


def saving(micro: MicroBatch) -> float:
    """Return plain over shared tokens: G(P + C) / (P + GC) for a group."""
    prompts = torch.tensor([len(prompt.encoded.ids) for prompt in micro.prompts])
    longest = int((prompts[micro.group] + micro.lengths).max())
    return len(micro.group) * longest / int(prompts.sum() + micro.lengths.sum())


def disagreement(
    model: Any,
    family: Family,
    micro: MicroBatch,
    temperature: float,
    pad_id: int,
    split: Split | None = None,
) -> tuple[float, float]:
    """Return how far the shared forward is from the plain one on a few rows of `micro`.

    The first number is the mean absolute difference of the log-probs. The second is the norm of the
    difference of the gradients over the norm of the plain gradient; they are the gradients of a sum
    with alternating signs with respect to the smaller trainable weights.
    """
    few, signs = few_rows(micro)
    trainable = [p for p in model.parameters() if p.requires_grad]
    weights = [p for p in trainable if p.numel() <= SMALL] or trainable
    logprobs, gradients = [], []
    with torch.enable_grad(), without_dropout(model):
        for shared in (False, True):
            out, _ = completion_logprobs(model, family, few, temperature, pad_id, shared, split)
            scored = out[few.mask.to(out.device)]
            grads = torch.autograd.grad(
                (scored * signs.to(out.device)).sum(), weights, allow_unused=True
            )
            logprobs.append(scored.detach())
            gradient = torch.cat([g.float().flatten() for g in grads if g is not None])
            gradients.append(gradient if split is None else split.sum(gradient))
    gap = (logprobs[1] - logprobs[0]).abs().mean()
    norm = gradients[0].norm().clamp_min(torch.finfo(torch.float32).tiny)
    return gap.item(), ((gradients[1] - gradients[0]).norm() / norm).item()


SMALL = 2**22
"""Weights of up to this many numbers take part in the comparison: norms, biases, adapters."""


def few_rows(micro: MicroBatch) -> tuple[MicroBatch, torch.Tensor]:
    """Return up to two completions of each of the two largest groups, and a sign for each scored token.

    They are a longest one and the one that differs from it in most places: what is wrong only for
    some completions of a group is seen only where they differ.
    """
    groups = torch.bincount(micro.group).argsort(descending=True, stable=True)[:2]
    step = torch.arange(micro.token_ids.shape[1])
    ids = torch.where(step < micro.lengths[:, None], micro.token_ids, -1)
    # What was observed differs from anything that was written, so rows that show media elsewhere differ.
    ids = torch.where(micro.mask, ids, -2 - ids)
    media = torch.tensor([len(shown) for shown in micro.shown])
    rows = []
    for group in groups:
        own = (micro.group == group).nonzero()[:, 0]
        own = own[micro.lengths[own].argsort(descending=True, stable=True)]
        own = own[media[own].argsort(descending=True, stable=True)]
        differing = (ids[own[1:]] != ids[own[:1]]).sum(1)
        rows += [own[:1], own[1:][differing.argsort(descending=True, stable=True)[:1]]]
    few = rows_of(micro, torch.cat(rows))
    signs = torch.tensor([1.0, -1.0, -1.0]).repeat(few.mask.numel())[: int(few.mask.sum())]
    return few, signs


@contextlib.contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Switch to training mode, with checkpointing if configured, but without dropout."""
    training = model.training
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
    try:
        yield
    finally:
        model.train(training)


# -------------------------------------------------------------------------------------- the head


def head_logprobs(
    hidden: torch.Tensor,
    head: torch.nn.Module,
    targets: torch.Tensor,
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-prob of each target and the entropy, [N] float32 each, from hidden [N, H].

    At most CHUNK x V logits exist at a time, with `entropy_gradient` twice as many in the backward, which
    recomputes them. Without it the entropy has no gradient.

    Raises:
        ValueError: the head has a bias.
    """
    if getattr(head, "bias", None) is not None:
        raise ValueError("language-model heads with a bias are not supported")
    weight: torch.Tensor = head.weight  # type: ignore[assignment]
    settings = targets, temperature, entropy_gradient, getattr(head, "logit_cap", None)
    if not getattr(head, "kept_float32", False):
        return _HeadLogProbs.apply(hidden, weight, *settings)
    with torch.autocast(hidden.device.type, enabled=False):
        return _HeadLogProbs.apply(hidden, weight.float(), *settings)


def keep_float32(head: torch.nn.Module) -> None:
    """Let a head without bias compute in float32 wherever it is called, inside of autocast, too.

    Source: MiniMax 2025 (MiniMax-M1), arXiv 2506.13585, section 3.2; Khatri et al. 2025 (ScaleRL), arXiv
    2510.13786.
    """
    head.kept_float32 = True  # type: ignore[assignment]
    head.forward = types.MethodType(_float32_logits, head)


def _float32_logits(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    weight: torch.Tensor = head.weight  # type: ignore[assignment]
    with torch.autocast(hidden.device.type, enabled=False):
        return torch.nn.functional.linear(hidden.float(), weight.float())


class _HeadLogProbs(torch.autograd.Function):
    """Compute log softmax(h Wᵀ / τ)[target] and the entropy chunk by chunk, with one dW buffer.

    With a cap c, c tanh(h Wᵀ / c) takes the place of h Wᵀ.

    Checkpointing each chunk instead would make a fresh [V, H] gradient per chunk. Under autocast the
    products of the backward, which runs outside of it, are in its dtype too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        tau: float,
        entropy_gradient: bool,
        cap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, normalisers = [], [], []
        (low,) = cast(weight)
        ctx.dtype = low.dtype
        for h, t in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
            logits, _ = _scaled_logits(h.to(ctx.dtype), low, tau, cap)
            normaliser = logits.logsumexp(-1)
            logprobs.append(logits.gather(1, t[:, None])[:, 0] - normaliser)
            logits.sub_(normaliser[:, None])
            entropies.append(-(logits.exp() * logits).sum(-1))
            normalisers.append(normaliser)
        ctx.tau, ctx.cap = tau, cap
        entropy = torch.cat(entropies)
        ctx.save_for_backward(
            hidden, weight, targets, torch.cat(normalisers), entropy if entropy_gradient else None
        )
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, normalisers, entropies = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight) if need_weight else None
        low = weight.to(ctx.dtype)
        for start in range(0, len(targets), CHUNK):
            part = slice(start, start + CHUNK)
            h = hidden[part].to(ctx.dtype)
            # d logp / d logits = onehot(target) - softmax, over the temperature
            logits, slope = _scaled_logits(h, low, ctx.tau, ctx.cap)
            logits.sub_(normalisers[part, None])
            of_entropy = None
            if entropies is not None:
                of_entropy = _entropy_gradient(logits, entropies[part], grads[1][part] / ctx.tau)
            grad = logits.exp_().neg_()
            grad[torch.arange(len(h), device=h.device), targets[part]] += 1
            grad = grad * (grads[0][part, None] / ctx.tau)
            if of_entropy is not None:
                grad += of_entropy
            if slope is not None:
                grad *= slope
            grad = grad.to(ctx.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = (grad @ low).to(hidden.dtype)
            if grad_weight is not None:
                _add_product(grad_weight, grad, h)
        return grad_hidden, grad_weight, None, None, None, None


def _scaled_logits(
    hidden: torch.Tensor, weight: torch.Tensor, tau: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the logits [N, V] over the temperature and, with a cap, its slope there, 1 - tanh²."""
    logits = (hidden @ weight.T).float()
    if cap is None:
        return logits / tau, None
    capped = cap_logits(logits, cap)
    return capped / tau, 1 - (capped / cap) ** 2


def _entropy_gradient(
    logprobs: torch.Tensor, entropies: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    """Return d entropy / d logits = -p (log p + entropy), times `grad` [N]; log-probs p [N, V]."""
    gradient = logprobs + entropies[:, None]
    return gradient.mul_(logprobs.exp()).mul_(-grad[:, None])


def _add_product(total: torch.Tensor, grad: torch.Tensor, hidden: torch.Tensor) -> None:
    """Add gradᵀ · hidden to `total` [V, H], which may be of a larger dtype than they."""
    if total.dtype == grad.dtype:
        total.addmm_(grad.T, hidden)
        return
    for rows, columns in zip(total.split(ROWS), grad.split(ROWS, 1), strict=True):
        rows.add_(columns.T @ hidden)


# ----------------------------------------------------------------------------- the plain forward


def _plain_hidden(
    model: Any, family: Family, micro: MicroBatch, pad_id: int, split: Split | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the hidden states [N, H] that predict the scored tokens, in `mask.nonzero()` order.

    With `split` they are those that this rank has; the second tensor, bool, says which. None: all.
    """
    device = next(model.parameters()).device
    encoded = micro.encoded
    rows = zip(micro.group.tolist(), micro.shown, strict=True)
    features = family.tower_features(model, encoded)
    features = family.spread(features, encoded, [i for own, more in rows for i in (own, *more)])
    ids, attention, positions, first = _pad_rows(encoded, micro, pad_id)
    inputs = (x.to(device) for x in (ids, attention, positions))
    choices = choices_of_rows(micro, ids.shape[1])
    hidden, own = decode(split, model, family, choices, *inputs, features)
    scored, where = micro.mask.nonzero(as_tuple=True)
    where, here = first[scored] + where, None
    if own is not None:
        here = own.holds(where)
        scored, where = scored[here], where[here] - own.start
    return hidden[scored.to(device), where.to(device)], here


def _pad_rows(
    encoded: Sequence[Encoded], micro: MicroBatch, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return right-padded rows [prompt | completion]: ids and mask [B, L], positions [A, B, L].

    The fourth tensor [B] is the index whose hidden state predicts the first completion token.
    """
    prompt_lengths = torch.tensor([len(encoded[i].ids) for i in micro.group.tolist()])
    lengths = prompt_lengths + micro.lengths
    rows, longest = len(prompt_lengths), int(lengths.max())
    some = encoded[0].position_ids
    ids = torch.full((rows, longest), pad_id, dtype=torch.long)
    positions = some.new_zeros((len(some), rows, longest))
    for row, which in enumerate(micro.group.tolist()):
        prompt, start, end = encoded[which], int(prompt_lengths[row]), int(lengths[row])
        ids[row, :start] = torch.tensor(prompt.ids)
        ids[row, start:end] = micro.token_ids[row, : end - start]
        positions[:, row, :start] = prompt.position_ids
        positions[:, row, start:end] = micro.follow(row, end - start)
    attention = (torch.arange(longest) < lengths[:, None]).long()
    return ids, attention, positions, prompt_lengths - 1
