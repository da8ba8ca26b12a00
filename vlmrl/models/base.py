"""The contract of a model family: everything the trainer must know of one architecture.

One file under `models/` is one family; it holds a class named after the file (`qwen2_5_vl.py`:
`Qwen25Vl`). The policy, the engines and the loader ask the family and never look inside a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlmrl.config import BuildConfig
from vlmrl.media_types import Decoded
from vlmrl.schema import Encoded, Frame, MediaKind, Sample, Space
from vlmrl.system import torchvision_shim  # noqa: F401  before any transformers import

Features = Any
"""What the towers made of media: opaque to everyone but the family."""

LANGUAGE_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a language model like Llama, for `Family.lora_targets`."""
ENCODER_LINEAR = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
"""Those of an encoder like CLIP's or Whisper's."""


@dataclass(frozen=True)
class Family:
    """Base of families.

    Class variables: `model_types` (`config.model_type` of the checkpoints it serves), `kinds` (of
    media that it is trained on), `space` (in which the model writes coordinates), `media_tokens`
    (token strings that must never be sampled), `turn_ends` (token strings that end a completion, the
    end of a turn first), `towers` (vision, projector, language -> prefixes of the HF model's
    parameter names; every parameter is in exactly one tower), `lora_targets` (tower -> last parts of
    its linear layers' names), `decoder_layers` (module paths that FSDP or checkpointing wraps),
    `shared` (all layers attend through transformers' registries, so that `shared_forward` gives the
    same numbers).

    `model` is always the HF model itself; of a peft model its `get_base_model()`.
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image",)
    space: ClassVar[Space] = "pixel"
    media_tokens: ClassVar[tuple[str, ...]] = ()
    turn_ends: ClassVar[tuple[str, ...]] = ()
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    decoder_layers: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[bool] = False
    refused: ClassVar[Mapping[str, str]] = {}
    """Model types of its relatives that cannot be trained -> why."""
    hears_videos: ClassVar[bool] = False
    """Whether videos are shown with their sound."""
    unserved_videos: ClassVar[str] = ""
    """Why vLLM cannot show it videos; empty: it can."""

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """A small HF model (fp32, random weights) and its processor, of the real architecture.

        The tokenizer is trained on `corpus`. Both can be saved with `save_pretrained` and load
        again by the path a real checkpoint takes.
        """
        raise TypeError(f"{type(self).__name__} builds no small models")

    def reader(self) -> Any:
        """The class of transformers whose `from_pretrained` reads its checkpoints."""
        import transformers

        return transformers.AutoModelForMultimodalLM

    def adopt(self, processor: Any, config: Any) -> None:
        """Note on a loaded processor what encoding needs and only the model's config says."""

    def render(self, processor: Any, sample: Sample, instruction: str) -> str:
        """The chat prompt as text, ONE placeholder per medium, generation prompt included."""
        raise TypeError(f"{type(self).__name__} must define render")

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        """Ids, media tensors and positions of one rendered prompt with its decoded media, in prompt order."""
        raise TypeError(f"{type(self).__name__} must define encode")

    def frame(self, processor: Any, medium: Decoded | None) -> Frame:
        """The frame of a prompt whose first medium this is; None: it has none."""
        raise TypeError(f"{type(self).__name__} must define frame")

    def image_tokens(self, processor: Any, width: int, height: int) -> int:
        """How many placeholders an image of this size takes in `ids`, from its size alone.

        Raises:
            UserError: the processor refuses this size (e.g. aspect ratio); the message says why.
        """
        raise TypeError(f"{type(self).__name__} must define image_tokens")

    def media_token_ids(self, processor: Any) -> tuple[int, ...]:
        """Ids that must never be sampled: a sampled placeholder breaks the next forward."""
        return _known(processor, self.media_tokens)

    def stop_token_ids(self, processor: Any) -> tuple[int, ...]:
        """Ids that end a completion: the family's, and the tokenizer's own end token."""
        own = processor.tokenizer.eos_token_id
        ids = [*_known(processor, self.turn_ends), *([] if own is None else [own])]
        return tuple(dict.fromkeys(ids))

    def tower_features(self, model: Any, prompts: Sequence[Encoded]) -> Features | None:
        """Run the towers ONCE per prompt, with gradient; None if no prompt has media.

        Features keep the prompts' order, so that `spread` can pick them by prompt.
        """
        raise TypeError(f"{type(self).__name__} must define tower_features")

    def spread(
        self, features: Features | None, prompts: Sequence[Encoded], rows: Sequence[int]
    ) -> Features | None:
        """Features for a batch of rows, row i showing prompt `rows[i]`.

        Gradient flows back to the towers; nothing is computed again.
        """
        raise TypeError(f"{type(self).__name__} must define spread")

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: Features | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Hidden states [B, T, H] of the last layer, after the final norm and before the head.

        `input_ids` [B, T], `position_ids` [3, B, T] (M-RoPE) or [1, B, T]. `features` are those of
        the media among `input_ids`, row after row. `cache` is a transformers Cache that is filled,
        or None; with one, `attention_mask` [B, past + T] covers the past too.
        """
        raise TypeError(f"{type(self).__name__} must define decode")

    def head(self, model: Any) -> torch.nn.Module:
        """The output projection: hidden [.., H] -> logits [.., V]."""
        return model.get_output_embeddings()

    def save(self, model: Any, folder: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Write a model with these weights (under its in-memory names) as `from_pretrained` reads it."""
        model.save_pretrained(folder, state_dict=dict(weights))

    def export(self, model: Any, folder: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Write a model with these weights as vLLM reads it; the base: as `save`."""
        self.save(model, folder, weights)

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Weights under the names vLLM expects; the base keeps the in-memory names."""
        return dict(named)


def family_of(model_type: str) -> Family:
    """The family that serves checkpoints of `config.model_type`.

    Raises:
        UserError: none does; the message lists what is served.
    """
    from vlmrl import plugins
    from vlmrl.errors import UserError

    served: dict[str, str] = {}
    for name in plugins.names("family"):
        family = plugins.build("family", name)
        if model_type in family.model_types:
            return family
        if model_type in family.refused:
            raise UserError(f"model type {model_type!r}: {family.refused[model_type]}")
        served.update(dict.fromkeys(family.model_types, name))
    raise UserError(
        f"no family serves model type {model_type!r}{plugins.nearest(model_type, sorted(served))}"
    )


def _known(processor: Any, tokens: Sequence[str]) -> tuple[int, ...]:
    ids = (processor.tokenizer.backend_tokenizer.token_to_id(token) for token in tokens)
    return tuple(i for i in ids if i is not None)
