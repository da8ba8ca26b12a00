"""The base of families with a SigLIP vision tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR
from vlmrl.models.parts.tiled_image import ImageFamily

VISION = {"vision_use_head": False}
"""Fields of a small model's tower."""


@dataclass(frozen=True)
class SiglipFamily(ImageFamily):
    """The base of families with a SigLIP tower: weights are saved under the published names.

    transformers (5.19) leaves `vision_model` out of the names of the tower, which vLLM refuses.
    """

    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("model.vision_tower.",),
        "projector": ("model.multi_modal_projector.",),
        "language": ("model.language_model.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ENCODER_LINEAR,
        "projector": ("linear_1", "linear_2"),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.encoder.layers",
    )
    shared: ClassVar[bool] = True

    def save(self, model: Any, folder: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Save the model, see `Family.save`; a head that is tied to the embeddings is left out."""
        named = self.published(model, weights)
        model.save_pretrained(folder, state_dict=named, save_original_format=False)

    def published(self, model: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights as in published checkpoints, see `Family.published`."""
        named = self.export_names(weights)
        if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
            named.pop(_published_name("lm_head.weight"), None)
        return named

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rename the weights as in published checkpoints, which vLLM expects."""
        return {_published_name(name): value for name, value in named.items()}


RENAMED = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.vision_model.": "vision_tower.vision_model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.": "",
}


def _published_name(name: str) -> str:
    ours = next(prefix for prefix in RENAMED if name.startswith(prefix))
    return RENAMED[ours] + name.removeprefix(ours)
