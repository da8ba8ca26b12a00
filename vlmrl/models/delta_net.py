"""Gated delta-nets, which hold a state in place of keys and values: how they read rows as a `Mask` says.

The layers' own code runs. A layer that gets a `Mask` lets it say which of its tokens are read after which
states: those of the last inputs of its convolution, and its recurrent one.

Legend: n rows, T tokens of width H; C channels of the convolution, W its width; V value heads, K and D the
widths of a key and of a value.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionLayer

from vlmrl.models.attention import Mask

States = tuple[torch.Tensor, torch.Tensor]
"""What a layer hands on: inputs of its convolution [n, C, at least W - 1], and [n, V, K, D]."""
Run = Callable[..., torch.Tensor]
"""A layer's own forward, of hidden states [n, T, H]."""


def install(model: torch.nn.Module) -> None:
    """Let masks say how the delta-nets of a model read rows; without one nothing changes."""
    for module in model.modules():
        if type(module).__name__.endswith("GatedDeltaNet"):
            module.forward = types.MethodType(_forward, module)


def _forward(
    layer: Any,
    hidden_states: torch.Tensor,
    cache_params: Any = None,
    attention_mask: Any = None,
    **settings: Any,
) -> torch.Tensor:
    run = functools.partial(type(layer).forward, layer, **settings)
    if isinstance(attention_mask, Mask):
        return attention_mask.recur(layer.layer_idx, run, hidden_states)
    return run(hidden_states, cache_params=cache_params, attention_mask=attention_mask)


def run_after(
    run: Run,
    layer: int,
    hidden: torch.Tensor,
    states: States | None = None,
    real: torch.Tensor | None = None,
) -> tuple[torch.Tensor, States]:
    """Return what a layer makes of hidden states [n, T, H] after these states, and its states behind them.

    Gradient flows through both. None: rows begin here. `real` [n, T], bool, is False where a row is padded
    on the left; padding on the right is in the states.
    """
    held: Any = _HeldStates(states)
    cache: Any = DynamicCache()
    cache.layers = {layer: held}
    tokens = hidden.shape[1]
    if states is not None and tokens == 1:
        # A token alone would be decoded, which changes the states in place.
        hidden = F.pad(hidden, (0, 0, 0, 1))
    out = run(hidden, cache_params=cache, attention_mask=real)
    width = held.conv_kernel_size[0] - 1
    window = F.pad(held.conv_states[0], (width, 0))[..., -width:]
    return out[:, :tokens], (window, held.recurrent_states[0])


class _HeldStates(LinearAttentionLayer):
    """The states of one layer in a cache that copies nothing, so that gradient flows through them."""

    def __init__(self, states: States | None) -> None:
        super().__init__()
        self.activate_past_recording()
        if states is not None:
            self.conv_states[0], self.recurrent_states[0] = states
            self.has_previous_state[0] = self.is_conv_states_initialized[0] = True
            self.conv_kernel_size[0] = states[0].shape[-1] + 1

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **settings: Any
    ) -> torch.Tensor:
        """Keep the states themselves."""
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states
