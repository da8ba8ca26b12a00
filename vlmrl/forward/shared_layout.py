"""The packed row: group after group, `[prompt | completion 1 | ... | completion G]`.

Legend: L tokens of the row, N prompts, B completions, G completions of the largest group, P and C
longest prompt and completion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""transformers' own: (batch, head, query, key) places, broadcast -> may the query see the key."""


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
        """A row of prompts [N] and completions [B] of these lengths; `group` [B]: whose."""
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


def _before(counts: torch.Tensor) -> torch.Tensor:
    return counts.cumsum(0) - counts
