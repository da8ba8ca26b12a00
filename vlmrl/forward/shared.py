"""The shared forward: each prompt once, then its completions, all groups in one packed row.

All completions of a group have the same prompt. The plain forward computes it once per completion,
this one computes it once: G(P + C) tokens become P + GC. A packed row holds group after group,

    [prompt 1 | completion 1 | ... | completion G | prompt 2 | completion 1 | ... ]

where a prompt sees itself, and a completion sees its prompt and itself, as if it alone followed the
prompt. Log-probs and gradients are the same.

Legend: L tokens of the row, N prompts, B completions, G completions of the largest group, P and C
tokens of the longest prompt and completion; H query heads, K key heads, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from vlmrl.system import torchvision_shim  # noqa: F401  before transformers

# isort: split
from transformers.masking_utils import causal_mask_function

from vlmrl.forward.experts import choices_of_packed, decode
from vlmrl.models.attention import (
    Mask,
    MaskFunction,
    attend,
    attend_backward,
    cast,
    masked_by,
    merge,
)
from vlmrl.models.base import Family
from vlmrl.schema import MicroBatch

if TYPE_CHECKING:
    from vlmrl.forward.sequence_parallel import Split

KeysValues = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Keys and values of every layer, [1, K, P, D] each; of a layer that holds a state `delta_net.States`."""


def shared_hidden(
    model: Any, family: Family, micro: MicroBatch, split: Split | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the hidden states [N, H] that predict the scored tokens, in `micro.mask.nonzero()` order.

    With `split` they are those that this rank has; the second tensor, bool, says which. None: all.
    `attention.install` must have been called on the model.
    """
    device = next(model.parameters()).device
    encoded = micro.encoded
    layout, ids, positions, scored = pack_row(micro, device)
    features = family.spread(family.tower_features(model, encoded), encoded, _in_order(micro))
    choices = choices_of_packed(micro, layout)
    with sharing(layout):
        # Without a mask of ones some models read restarting positions as new sequences.
        ones = torch.ones_like(ids)
        hidden, own = decode(split, model, family, choices, ids, ones, positions, features)
    if own is None:
        return hidden[0].index_select(0, scored), None
    here = own.holds(scored)
    return hidden[0].index_select(0, scored[here] - own.start), here


def _in_order(micro: MicroBatch) -> list[int]:
    """List which of `micro.encoded` the packed row shows, from its first place to its last."""
    if not micro.suffixes:
        return list(range(len(micro.prompts)))
    order, groups, shown = [], micro.group.tolist(), micro.shown
    for which in range(len(micro.prompts)):
        order.append(which)
        order += [i for row, group in enumerate(groups) if group == which for i in shown[row]]
    return order


def pack_row(
    micro: MicroBatch, device: torch.device
) -> tuple[SharedLayout, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the layout, ids [1, L], positions [A, 1, L], and places [N] that predict the scored tokens.

    The last token of a completion predicts nothing and is left out. A completion's positions
    continue those of its prompt.
    """
    encoded = [prompt.encoded for prompt in micro.prompts]
    group, lengths = micro.group, (micro.lengths - 1).clamp(min=0)
    layout = SharedLayout.of(torch.tensor([len(e.ids) for e in encoded]), group, lengths)
    row, step = (torch.arange(int(lengths.max())) < lengths[:, None]).nonzero(as_tuple=True)
    columns = layout.row_start[row] + step
    prompts = layout.prompts.index[layout.prompts.real]
    ids = torch.empty(layout.length, dtype=torch.long)
    ids[prompts] = torch.tensor([i for e in encoded for i in e.ids])
    ids[columns] = micro.token_ids[row, step]
    some = encoded[0].position_ids
    positions = some.new_empty((len(some), layout.length))
    positions[:, prompts] = torch.cat([e.position_ids for e in encoded], 1)
    if micro.suffixes:
        follow = [micro.follow(i, n) for i, n in enumerate(lengths.tolist())]
        positions[:, columns] = torch.cat(follow, 1).to(some.dtype)
    else:
        starts = torch.tensor([e.next_position for e in encoded], dtype=some.dtype)
        positions[:, columns] = starts[group[row]] + step
    row, step = micro.mask.nonzero(as_tuple=True)
    last = layout.prompt_end[group[row]] - 1
    scored = torch.where(step > 0, layout.row_start[row] + step - 1, last)
    return layout.to(device), ids[None].to(device), positions[:, None].to(device), scored.to(device)


# ------------------------------------------------------------------------------------------ layout


@dataclass(frozen=True, slots=True)
class Block:
    """Spans of a packed row as one padded block.

    `index` int64 [..., width] are places in the row; where `real` is False, the first of the span.
    """

    index: torch.Tensor
    real: torch.Tensor
    full: bool
    """True if nothing is padding."""

    @classmethod
    def of(cls, start: torch.Tensor, length: torch.Tensor) -> Block:
        """Return the spans that begin at `start` [...] and are `length` [...] tokens long."""
        steps = torch.arange(max(1, int(length.max())), device=start.device)
        real = steps < length[..., None]
        return cls(start[..., None] + steps * real, real, bool(real.all()))

    def to(self, device: torch.device) -> Block:
        """Return the block on a device."""
        return Block(self.index.to(device), self.real.to(device), self.full)

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's [places, heads, D] of the row's [L, heads, D]."""
        return x.index_select(0, self.index.flatten())

    def take_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Take a gradient, 0 where the block is padding: the values computed there were not used."""
        taken = self.take(grad)
        return taken if self.full else taken.mul_(self.real.flatten()[:, None, None])


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """The places of the prompts and completions of a packed row."""

    length: int
    prompts: Block
    """The prompts, [N, P]."""
    completions: Block
    """The completions, [N, G, C]; groups with fewer are padded with empty ones."""
    prompt_end: torch.Tensor
    """[N]: one past the prompt's last place."""
    row_start: torch.Tensor
    """[B]: first place of every completion, in the order in which they were given."""
    source: torch.Tensor
    """[L]: for every place of the row, where it is in [flat prompts, flat completions]."""

    @classmethod
    def of(cls, prompts: torch.Tensor, group: torch.Tensor, lengths: torch.Tensor) -> SharedLayout:
        """Lay out prompts [N] and completions [B] of these lengths; `group` [B] is each one's prompt."""
        counts, tokens = torch.bincount(group, minlength=len(prompts)), torch.zeros_like(prompts)
        tokens.index_add_(0, group, lengths)
        start = _sum_before(prompts + tokens)
        end = start + prompts
        order = group.argsort(stable=True)
        owner = group[order]
        slot, row_start = torch.empty_like(group), torch.empty_like(group)
        slot[order] = torch.arange(len(group), device=group.device) - _sum_before(counts)[owner]
        row_start[order] = end[owner] + _sum_before(lengths[order]) - _sum_before(tokens)[owner]
        # Empty completions are all padding, at their prompt's first place.
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

    def to(self, device: torch.device) -> SharedLayout:
        """Return the layout on a device."""
        moved = {
            field.name: getattr(self, field.name).to(device)
            for field in dataclasses.fields(self)
            if field.name != "length"
        }
        return SharedLayout(self.length, **moved)

    def put(self, prompts: torch.Tensor, completions: torch.Tensor) -> torch.Tensor:
        """Return the row [L, ...] of the values [places, ...] computed for each of the two blocks."""
        return torch.cat([prompts, completions]).index_select(0, self.source)

    def continued(self) -> torch.Tensor:
        """Return the places [N, C] that completions would have if each followed its prompt directly."""
        steps = torch.arange(self.completions.index.shape[-1], device=self.source.device)
        return (self.prompt_end[:, None] + steps).clamp(max=self.length - 1)


def _sum_before(counts: torch.Tensor) -> torch.Tensor:
    return counts.cumsum(0) - counts


# --------------------------------------------------------------------------------------- attention


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

    def recur(
        self, layer: int, run: Callable[..., torch.Tensor], hidden: torch.Tensor
    ) -> torch.Tensor:
        """Return what a layer that holds a state makes of the row [1, L, H], as `attend`."""
        from vlmrl.forward import handed_states  # few models have such layers

        if self.prompt_kv is not None:
            return handed_states.recur_after(self.prompt_kv[layer], layer, run, hidden)
        return handed_states.recur_packed(self.layout, layer, run, hidden[0])[None]


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
