"""Qwen3-VL with a mixture of experts: the same tower, prompts and positions, other language layers.

Source: Bai et al. 2025, "Qwen3-VL Technical Report", arXiv:2511.21631.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Transpose, WeightConverter, WeightRenaming

from vlmrl.errors import UserError
from vlmrl.models.base import ATTENTION_LINEAR
from vlmrl.parts.families.qwen3_vl import Qwen3Vl
from vlmrl.parts.families.small.qwen_models import SmallQwenModel
from vlmrl.system import torchvision_shim  # noqa: F401  before any transformers import

# --------------------------------------------------------------------------------------------------
# Reading experts whose axes files hold in another order, without a copy in memory.
#
# transformers copies such weights while it reads them, so that every process would hold all experts of a
# model of which it keeps a share. Views stay in the file until somebody slices them.


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
        (stored,) = input_dict.values()
        weight = stored[0] if isinstance(stored, list) else stored
        fits = weight.shape == kwargs["model"].get_parameter(kwargs["full_layer_name"]).shape
        name = self.get_target_pattern(input_dict, source_patterns, target_patterns)
        return {name: weight if fits else weight.transpose(self.dim0, self.dim1)}


@dataclass(frozen=True)
class Qwen3VlMoe(Qwen3Vl):
    """The family of checkpoints of model type `qwen3_vl_moe`.

    The experts of a layer are two weights, [experts, 2 * width, H] and [experts, H, width]. Published
    files hold them with the last two axes exchanged; so do what we save, and what vLLM is given.
    """

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl_moe",)
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Qwen3Vl.lora_targets,
        "language": ATTENTION_LINEAR,
    }
    router: ClassVar[str] = "mlp.gate"
    saves_exports: ClassVar[bool] = True
    small: ClassVar[SmallQwenModel] = replace(
        Qwen3Vl.small,
        model="Qwen3VLMoeForConditionalGeneration",
        config="Qwen3VLMoeConfig",
        text={
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "norm_topk_prob": True,  # transformers always does; vLLM asks
        },
    )

    def reader(self) -> Any:
        """Return the transformers class that reads its checkpoints, experts as views of the files."""
        converters: list[WeightConverter | WeightRenaming] = [
            WeightConverter(name, name, operations=[Exchange(1, 2, check_dims=True)])
            for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
        ]
        register_checkpoint_conversion_mapping("qwen3_vl_moe", converters, overwrite=True)
        return super().reader()

    def adopt(self, processor: Any, config: Any) -> None:
        """Store on the processor what encoding needs, and with the text whether the head is tied.

        vLLM asks the config of the text, whose default is yes; transformers asks that of the model.

        Raises:
            UserError: the experts of a file are square: transformers tells by their shape whether their
                axes are exchanged.
        """
        super().adopt(processor, config)
        text = config.text_config
        text.tie_word_embeddings = config.tie_word_embeddings
        if text.hidden_size in (text.moe_intermediate_size, 2 * text.moe_intermediate_size):
            raise UserError(
                f"qwen3_vl_moe: moe_intermediate_size: expected neither hidden_size "
                f"({text.hidden_size}) nor half of it, got {text.moe_intermediate_size}: the layout of "
                "such experts in a file cannot be told"
            )

    def weigh(self, router: object, logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the softmax over these experts alone, see `Family.weigh`."""
        return share_chosen(logits, experts)

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights, those of the experts in the layout of published checkpoints."""
        return {
            name: weight.transpose(1, 2).contiguous() if ".mlp.experts." in name else weight
            for name, weight in named.items()
        }


def share_chosen(logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Return the softmax [N, k] over these experts [N, k] alone, of logits [N, .]."""
    weights = logits.softmax(-1, dtype=torch.float).gather(1, experts)
    return (weights / weights.sum(-1, keepdim=True)).to(logits.dtype)
