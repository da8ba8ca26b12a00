"""The contract of a model family: everything the trainer must know about one architecture.

Each file under `parts/families/` is one; policy, engines and loader ask it and never look inside a model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from vlmrl.config import BuildConfig
from vlmrl.models import media_features
from vlmrl.models.chat import render_chat, render_reply
from vlmrl.models.frozen_towers import frozen_towers_of
from vlmrl.schema import Encoded, Frame, MediaKind, Prompt, Sample, Space
from vlmrl.schema.media import Decoded
from vlmrl.system import torchvision_shim  # noqa: F401  before any transformers import

Features = Any
"""What the towers computed from the media; opaque to everyone but the family."""

ATTENTION_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Linear layers of a language model's attention, for `Family.lora_targets` where its MLPs are experts."""
LANGUAGE_LINEAR = (*ATTENTION_LINEAR, "gate_proj", "up_proj", "down_proj")
"""Linear layers of a Llama-like language model, for `Family.lora_targets`."""
ENCODER_LINEAR = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
"""Linear layers of an encoder like CLIP's or Whisper's, for `Family.lora_targets`."""


@dataclass(frozen=True)
class Family:
    """The base class of families.

    In every method, `model` is the HF model itself; for a peft model it is `get_base_model()`.
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    """The `config.model_type` values of the checkpoints that it serves."""
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image",)
    """The kinds of media that it is trained on."""
    space: ClassVar[Space] = "pixel"
    """The coordinate space in which the model writes."""
    media_tokens: ClassVar[tuple[str, ...]] = ()
    """Token strings that must never be sampled."""
    turn_ends: ClassVar[tuple[str, ...]] = ()
    """Token strings that end a completion, the end of a turn first."""
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Tower (vision, audio, projector, language) -> prefixes of the HF model's parameter names.

    Every parameter is in exactly one tower.
    """
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Tower -> last parts of the names of its linear layers."""
    decoder_layers: ClassVar[tuple[str, ...]] = ()
    """Paths of the lists of layers that FSDP and gradient checkpointing wrap, the language model's first, the
    towers' in the order in which they run; a checkpoint may lack a tower."""
    unread: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the names of weights that no forward reads: they never have a gradient."""
    shared: ClassVar[bool] = False
    """Whether all layers attend through transformers' registries, or are delta-nets that masks can lead;
    `shared_forward` and `sequence_parallel` require it."""
    router: ClassVar[str] = ""
    """Path, in a decoder layer, of the module that chooses a token's experts; empty: there are none."""
    language_model: ClassVar[str] = "model.language_model"
    """Path of the decoder, which takes embeddings; for `decode` of the base class, as is the next."""
    media_token_id: ClassVar[str] = "image_token_id"
    """Field of the model's config with the id of the placeholder of its media."""
    two_way_media: ClassVar[bool] = False
    """Whether the tokens of an image attend to each other in both directions."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Related model types that cannot be trained -> why."""
    images_in_tiles: ClassVar[bool] = False
    """Whether several images of a prompt may be shown in one tile each (`model.several_images`)."""
    one_call: ClassVar[bool] = True
    """Whether the HF processor encodes a rendered prompt and its media in one call."""
    hears_videos: ClassVar[bool] = False
    """Whether the model takes the audio of videos."""
    saves_exports: ClassVar[bool] = False
    """Whether published checkpoints have the names of `export_names`, not those that transformers writes."""
    unserved: ClassVar[str] = ""
    """Why vLLM cannot serve the family at all; empty when it can."""
    unserved_videos: ClassVar[str] = ""
    """Why vLLM cannot serve its videos; empty when it can."""
    served_videos: ClassVar[int | None] = None
    """Most videos of one prompt that vLLM takes; None: as many as `max_videos` says."""

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """Build a small HF model (float32, random weights) of the real architecture, and its processor.

        The tokenizer is trained on `corpus`. Both can be saved with `save_pretrained` and are then
        loaded the way a real checkpoint is.
        """
        raise TypeError(f"{type(self).__name__} builds no small models")

    def reader(self) -> Any:
        """Return the transformers class whose `from_pretrained` reads its checkpoints."""
        import transformers

        return transformers.AutoModelForMultimodalLM

    def adopt(self, processor: object, config: object) -> None:
        """Store on a loaded processor what encoding needs and only the model's config knows."""

    def render(self, processor: object, sample: Sample, instruction: str) -> str:
        """Render the chat prompt as `render_chat`: ONE placeholder per medium, generation prompt included."""
        return render_chat(self, processor, sample, instruction)

    def encode(self, processor: object, text: str, media: Sequence[Decoded]) -> Encoded:
        """Encode a rendered prompt and its decoded media, in prompt order: ids, tensors, positions."""
        raise TypeError(f"{type(self).__name__} must define encode")

    def reply(self, processor: object, parts: Sequence[str | Decoded]) -> str:
        """Render an observation as it follows the policy's end of turn, up to the policy's next turn.

        One placeholder per medium; special tokens that a text spells out are broken up.

        Raises:
            UserError: The chat template or the family cannot show it.
        """
        return render_reply(self, processor, parts)

    def extend(
        self,
        processor: object,
        text: str,
        media: Sequence[Decoded],
        start: float,
        seen: Sequence[Decoded] = (),
    ) -> Encoded:
        """Encode what `reply` rendered, tokenized this once, at positions from `start` on.

        `seen` are the media that were shown before, which some families count.
        """
        return shift(self.encode(processor, text, media), start)

    def join(self, before: Encoded, after: Encoded) -> Encoded:
        """Join two stretches; `after` begins at `before.next_position`."""
        tensors = dict(before.tensors)
        for name, more in after.tensors.items():
            tensors[name] = (
                self._join_tensors(name, tensors[name], more) if name in tensors else more
            )
        return Encoded(
            before.ids + after.ids,
            before.compact_ids + after.compact_ids,
            tensors,
            torch.cat([before.position_ids, after.position_ids], 1),
            after.next_position,
        )

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        return torch.cat([before, after])

    def frame(self, processor: object, medium: Decoded | None) -> Frame:
        """Return the frame of a prompt from its first medium (None: the prompt has no media)."""
        raise TypeError(f"{type(self).__name__} must define frame")

    def image_tokens(self, processor: object, width: int, height: int) -> int:
        """Count the placeholders of a single image of this size in `ids`; UserError if it is refused."""
        raise TypeError(f"{type(self).__name__} must define image_tokens")

    def images_tokens(self, processor: object, sizes: Sequence[tuple[int, int]]) -> int:
        """Count the placeholders of all images of a prompt, of these widths and heights."""
        return sum(self.image_tokens(processor, *size) for size in sizes)

    def unserved_prompt(self, processor: object, images: int) -> str:
        """Return why vLLM cannot serve a prompt with this many images in our layout; empty: it can."""
        return ""

    def served(self, processor: object, prompt: Prompt) -> Prompt:
        """Return a prompt as vLLM is to be shown it: its media, and in `encoded.ids` what vLLM makes of it.

        The base class returns the prompt itself.
        """
        return prompt

    def media_token_ids(self, processor: object) -> tuple[int, ...]:
        """Return the ids that must never be sampled: a sampled placeholder breaks the next forward."""
        return _ids_of(processor, self.media_tokens)

    def stop_token_ids(self, processor: Any) -> tuple[int, ...]:
        """Return the ids that end a completion: `turn_ends`, then the tokenizer's own end token."""
        own = processor.tokenizer.eos_token_id
        ids = [*_ids_of(processor, self.turn_ends), *([] if own is None else [own])]
        return tuple(dict.fromkeys(ids))

    def tower_features(self, model: object, prompts: Sequence[Encoded]) -> Features | None:
        """Return what the towers find in the media, each prompt once; None if no prompt has media.

        Towers that train run here, with gradient; `frozen_towers` says when frozen ones do.
        """
        frozen = frozen_towers_of(model)
        if frozen is None:
            return self.run_towers(model, prompts)
        return frozen.features(self, model, prompts)

    def run_towers(self, model: object, prompts: Sequence[Encoded]) -> Features | None:
        """Run the towers ONCE per prompt, with gradient; return None if no prompt has media.

        Features keep the order of the prompts, so that `spread` can pick them by prompt.
        """
        raise TypeError(f"{type(self).__name__} must define run_towers")

    def media_of(self, model: object, prompt: Encoded) -> list[Encoded]:
        """Return the media of a prompt, in order, each as a prompt that shows nothing else.

        These are what frozen towers see at a time. The base class takes all media of a prompt for one.
        """
        return [prompt] if prompt.tensors else []

    def join_features(self, found: Sequence[Sequence[Features]]) -> Features:
        """Join, for each prompt, the features of its media, into what `run_towers` returns.

        The base class expects `ByPrompt`. At least one prompt has media.
        """
        return media_features.join(found)

    def spread(
        self, features: Features | None, prompts: Sequence[Encoded], rows: Sequence[int]
    ) -> Features | None:
        """Return the features for a batch of rows, where row i shows prompt `rows[i]`.

        Gradient flows back to the towers; nothing is computed again. The base class expects
        `features` to be `ByPrompt`. None when no row has media.
        """
        return media_features.spread(features, rows)

    def decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        features: Features | None,
        cache: Any = None,
    ) -> torch.Tensor:
        """Compute the last hidden states [B, T, H], after the final norm and before the head.

        `input_ids` is [B, T], `position_ids` [3, B, T] (M-RoPE) or [1, B, T]. `features` belong to
        the media in `input_ids`, row after row. `cache` is a transformers Cache to be filled, or
        None; with a cache, `attention_mask` [B, past + T] covers the past as well.

        The base class is for plain positions and features [tokens, H]: it puts them in the places of
        `media_token_id` and calls the decoder alone.
        """
        embeds, places = model.get_input_embeddings()(input_ids), None
        if features is not None:
            places = input_ids == getattr(model.config, self.media_token_id)
            embeds = media_features.place_features(embeds, places, features)
        marks = {}
        if self.two_way_media:
            marks["token_type_ids"] = None if places is None else places.long()
        out = model.get_submodule(self.language_model)(
            inputs_embeds=embeds,
            attention_mask=attention_mask,
            position_ids=position_ids[0],
            past_key_values=cache,
            use_cache=cache is not None,
            **marks,
        )
        return out.last_hidden_state

    def routers(self, model: Any) -> dict[int, Any]:
        """Return the modules that choose experts, by the numbers of their layers, in order.

        Each returns the logits [N, experts], weights [N, k] and numbers [N, k] of the experts of N tokens.
        """
        layers = model.get_submodule(self.decoder_layers[0]) if self.router else ()
        numbered = (
            (n, dict(layer.named_modules()).get(self.router)) for n, layer in enumerate(layers)
        )
        return {number: router for number, router in numbered if router is not None}

    def weigh(self, router: object, logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the weights [N, k] that a router with these logits [N, .] gives these experts [N, k]."""
        raise TypeError(f"{type(self).__name__} must define weigh")

    def head(self, model: Any) -> torch.nn.Module:
        """Return the output projection: hidden [..., H] -> logits [..., V]."""
        return model.get_output_embeddings()

    def save(self, model: Any, folder: str, weights: Mapping[str, torch.Tensor]) -> None:
        """Save the model with these weights (under in-memory names) so that `from_pretrained` reads it."""
        if self.saves_exports:
            named = self.published(model, weights)
            model.save_pretrained(folder, state_dict=named, save_original_format=False)
        else:
            model.save_pretrained(folder, state_dict=dict(weights))

    def published(self, model: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return weights as `save` writes them, whole layers at a time, of tied ones the first name."""
        if self.saves_exports:
            left_out = {"lm_head.weight"} if is_tied(model) else set()
            return self.export_names({n: w for n, w in weights.items() if n not in left_out})
        from transformers.core_model_loading import revert_weight_conversion  # after the shim

        ignored = model._keys_to_ignore_on_save or ()
        kept = {name: weight for name, weight in weights.items() if name not in ignored}
        return dict(revert_weight_conversion(model, kept))

    def export_config(self, model: Any, folder: str) -> None:
        """Write the config by which vLLM makes this model.

        Not by the model's `save_pretrained`, which with several processes writes on one of them only.
        """
        self.served_config(model).save_pretrained(folder)

    def served_config(self, model: Any) -> Any:
        """Return that config; the base class returns the model's own."""
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        return config

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rename the weights as vLLM expects; the base class keeps the in-memory names."""
        return dict(named)


def is_tied(model: Any) -> bool:
    """Return whether the head has the weights of the embeddings."""
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def family_of(model_type: str) -> Family:
    """Return the family that serves checkpoints of this `config.model_type`; UserError if none does."""
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


def shift(encoded: Encoded, start: float) -> Encoded:
    """Return the stretch with its positions from `start` on, which began at 0."""
    positions = encoded.position_ids + start
    return replace(encoded, position_ids=positions, next_position=encoded.next_position + start)


def _ids_of(processor: Any, tokens: Sequence[str]) -> tuple[int, ...]:
    ids = (processor.tokenizer.backend_tokenizer.token_to_id(token) for token in tokens)
    return tuple(i for i in ids if i is not None)
