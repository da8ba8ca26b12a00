"""A key-value cache with room to grow: a token is written into it, the rest is not copied.

transformers' `DynamicCache` makes the keys and values of all tokens anew for every token.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

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
