"""What families with a SigLIP vision tower share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.models.parts.tiled_image import ImageFamily

VISION = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 112,
    "patch_size": 14,
    "vision_use_head": False,
}
"""Of a small model's tower."""


@dataclass(frozen=True)
class SiglipFamily(ImageFamily):
    """Base of such families: weights go out under the names of published checkpoints.

    transformers (5.19) writes the tower's names without their `vision_model`, which vLLM refuses.
    """

    def save(self, model: Any, folder: str, weights: Mapping[str, torch.Tensor]) -> None:
        """See `Family.save`; a head that is tied to the embeddings is left out."""
        named = self.export_names(weights)
        if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
            del named[_published("lm_head.weight")]
        model.save_pretrained(folder, state_dict=named, save_original_format=False)

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The names of published checkpoints, which vLLM expects."""
        return {_published(name): value for name, value in named.items()}


RENAMED = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.vision_model.": "vision_tower.vision_model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.": "",
}


def _published(name: str) -> str:
    ours = next(prefix for prefix in RENAMED if name.startswith(prefix))
    return RENAMED[ours] + name.removeprefix(ours)
