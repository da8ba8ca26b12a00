"""DINOv2 as a vision tower of InternVL's kind: the same layers under other names.

Source: Oquab et al. 2023, "DINOv2: Learning Robust Visual Features without Supervision", arXiv:2304.07193;
both models as transformers writes them, where their features are equal to the bit.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_NAMES = (
    (".attention.q_proj.", ".attention.attention.query."),
    (".attention.k_proj.", ".attention.attention.key."),
    (".attention.v_proj.", ".attention.attention.value."),
    (".attention.projection_layer.", ".attention.output.dense."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".lambda_1", ".layer_scale1.lambda1"),
    (".lambda_2", ".layer_scale2.lambda1"),
)
"""Parts of the names of InternVL's weights, and what they are in DINOv2's."""


def tower_config(config: Any) -> dict[str, Any]:
    """Return the fields of an `internvl_vision` config with which it computes what DINOv2 computes."""
    return {
        "intermediate_size": int(config.hidden_size * config.mlp_ratio),
        "attention_bias": config.qkv_bias,
        "use_qk_norm": False,
        "norm_type": "layer_norm",
        "use_absolute_position_embeddings": True,
        "use_mean_pooling": False,
    }


def stored_name(key: str) -> str:
    """Return DINOv2's name of a weight of InternVL's tower."""
    for ours, theirs in _NAMES:
        key = key.replace(ours, theirs)
    return key


def resized_positions(table: torch.Tensor, positions: int) -> torch.Tensor:
    """Return a table [1, 1 + n * n, H] for `positions` = 1 + m * m, as DINOv2 itself does for other sides.

    The first row, of the whole image, stays; the others are a square, interpolated bicubically.
    """
    old, new = (math.isqrt(count - 1) for count in (table.shape[1], positions))
    square = table[:, 1:].unflatten(1, (old, old)).permute(0, 3, 1, 2)
    fitted = torch.nn.functional.interpolate(
        square.float(), size=(new, new), mode="bicubic", align_corners=False
    )
    return torch.cat([table[:, :1], fitted.to(table.dtype).flatten(2).mT], dim=1)
