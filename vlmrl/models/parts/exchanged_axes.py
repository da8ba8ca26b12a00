"""Reading experts whose axes files hold in another order, without a copy in memory.

transformers copies such weights while it reads them, so that every process would hold all experts of a
model of which it keeps a share. Views stay in the file until somebody slices them.
"""

from __future__ import annotations

from typing import Any

import torch

from vlmrl.system import torchvision_shim  # noqa: F401  before any transformers import

# isort: split
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Transpose, WeightConverter, WeightRenaming

EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


class Exchange(Transpose):
    """The last two axes of a weight exchanged, as a view, unless they already fit the model's."""

    @torch.no_grad()
    def convert(  # type: ignore[override]  # mypy takes the wrapped one for an object
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the one weight of `input_dict` under its name in the model."""
        (found,) = input_dict.values()
        weight = found[0] if isinstance(found, list) else found
        fits = weight.shape == kwargs["model"].get_parameter(kwargs["full_layer_name"]).shape
        name = self.get_target_pattern(input_dict, source_patterns, target_patterns)
        return {name: weight if fits else weight.transpose(self.dim0, self.dim1)}


def read_in_place(model_type: str) -> None:
    """Let transformers read the experts of this model type as views, from now on in this process."""
    converters: list[WeightConverter | WeightRenaming] = [
        WeightConverter(
            source_patterns=name,
            target_patterns=name,
            operations=[Exchange(1, 2, check_dims=True)],
        )
        for name in EXPERTS
    ]
    register_checkpoint_conversion_mapping(model_type, converters, overwrite=True)
