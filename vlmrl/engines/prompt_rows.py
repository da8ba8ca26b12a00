"""The rows that are decoded: each with a copy of its prompt's keys and values, or all with the same ones.

Shared, a decoding step attends in two parts that are merged by their log-sum-exp: the queries of all
rows of a prompt on its keys, which are held and read once, and each row's query on its own keys.

Legend: P prompts, G rows of the prompt with most, R rows; H query heads, K key heads, D head width; L and
T tokens of the longest prompt and of what the rows have written.

A row's own keys and values have room to grow: a token is written there, and nothing else is copied.
transformers' `DynamicCache` makes the keys and values of all tokens anew for every token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from vlmrl.engines.base import ServedPolicy
from vlmrl.models.attention import Mask, attend, cast, installed, masked_by, merge
from vlmrl.schema import Prompt

MIN_SAVED = 2**12
"""Least number of tokens of the cache that sharing prompts must save; below it one part is faster."""
GROWTH = 128
"""Tokens of room that a layer gets when it is full."""


class RoomyLayer(DynamicLayer):
    """Keys and values [rows, K, T, D] of a layer that are the first T places of larger tensors."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, room: int
    ) -> None:
        """Hold these rows [.] of keys and values [., K, T, D], with room for `room` more tokens."""
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values = keys, values
        self._make_room(rows, room)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [rows, K, 1, D] behind those that are there; returns all of them."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if end > self._rooms[0].shape[-2]:
            self._make_room(torch.arange(len(key_states), device=key_states.device), GROWTH)
        for room, new in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, start:end] = new
        self.keys, self.values = (room[:, :, :end] for room in self._rooms)
        return self.keys, self.values

    def _make_room(self, rows: torch.Tensor, room: int) -> None:
        assert self.keys is not None and self.values is not None
        self._rooms = _with_room(self.keys, rows, room), _with_room(self.values, rows, room)
        length = self.keys.shape[-2]
        self.keys, self.values = (room[:, :, :length] for room in self._rooms)


def _with_room(x: torch.Tensor, rows: torch.Tensor, room: int) -> torch.Tensor:
    """Copy these rows of x [., K, T, D] to the first T of T + room places."""
    larger = x.new_empty((len(rows), x.shape[1], x.shape[2] + room, x.shape[3]))
    torch.index_select(x, 0, rows, out=larger[:, :, : x.shape[2]])
    return larger


def take_rows(cache: DynamicCache, rows: torch.Tensor, more: int) -> None:
    """Let the cache hold these of its rows [.], a row more than once where asked; `more` tokens follow.

    Layers that are no plain keys and values (sliding windows, linear attention) stay what they are.
    """
    layers: list[Any] = cache.layers
    for number, layer in enumerate(layers):
        if type(layer) in (DynamicLayer, RoomyLayer):
            layers[number] = RoomyLayer(layer.keys, layer.values, rows, min(more, GROWTH))
        else:
            layer.reorder_cache(rows)


class CopiedPrompts:
    """Rows that each hold the keys and values of its prompt."""

    def __init__(self, cache: DynamicCache, mask: torch.Tensor, num_rows: int, more: int) -> None:
        """Give each prompt of a prefilled cache `num_rows` rows, `more` tokens to follow.

        `mask` [P, L] is 1 where a prompt has a token.
        """
        self.cache = cache
        rows = torch.arange(len(mask), device=mask.device).repeat_interleave(num_rows)
        self.mask = mask
        self.take(rows, more)

    def take(self, rows: torch.Tensor, more: int) -> None:
        """Keep these rows [.], `more` tokens to follow."""
        take_rows(self.cache, rows, more)
        self.mask = self.mask[rows]

    def grow(self) -> torch.Tensor:
        """Return the mask [R, past + 1] of what the rows see once they have one more token."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], 1)
        return self.mask

    def attending(self) -> AbstractContextManager[None]:
        """Decode inside: the model attends as it always does."""
        return contextlib.nullcontext()


class SharedPrompts(CopiedPrompts, Mask):
    """Rows in the order of their prompts, whose keys and values are held once."""

    def __init__(self, cache: DynamicCache, mask: torch.Tensor, num_rows: int, more: int) -> None:
        """Do as `CopiedPrompts` does; all layers of the cache must be plain keys and values."""
        layers: list[Any] = cache.layers
        self.prompts: list[tuple[torch.Tensor, ...]] = [
            cast(layer.keys, layer.values) for layer in layers
        ]
        """Keys and values of every layer, [P, K, L, D] each."""
        self.seen: torch.Tensor | None = None
        """Additive mask [P, 1, 1, L]; None where no prompt is padded."""
        if not bool(mask.all()):
            padding = torch.zeros(mask.shape, device=mask.device)
            self.seen = padding.masked_fill_(mask == 0, -torch.inf)[:, None, None]
        self.owner = torch.arange(len(mask), device=mask.device)
        """[R]: the prompt of every row."""
        for number, (keys, values) in enumerate(self.prompts):
            layers[number] = RoomyLayer(keys[:, :, :0], values[:, :, :0], self.owner, 0)
        super().__init__(cache, mask[:, :0], num_rows, more)

    def take(self, rows: torch.Tensor, more: int) -> None:
        """Keep these rows [.], in this order, and the prompts that they follow."""
        super().take(rows, more)
        kept, self.owner = self.owner[rows].unique_consecutive(return_inverse=True)
        if len(kept) < len(self.prompts[0][0]):
            for layer, (keys, values) in enumerate(self.prompts):
                self.prompts[layer] = keys[kept], values[kept]
            self.seen = None if self.seen is None else self.seen[kept]
        counts = torch.bincount(self.owner)
        most = int(counts.max())
        first = counts.cumsum(0) - counts
        number = torch.arange(len(rows), device=rows.device)
        self.full = len(rows) == most * len(counts)
        """Whether all prompts have G rows."""
        self.slots = self.owner * most + number - first[self.owner]
        """[R]: where in [P * G] a row is."""
        self.rows = number.new_zeros(len(counts) * most)
        """[P * G]: which row is where; the first where none is."""
        self.rows[self.slots] = number

    def attending(self) -> AbstractContextManager[None]:
        """Decode inside: the model attends to the prompts, and to what the cache holds."""
        return masked_by(lambda function: self)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention [R, 1, H, D] of query [R, H, 1, D] on its prompt, and on its own tokens.

        `key` and `value` [R, K, T, D] are those of its own tokens.
        """
        query, key, value = cast(query, key, value)
        prompt_key, prompt_value = self.prompts[layer]
        # The query heads of a key head are more queries.
        q = query.view(len(query), key.shape[1], -1, query.shape[-1])
        own, own_lse = attend(q, key, value, scale, False, None)
        across, lse = attend(self._join(q), prompt_key, prompt_value, scale, False, self.seen)
        merged, _ = merge(self._split(across), self._split(lse), own, own_lse)
        return merged.reshape(len(query), 1, query.shape[1], -1)

    def _join(self, x: torch.Tensor) -> torch.Tensor:
        """Reshape [R, K, H / K, D] to [P, K, G * H / K, D]; empty places hold the first row's."""
        x = x if self.full else x[self.rows]
        prompts = len(self.prompts[0][0])
        return x.unflatten(0, (prompts, -1)).transpose(1, 2).flatten(2, 3)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Invert `_join`: [P, K, G * H / K, ...] to [R, K, H / K, ...]."""
        most = len(self.rows) // len(x)
        x = x.unflatten(2, (most, -1)).transpose(1, 2).flatten(0, 1)
        return x if self.full else x[self.slots]


def hold(
    model: object, cache: DynamicCache, mask: torch.Tensor, num_rows: int, more: int
) -> CopiedPrompts:
    """Return the rows to decode: shared where the model supports it and `MIN_SAVED` tokens are saved."""
    plain = all(type(layer) is DynamicLayer for layer in cache.layers)
    pays = (num_rows - 1) * mask.numel() >= MIN_SAVED
    way = SharedPrompts if pays and plain and installed(model) else CopiedPrompts
    return way(cache, mask, num_rows, more)


def prefill(
    policy: ServedPolicy, prompts: Sequence[Prompt]
) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
    """Run left-padded prompts once; return the cache, the last hidden states [P, H], the mask [P, L]."""
    encoded = [p.encoded for p in prompts]
    longest = max(len(e.ids) for e in encoded)
    some = encoded[0].position_ids
    ids = torch.full((len(encoded), longest), policy.pad_id)
    mask = torch.zeros((len(encoded), longest), dtype=torch.long)
    positions = some.new_zeros((len(some), len(encoded), longest))
    for row, e in enumerate(encoded):
        start = longest - len(e.ids)
        ids[row, start:] = torch.tensor(e.ids)
        mask[row, start:] = 1
        positions[:, row, start:] = e.position_ids
    features = policy.family.tower_features(policy.base, encoded)
    features = policy.family.spread(features, encoded, range(len(encoded)))
    cache = DynamicCache(config=policy.base.config.get_text_config())
    mask = mask.to(policy.device)
    hidden = policy.family.decode(
        policy.base, ids.to(policy.device), mask, positions.to(policy.device), features, cache
    )
    return cache, hidden[:, -1], mask
