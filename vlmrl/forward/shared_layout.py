"""The layout of a packed row: group after group, `[prompt | completion 1 | ... | completion G]`.

Legend: L tokens of the row, N prompts, B completions, G completions of the largest group, P and C
tokens of the longest prompt and completion.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch


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
