"""The base of families with a vision tower of square tiles and plain positions.

An image becomes one or several tiles of one size. The HF processor decides which tiles and which tokens
around them, so it encodes every prompt, and none of its rules are repeated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.media_types import Decoded, PilImage
from vlmrl.models.base import Family, shift
from vlmrl.models.parts import media_features
from vlmrl.models.parts.chat import render_chat
from vlmrl.models.parts.reply import render_reply
from vlmrl.models.small import image_models
from vlmrl.schema import Encoded, Frame, Sample


@dataclass(frozen=True)
class ImageFamily(Family):
    """The base of families that take images as tiles; a subclass computes the features of images."""

    placeholder: ClassVar[str]
    """The token that the chat template writes for an image."""
    language_model: ClassVar[str] = "model.language_model"
    """The path of the decoder, which takes embeddings."""
    small: ClassVar[image_models.SmallImageModel]
    """The recipe of the family's small models."""

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """Build a small model of this architecture, see `Family.build`."""
        model, tokenizer = image_models.build(self.small, build, corpus, seed)
        processor = self.small_processor(model.config, tokenizer)
        model.generation_config.eos_token_id = list(self.stop_token_ids(processor))
        return model, processor

    def small_processor(self, config: Any, tokenizer: Any) -> Any:
        """Build the processor of a small model with this config."""
        raise TypeError(f"{type(self).__name__} must define small_processor")

    def image_features(self, model: Any, tensors: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """Compute the features [..., H] of all images of all prompts, in order."""
        raise TypeError(f"{type(self).__name__} must define image_features")

    # ------------------------------------------------------------------------------- prompts

    def render(self, processor: Any, sample: Sample, instruction: str) -> str:
        """Render the chat prompt, see `render_chat`."""
        return render_chat(self, processor, sample, instruction)

    def reply(self, processor: Any, parts: Sequence[str | Decoded]) -> str:
        """Render an observation, see `render_reply`."""
        return render_reply(self, processor, parts)

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Encode a prompt as the HF processor does: ids, `tensor_names`, and positions [1, T] from 0.

        Raises:
            UserError: The numbers of placeholders and images differ, or an image is refused.
        """
        return self._process(processor, text, media, adds_special_tokens(processor, text))

    def extend(self, processor: Any, text: str, media: Sequence[Decoded], start: int) -> Encoded:
        """Encode an observation as `encode` does, without a start token; see `Family.extend`."""
        return shift(self._process(processor, text, media, False), start)

    def _process(
        self, processor: Any, text: str, media: Sequence[Decoded], special: bool
    ) -> Encoded:
        compact = processor.tokenizer(text, add_special_tokens=special)["input_ids"]
        places = text.count(self.placeholder)  # which is not one token in every tokenizer
        if places != len(media):
            raise UserError(f"the prompt has {places} image placeholders for {len(media)} images")
        try:
            out = processor(
                text=[text],
                images=list(media) or None,
                add_special_tokens=special,
                return_tensors="pt",
            )
        except ValueError as error:
            raise UserError(f"the images are refused: {error}") from error
        ids = out.pop("input_ids")[0].tolist()
        tensors = {key: out[key] for key in self.tensor_names if key in out}
        positions = torch.arange(len(ids))[None]
        return Encoded(tuple(ids), tuple(compact), tensors, positions, len(ids))

    tensor_names: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """The tensors of the HF processor that the tower needs; each family documents their shapes."""

    def frame(self, processor: Any, medium: Decoded | None) -> Frame:
        """Return the size of the first image, with the family's space."""
        if not isinstance(medium, PilImage):
            return Frame(space=self.space)
        return Frame(*medium.size, space=self.space)

    # ------------------------------------------------------------------------------- forward

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> media_features.ByPrompt | None:
        """Compute the features [tokens, H] of the images of each prompt, with gradient."""
        seen = [p.tensors for p in prompts if p.tensors]
        if not seen:
            return None
        features = self.image_features(model, seen)
        return media_features.split_by_prompt(features, prompts, model.config.image_token_id)

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: media_features.ByPrompt | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Compute hidden states [B, T, H]; `features` replace the placeholders of `input_ids` in order."""
        embeds, places = model.get_input_embeddings()(input_ids), None
        if features is not None:
            places = input_ids == model.config.image_token_id
            embeds = media_features.place_features(embeds, places, features)
        out = self.run(model, embeds, places, attention_mask, position_ids[0], cache)
        return out.last_hidden_state

    def run(
        self,
        model: Any,
        embeds: torch.Tensor,
        places: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: Any,
    ) -> Any:
        """Run the decoder on embeddings [B, T, H]; `places` [B, T] marks images, if there are any."""
        return model.get_submodule(self.language_model)(
            inputs_embeds=embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=cache is not None,
        )


def adds_special_tokens(processor: Any, text: str) -> bool:
    """Return whether the tokenizer adds the start token; False when the chat template has written it."""
    start = processor.tokenizer.bos_token
    return start is None or not text.startswith(start)
