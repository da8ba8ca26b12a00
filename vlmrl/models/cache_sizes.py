"""What a completion holds while it is generated: keys and values of each token, or states of one size."""

from __future__ import annotations

from typing import Any


def recurs(text: Any) -> bool:
    """Return whether layers of a language model of this config hold a state in place of keys and values."""
    return "linear_attention" in (getattr(text, "layer_types", None) or ())


def attending_layers(text: Any) -> int:
    """Return how many layers of a language model of this config attend to keys and values."""
    if not recurs(text):
        return int(text.num_hidden_layers)
    return sum(kind != "linear_attention" for kind in text.layer_types)


def source_of(text: Any, layer: int) -> int:
    """Return the layer whose keys and values this one attends to: it, or the last of its kind with any."""
    own = int(text.num_hidden_layers) - _taking_layers(text)
    if layer < own:
        return layer
    return max(n for n in range(own) if text.layer_types[n] == text.layer_types[layer])


def _taking_layers(text: Any) -> int:
    """Return how many layers, the last ones, take the keys and values of others."""
    return getattr(text, "num_kv_shared_layers", None) or 0


def head_width(text: Any) -> int:
    """Return the width of a head of attention; where layers differ (Gemma 4), of the widest."""
    # The config itself refuses to name one width where layers differ.
    widths = [vars(text).get(name) or 0 for name in ("head_dim", "global_head_dim")]
    return max(widths) or text.hidden_size // text.num_attention_heads


def token_bytes(text: Any, size: int) -> int:
    """Return the bytes of the keys and values of one token in all layers, at `size` bytes a number."""
    own = attending_layers(text) - _taking_layers(text)
    return 2 * own * text.num_key_value_heads * head_width(text) * size


def state_bytes(text: Any, size: int) -> int:
    """Return the bytes of the states of one completion, of any length, in all gated delta-nets.

    They are inputs of a convolution, at `size` bytes a number, and a float32 matrix for each head.
    """
    if not recurs(text):
        return 0
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    inputs = (2 * keys + values) * text.linear_conv_kernel_dim * size
    matrices = 4 * values * text.linear_key_head_dim
    return (text.num_hidden_layers - attending_layers(text)) * (inputs + matrices)
