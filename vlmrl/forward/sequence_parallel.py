"""Sequence parallel: the ranks of a group compute slices of the same rows of tokens.

Every rank embeds all tokens and runs the towers on all media. Its decoder layers see its slice alone;
before an attention the ranks exchange slices for heads, so that each attends over whole rows with its
share of the heads, and back after it (Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv:2309.14509).
What a layer gets in place of a mask carries all that the attention needs (`attention`):
a checkpointed layer finds it when it runs again in the backward.

A gradient is a sum over ranks, and each token is computed by one of them: nothing is counted twice.

Legend: B rows, T tokens, n slices of S tokens, H query heads, K key heads, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from vlmrl.errors import UserError
from vlmrl.models.attention import Attend, SlicedMask, cast, sliced_by
from vlmrl.models.base import Family
from vlmrl.models.cache_sizes import recurs
from vlmrl.system import distributed


@dataclass(frozen=True, slots=True)
class Slice:
    """One of `parts` slices of equal width that cover `length` places; the last may be padded."""

    length: int
    parts: int
    number: int

    @property
    def width(self) -> int:
        """Return the places of a slice."""
        return -(-self.length // self.parts)

    @property
    def start(self) -> int:
        """Return the first place of this slice."""
        return self.number * self.width

    def holds(self, places: torch.Tensor) -> torch.Tensor:
        """Return which of these places are in this slice, bool."""
        return places // self.width == self.number

    def cut(self, x: torch.Tensor, dim: int, padding: float = 0.0) -> torch.Tensor:
        """Return a copy of the slice of `x` along `dim`, with `padding` behind the last place."""
        start = min(self.start, self.length)
        stop = min(self.start + self.width, self.length)
        own = x.narrow(dim, start, stop - start)
        if stop - start < self.width:
            missing = list(own.shape)
            missing[dim] = self.width - (stop - start)
            return torch.cat([own, own.new_full(missing, padding)], dim)
        return own.clone(memory_format=torch.contiguous_format)

    def cut_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a decoder for this slice of its rows.

        The mask stays whole, as the attention needs it. DeepStack's features are those of the places
        that `visual_pos_masks` [B, T] marks, row after row.
        """
        cut = dict(inputs)
        # Not zeros: their length, which Gemma 3n reads, has no gradient.
        cut["inputs_embeds"] = self.cut(inputs["inputs_embeds"], 1, padding=1.0)
        cut["position_ids"] = self.cut(inputs["position_ids"], -1)
        if inputs.get("per_layer_inputs") is not None:
            cut["per_layer_inputs"] = self.cut(inputs["per_layer_inputs"], 1)
        if inputs.get("deepstack_visual_embeds") is not None:
            marked = inputs["visual_pos_masks"]
            own = self.holds(marked.nonzero()[:, 1])
            cut["visual_pos_masks"] = self.cut(marked, 1)
            cut["deepstack_visual_embeds"] = [x[own] for x in inputs["deepstack_visual_embeds"]]
        return cut


@dataclass(frozen=True, slots=True)
class Split:
    """The ranks that share the tokens of every micro-batch, and which of them this one is."""

    group: Any
    parts: int
    number: int

    @contextlib.contextmanager
    def over(self, model: Any, family: Family, length: int) -> Iterator[Slice]:
        """Let the decoder see its slice of rows of `length` tokens inside this block."""
        own = Slice(length, self.parts, self.number)
        decoder = model.get_submodule(family.decoder_layers[0].rpartition(".")[0])
        hook = decoder.register_forward_pre_hook(
            lambda _, args, given: (args, own.cut_inputs(given)), with_kwargs=True
        )
        try:
            with sliced_by(lambda mask: _SplitMask(mask, own, self.group), own.length):
                yield own
        finally:
            hook.remove()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks of the group, see `_Sum`."""
        return _Sum.apply(x, self.group)


def find_split(model: object, supported: bool) -> Split | None:
    """Return the ranks with which this one shares the tokens of `model`; None if it shares none.

    Raises:
        UserError: neither family nor attention support it, or the heads cannot be shared out.
    """
    ranks = distributed.sequence_ranks()
    parts = len(ranks)
    if parts == 1:
        return None
    if obstacle := find_obstacle(model, supported, parts):
        raise UserError(obstacle)
    return Split(distributed.sequence_group(), parts, ranks.index(distributed.rank()))


def find_obstacle(model: Any, supported: bool, parts: int) -> str | None:
    """Say why `parts` ranks cannot share the tokens of `model`; None if they can.

    `supported`: all its layers attend through transformers' registries.
    """
    text = model.config.get_text_config()
    if not supported:
        return (
            f"distributed.sequence_parallel: {parts}, but this model family or its attention "
            f"({text._attn_implementation}) does not support it; use 1"
        )
    if recurs(text):
        return (
            f"distributed.sequence_parallel: {parts}, but the gated delta-nets of this model read their "
            "rows from the first token to the last; use 1"
        )
    if text.num_key_value_heads % parts:
        return (
            f"distributed.sequence_parallel: expected a divisor of the model's "
            f"{text.num_key_value_heads} key-value heads, got {parts}"
        )
    return None


# --------------------------------------------------------------------------------- the attention


@dataclass(frozen=True, slots=True)
class _SplitMask(SlicedMask):
    """The object that a layer gets in place of a mask: the mask of the whole rows, and the slice."""

    mask: Any
    slice: Slice
    group: Any

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Return the attention [B, S, H, D] of query [B, H, S, D] on key and value [B, K, S, D].

        `attend` runs over whole rows, on H / n and K / n heads.
        """
        parts, width = self.slice.parts, self.slice.width
        inputs = cast(query, key, value)
        heads = [x.shape[1] // parts for x in inputs]
        # One exchange for all three: its backward has one place in the order of all ranks.
        sent = torch.cat([x.unflatten(1, (parts, -1)) for x in inputs], 2).transpose(0, 1)
        came = _Exchange.apply(sent, self.group).permute(1, 2, 0, 3, 4).flatten(2, 3)
        whole = came[:, :, : self.slice.length].split(heads, 1)
        out = attend(whole[0], whole[1], whole[2], self.mask)
        padding = parts * width - self.slice.length
        out = torch.nn.functional.pad(out, (0, 0, 0, 0, 0, padding))
        sent = out.unflatten(1, (parts, width)).transpose(0, 1)
        return _Exchange.apply(sent, self.group).permute(1, 2, 0, 3, 4).flatten(2, 3)


class _Exchange(torch.autograd.Function):
    """Send `x[i]` to rank i of a group; what comes, [n, ...], is in the order of the ranks.

    The gradient goes the same way, back to where each part came from.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchanged(grads[0], ctx.group), None


def _exchanged(x: torch.Tensor, group: object) -> torch.Tensor:
    x = x.contiguous()
    came = torch.empty_like(x)
    dist.all_to_all_single(came, x, group=group)
    return came


class _Sum(torch.autograd.Function):
    """Add up what the ranks of a group have, where all of them go on to the same loss.

    That loss counts once, so each rank's part has the gradient that this rank found for the sum.
    """

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, group: object) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grads[0], None
