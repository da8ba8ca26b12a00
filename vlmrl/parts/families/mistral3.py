"""Mistral Small 3.1 and 3.2: a Pixtral tower for images of any shape, four patches a token, a row a line.

Source: Agrawal et al. 2024, "Pixtral 12B", arXiv:2410.07073. Nothing is published on boxes; we ask for
thousandths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import transformers

from vlmrl.errors import UserError
from vlmrl.models.base import LANGUAGE_LINEAR
from vlmrl.parts.families.small.builder import Format
from vlmrl.parts.families.small.image_models import SmallImageModel
from vlmrl.parts.families.tiled_like import ImageFamily, SiglipFamily
from vlmrl.schema import Frame, Space
from vlmrl.schema.media import Decoded, PilImage

IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
TURNS = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")


def write_template(kind: str, shown: str, between: str = "") -> str:
    """Write Mistral's chat template: parts of type `kind` are `shown`, two texts in a row have `between`."""
    join = f"{{% if loop.previtem is defined and loop.previtem['type'] == 'text' %}}{between}{{% endif %}}"
    return (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'system' %}[SYSTEM_PROMPT]{% elif message['role'] == 'user' %}[INST]"
        "{% endif %}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        f"{{% for part in message['content'] %}}{{% if part['type'] == '{kind}' %}}{shown}"
        f"{{% else %}}{join}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}"
        "{% if message['role'] == 'system' %}[/SYSTEM_PROMPT]{% elif message['role'] == 'user' %}[/INST]"
        "{% else %}{{ eos_token }}{% endif %}{% endfor %}"
    )


@dataclass(frozen=True)
class Mistral3(ImageFamily):
    """The family of checkpoints of model type `mistral3`.

    `pixel_values` is float32 [images, 3, height, width] with zeros right of and below an image that is
    smaller than the largest; `image_sizes` is int64 [images, 2], height and width without them.
    """

    model_types: ClassVar[tuple[str, ...]] = ("mistral3",)
    space: ClassVar[Space] = "norm1000"
    placeholder: ClassVar[str] = IMAGE
    turn_ends: ClassVar[tuple[str, ...]] = ("</s>",)
    media_tokens: ClassVar[tuple[str, ...]] = (IMAGE, BREAK, END)
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = SiglipFamily.towers
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": LANGUAGE_LINEAR,  # its layers are Llama's
        "projector": ("merging_layer", "linear_1", "linear_2"),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        "model.language_model.layers",
        "model.vision_tower.transformer.layers",
    )
    shared: ClassVar[bool] = True
    tensor_names: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")
    small: ClassVar[SmallImageModel] = SmallImageModel(
        model="Mistral3ForConditionalGeneration",
        config="Mistral3Config",
        text="mistral",
        vision="pixtral",
        format=Format(
            special=("<unk>", "<s>", "</s>", "<pad>", *TURNS, *media_tokens),
            roles=(),
            end="</s>",
            pad="<pad>",
            start="<s>",
        ),
        text_fields={"sliding_window": None},
        vision_fields={"initializer_range": 0.05, "image_size": 224},
        token_ids={"image_token_index": IMAGE},
        shrink=2,
    )

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        vision = config.vision_config
        return transformers.PixtralProcessor(
            image_processor=transformers.PixtralImageProcessor(
                size={"longest_edge": vision.image_size}, patch_size=vision.patch_size
            ),
            tokenizer=tokenizer,
            patch_size=vision.patch_size,
            spatial_merge_size=config.spatial_merge_size,
            chat_template=write_template("image", IMAGE),
        )

    def frame(self, processor: Any, medium: Decoded | None) -> Frame:
        if not isinstance(medium, PilImage):
            return Frame(space=self.space)
        width, height = _fit(processor, *medium.size)
        return Frame(*medium.size, space=self.space, resized_width=width, resized_height=height)

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        """Count the placeholders of its cells, without the tokens that end a row."""
        width, height = _fit(processor, width, height)
        side = processor.patch_size * processor.spatial_merge_size
        return (width // side) * (height // side)

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return _pad([before, after]) if name == "pixel_values" else torch.cat([before, after])

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [tokens of all images, H]."""
        pixels = _pad([t["pixel_values"] for t in tensors])
        sizes = torch.cat([t["image_sizes"] for t in tensors])
        out = model.model.get_image_features(
            pixel_values=pixels.to(model.device, model.model.vision_tower.dtype),
            image_sizes=sizes.to(model.device),
            return_dict=True,
        )
        return torch.cat(out.pooler_output)


def _fit(processor: Any, width: int, height: int) -> tuple[int, int]:
    """Return the (width, height) to which the processor resizes an image; UserError if a side vanishes."""
    from transformers.image_utils import ChannelDimension
    from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size

    high, wide = get_resize_output_image_size(
        np.broadcast_to(np.uint8(0), (height, width, 3)),
        size=processor.image_processor.size["longest_edge"],
        patch_size=processor.patch_size * processor.spatial_merge_size,
        input_data_format=ChannelDimension.LAST,
    )
    if not high * wide:
        raise UserError(f"an image of {width}x{height} pixels is refused: it would become a line")
    return wide, high


def _pad(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join stacks of images [N, 3, height, width], each with zeros up to the largest height and width."""
    high, wide = (max(stack.shape[axis] for stack in images) for axis in (2, 3))
    return torch.cat(
        [torch.nn.functional.pad(x, (0, wide - x.shape[3], 0, high - x.shape[2])) for x in images]
    )
