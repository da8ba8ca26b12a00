"""Attention over a packed row in which the completions of a group share their prompt.

A packed row holds, group after group, `[prompt | completion 1 | ... | completion G]`. A prompt sees
itself; a completion sees its prompt and itself, as if it stood right behind its prompt alone.

The attention is registered with transformers (`AttentionInterface`, `AttentionMaskInterface`), so
the models' own code runs. Where transformers makes its mask we make a `SharedMask` instead, which
transformers hands to every layer, also when a checkpointed layer runs again in the backward.

Legend: L tokens of the row, N groups, G completions of the largest group, P and C longest prompt and
completion, H query heads, K key heads, D head width, n rows and S, T queries and keys of a part.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""transformers' own: (batch, head, query, key) places, broadcast -> may the query see the key."""

PREFIX = "shared_"
BASES = ("sdpa", "flex_attention")
"""transformers' attentions that have a shared form; the others take the plain forward."""


def install(model: Any) -> bool:
    """Let the language model share prompts; False if its attention cannot.

    Outside `sharing` nothing changes: the attention that was configured runs.
    """
    config = model.config.get_text_config()
    base = config._attn_implementation.removeprefix(PREFIX)
    if base not in BASES or getattr(config, "attention_dropout", 0.0):
        return False
    config._attn_implementation = PREFIX + base
    return True


@contextlib.contextmanager
def sharing(layout: Layout) -> Iterator[None]:
    """Inside, the language model reads its one row of tokens as `layout` says."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


# ------------------------------------------------------------------------------------ the layout


@dataclass(frozen=True, slots=True)
class Block:
    """Stretches of a packed row as one padded block.

    `index` int64 [..., width] are places in the row, where `real` is False the stretch's first one.
    """

    index: torch.Tensor
    real: torch.Tensor
    full: bool
    """Nothing is padding."""

    @classmethod
    def of(cls, start: torch.Tensor, length: torch.Tensor) -> Block:
        """Stretches that begin at `start` [...] and are `length` [...] tokens long."""
        steps = torch.arange(max(1, int(length.max())), device=start.device)
        real = steps < length[..., None]
        return cls(start[..., None] + steps * real, real, bool(real.all()))

    def to(self, device: torch.device) -> Block:
        """The same on a device."""
        return Block(self.index.to(device), self.real.to(device), self.full)

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Of the row's [L, heads, D] the block's [places, heads, D]."""
        return x.index_select(0, self.index.flatten())

    def take_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """As `take`, but 0 where the block is padding: what it computed there was not used."""
        taken = self.take(grad)
        return taken if self.full else taken.mul_(self.real.flatten()[:, None, None])


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the prompts and completions of a packed row lie."""

    length: int
    prompts: Block
    """[N, P]."""
    completions: Block
    """[N, G, C]; groups with fewer completions are padded with empty ones."""
    prompt_end: torch.Tensor
    """[N]: one past the prompt's last place."""
    row_start: torch.Tensor
    """[B]: first place of every completion, in the order in which they were given."""
    source: torch.Tensor
    """[L]: for every place of the row, where it is in [flat prompts, flat completions]."""

    @classmethod
    def of(cls, prompts: torch.Tensor, group: torch.Tensor, lengths: torch.Tensor) -> Layout:
        """A row of prompts [N] and completions [B] of these lengths; `group` [B] names the prompts."""
        counts, tokens = torch.bincount(group, minlength=len(prompts)), torch.zeros_like(prompts)
        tokens.index_add_(0, group, lengths)
        start = _before(prompts + tokens)
        end = start + prompts
        order = group.argsort(stable=True)
        owner = group[order]
        slot, row_start = torch.empty_like(group), torch.empty_like(group)
        slot[order] = torch.arange(len(group), device=group.device) - _before(counts)[owner]
        row_start[order] = end[owner] + _before(lengths[order]) - _before(tokens)[owner]
        # Empty completions stand, all padding, on their prompt's first place.
        starts = start[:, None].repeat(1, int(counts.max()))
        sizes = torch.zeros_like(starts)
        starts[group, slot] = torch.where(lengths > 0, row_start, start[group])
        sizes[group, slot] = lengths
        blocks = Block.of(start, prompts), Block.of(starts, sizes)
        flat = torch.cat([block.index.flatten() for block in blocks])
        real = torch.cat([block.real.flatten() for block in blocks]).nonzero()[:, 0]
        source = torch.empty_like(real)
        source[flat[real]] = real
        return cls(len(real), *blocks, end, row_start, source)

    def to(self, device: torch.device) -> Layout:
        """The same on a device."""
        moved = {
            field.name: getattr(self, field.name).to(device)
            for field in dataclasses.fields(self)
            if field.name != "length"
        }
        return Layout(self.length, **moved)

    def put(self, prompts: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
        """The row [L, ...] of what was computed for both blocks, [places, ...] each."""
        return torch.cat([prompts, completions]).index_select(0, self.source)

    def continued(self) -> torch.Tensor:
        """[N, C]: places that completions would have right behind their prompt."""
        steps = torch.arange(self.completions.index.shape[-1], device=self.source.device)
        return (self.prompt_end[:, None] + steps).clamp(max=self.length - 1)

    def packed(self, function: MaskFunction) -> MaskFunction:
        """`function`, a mask for a prompt with one completion, as a mask for the packed row.

        Example: `layout.packed(causal_mask_function)(0, 0, q, k)` with q [L, 1] and k [1, L].
        """
        groups, per_group, longest = self.completions.index.shape
        numbers = torch.arange(groups * per_group, device=self.source.device)
        owner = numbers // per_group
        prompts, completions = self.prompts.index, self.completions.index
        group = self.put(_spread(numbers[:groups], prompts), _spread(owner, completions))
        part = self.put(_spread(numbers[:groups] * 0 - 1, prompts), _spread(numbers, completions))
        logical = self.put(prompts.flatten(), self.continued().repeat(1, per_group).flatten())

        def packed(batch: Any, head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            together = (group[q] == group[k]) & ((part[k] < 0) | (part[q] == part[k]))
            return together & function(batch, head, logical[q], logical[k])

        return packed


def _before(counts: torch.Tensor) -> torch.Tensor:
    return counts.cumsum(0) - counts


def _spread(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """A value per stretch, for every place of its stretch."""
    return values[:, None].expand(-1, index.shape[-1]).flatten()


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
        layout = mask.layout
        groups, per_group = layout.completions.index.shape[:2]
        q, k, v = (_heads(layout.prompts.take(x), groups) for x in (query, key, value))
        out, lse = attend(q, k, v, scale, mask.prompt is None, mask.prompt)
        q, *own = (layout.completions.take(x) for x in (query, key, value))
        across, seen = attend(_heads(q, groups), k, v, scale, False, mask.across)
        if mask.blind is not None:
            seen = seen.masked_fill(mask.blind, -torch.inf)
        q, k, v = (_heads(x, groups * per_group) for x in (q, *own))
        alone, kept = attend(q, k, v, scale, mask.own is None, mask.own)

        seen, kept = _flat(seen), _flat(kept)
        weight = (seen - kept).sigmoid()[..., None]
        merged = torch.lerp(_flat(alone).float(), _flat(across).float(), weight).to(out.dtype)
        packed = layout.put(_flat(out), merged)
        ctx.save_for_backward(query, key, value, packed, lse, torch.logaddexp(seen, kept))
        ctx.mask, ctx.scale = mask, scale
        return packed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
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

_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


def _mask(base: str) -> Callable[..., Any]:
    """A mask maker for `AttentionMaskInterface`, over transformers' own."""
    plain = ALL_MASK_ATTENTION_FUNCTIONS[base]

    def make(*, mask_function: MaskFunction = causal_mask_function, **settings: Any) -> Any:
        layout = _LAYOUT.get()
        if layout is None:
            return plain(mask_function=mask_function, **settings)
        if base == "sdpa":
            return SharedMask.of(layout, mask_function)
        return plain(mask_function=layout.packed(mask_function), **settings)

    return make


def _attention(base: str) -> Callable[..., Any]:
    """An attention for `AttentionInterface`: shared for a `SharedMask`, else transformers' own."""
    plain = ALL_ATTENTION_FUNCTIONS[base]

    def attention(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        **settings: Any,
    ) -> tuple[torch.Tensor, Any]:
        if not isinstance(attention_mask, SharedMask):
            return plain(module, query, key, value, attention_mask, scaling=scaling, **settings)
        if odd := [name for name in _UNSUPPORTED if settings.get(name)]:
            raise ValueError(f"the shared forward does not know attention with {odd[0]}")
        inputs = [x[0].transpose(0, 1) for x in (query, key, value)]
        device = query.device.type
        if torch.is_autocast_enabled(device):
            inputs = [x.to(torch.get_autocast_dtype(device)) for x in inputs]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return Cascade.apply(*inputs, attention_mask, scale)[None], None  # type: ignore[no-untyped-call]

    return attention


_UNSUPPORTED = ("dropout", "softcap", "s_aux", "position_bias")

for _base in BASES:
    AttentionInterface.register(PREFIX + _base, _attention(_base))
    AttentionMaskInterface.register(PREFIX + _base, _mask(_base))
