"""Qwen2.5-Omni, its thinker: images, videos and recordings in one prompt; text comes out.

Source: Xu et al. 2025, "Qwen2.5-Omni Technical Report", arXiv:2503.20215.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import safetensors.torch
import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.media_types import Audio, Decoded, PilImage, Video
from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR
from vlmrl.models.parts.chat import chatml
from vlmrl.models.parts.media_features import placed, shown
from vlmrl.models.parts.mel_features import mel_features, sound_tokens
from vlmrl.models.parts.qwen import MediaFeatures, MropeFamily
from vlmrl.models.parts.qwen_layout import Layout, seconds_per_grid
from vlmrl.models.small import builder, qwen_models
from vlmrl.models.small.byte_tokenizer import Format
from vlmrl.schema import Encoded, Frame, MediaKind, Space

AUDIO, IMAGE, VIDEO = "<|AUDIO|>", "<|IMAGE|>", "<|VIDEO|>"
NAMED = {
    "audio_token": AUDIO,
    "image_token": IMAGE,
    "video_token": VIDEO,
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}
CHAT_TEMPLATE = chatml(
    image="<|vision_bos|><|IMAGE|><|vision_eos|>",
    video="<|vision_bos|><|VIDEO|><|vision_eos|>",
    audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
)
NESTED = "Qwen2_5OmniThinkerModel" in dir(transformers)
"""Whether towers and decoder are a model inside, as since transformers 5.21, or stand beside the head."""
VISION, SOUND, LANGUAGE = (
    ("model.visual", "model.audio_tower", "model.language_model")
    if NESTED
    else ("visual", "audio_tower", "model")
)
SMALL_VISION: Mapping[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_heads": 4,
    "patch_size": 14,
    "fullatt_block_indexes": [0, 1],
    "initializer_range": 0.05,
}
SMALL_AUDIO: Mapping[str, Any] = {
    "d_model": 96,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 192,
    "num_mel_bins": 40,
    "initializer_range": 0.05,
}


@dataclass(frozen=True, slots=True)
class OmniFeatures(MediaFeatures):
    """Also `heard[i]` [tokens, H]: features of some recordings, in order."""

    heard: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True)
class Qwen25Omni(MropeFamily):
    """Checkpoints of model types `qwen2_5_omni_thinker` and `qwen2_5_omni`, of which the thinker is taken.

    Of recordings and videos with sound, in the prompt's order, `input_features` is float32
    [sounds, mel, frames] and `feature_attention_mask` says which frames are sound.
    """

    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_omni_thinker", "qwen2_5_omni")
    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("qwen2_5_omni_talker", "qwen2_5_omni_token2wav"),
        "it speaks and writes no text; give the whole Qwen2.5-Omni, or its thinker",
    )
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image", "video", "audio")
    hears_videos: ClassVar[bool] = True
    space: ClassVar[Space] = "resized"
    media_tokens: ClassVar[tuple[str, ...]] = tuple(NAMED.values())
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": (f"{VISION}.patch_embed.", f"{VISION}.blocks."),
        "audio": (
            f"{SOUND}.conv1.",
            f"{SOUND}.conv2.",
            f"{SOUND}.layers.",
            f"{SOUND}.ln_post.",
            f"{SOUND}.audio_bos_eos_token.",
        ),
        "projector": (f"{VISION}.merger.", f"{SOUND}.proj."),
        "language": (f"{LANGUAGE}.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("q", "k", "v", "proj", "gate_proj", "up_proj", "down_proj"),
        "audio": ENCODER_LINEAR,
        "projector": ("0", "2", "proj"),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        f"{LANGUAGE}.layers",
        f"{VISION}.blocks",
        f"{SOUND}.layers",
    )

    unserved_videos: ClassVar[str] = "vLLM lays videos of Qwen2.5-Omni otherwise than transformers"

    def reader(self) -> Any:
        """Of a whole model the thinker alone is read, from the weights `thinker.*`."""
        thinker: Any = transformers.Qwen2_5OmniThinkerForConditionalGeneration
        # Else transformers tells of each weight that stays unread.
        thinker._keys_to_ignore_on_load_unexpected = [r"^talker\.", r"^token2wav\."]
        return thinker

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        """A small model of this architecture, see `Family.build`."""
        chat = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        model, tokenizer = builder.build(
            "Qwen2_5OmniThinkerForConditionalGeneration",
            lambda t: _config(build, t),
            build,
            corpus,
            seed,
            Format(special=(*chat, *NAMED.values()), named=NAMED),
        )
        config = model.config
        of_images, of_videos = qwen_models.pixel_settings(config.vision_config)
        return model, transformers.Qwen2_5OmniProcessor(
            image_processor=transformers.Qwen2VLImageProcessor(**of_images),
            video_processor=transformers.Qwen2VLVideoProcessor(**of_videos),
            feature_extractor=transformers.WhisperFeatureExtractor(
                feature_size=config.audio_config.num_mel_bins, return_attention_mask=True
            ),
            tokenizer=tokenizer,
            chat_template=CHAT_TEMPLATE,
        )

    # ------------------------------------------------------------------------------- prompts

    def adopt(self, processor: Any, config: Any) -> None:
        """The processor learns the ids of the placeholders and the positions of a second."""
        MropeFamily.adopt(self, processor, config)
        for kind in self.kinds:
            setattr(processor, f"{kind}_token_id", getattr(config, f"{kind}_token_id"))
        processor.tokens_per_second = config.position_id_per_seconds
        processor.tokens_per_chunk = int(processor.tokens_per_second * config.seconds_per_chunk)
        processor.sound_marks = (config.audio_start_token_id, config.audio_end_token_id)

    def frame(self, processor: Any, medium: Decoded | None) -> Frame:
        """As of its relatives; of a recording the length."""
        if isinstance(medium, Audio):
            return Frame(space=self.space, duration=medium.duration)
        return MropeFamily.frame(self, processor, medium)

    def _lay_video(
        self, processor: Any, layout: Layout, clip: Video, grid: tuple[int, int, int], heard: int
    ) -> None:
        """A video as one grid; with its sound, what is seen and heard in some seconds takes turns.

        Positions are those of transformers to the letter: the marks of sound stand at the positions
        of the marks of vision, and the last ones follow the last token, be it seen or heard.
        """
        place = np.indices(grid)
        # As transformers computes it, in float32: 25 * 0.08 is 2.
        seconds = place[0].astype(np.float32) * np.float32(seconds_per_grid(processor, clip))
        place[0] = (seconds * processor.tokens_per_second).astype(np.int64)
        seen = torch.from_numpy(place.reshape(3, -1)) + layout.start
        if not heard:
            layout.put([processor.video_token_id] * seen.shape[1], seen)
            return
        sound = torch.arange(layout.start, layout.start + heard).expand(3, -1)
        start, end = ([mark] for mark in processor.sound_marks)
        turns = [
            [(token, part) for part in _chunks(places, processor.tokens_per_chunk)]
            for token, places in (
                (processor.video_token_id, seen),
                (processor.audio_token_id, sound),
            )
        ]
        layout.put(start, torch.full((3, 1), layout.start - 1))
        for turn in itertools.zip_longest(*turns):
            for token, part in filter(None, turn):
                layout.put([token] * part.shape[1], part)
        layout.put(end, torch.full((3, 1), layout.start))
        layout.start -= 1

    def _sounds(
        self, processor: Any, media: Sequence[Decoded]
    ) -> tuple[dict[str, torch.Tensor], Iterator[int]]:
        sounds = [
            m.audio if isinstance(m, Video) else m for m in media if not isinstance(m, PilImage)
        ]
        heard = [sound for sound in sounds if sound is not None]
        tensors = mel_features(processor.feature_extractor, heard, whole=True)
        lengths = iter(sound_tokens(tensors["feature_attention_mask"]) if tensors else ())
        return tensors, iter([0 if sound is None else next(lengths) for sound in sounds])

    # ------------------------------------------------------------------------------- forward

    def visual(self, model: Any) -> Any:
        """The vision tower."""
        return model.get_submodule(VISION)

    def language(self, model: Any) -> Any:
        """The decoder, to which embeddings are given."""
        return model.get_submodule(LANGUAGE)

    def tower_features(self, model: Any, prompts: Sequence[Encoded]) -> OmniFeatures | None:
        """Both towers over all media of all prompts at once, with gradient."""
        seen = MropeFamily.tower_features(self, model, prompts)
        sounds = [p.tensors for p in prompts if "input_features" in p.tensors]
        if not sounds:
            return None if seen is None else OmniFeatures(seen.merged)
        mels = torch.cat([t["input_features"] for t in sounds]).to(model.device)
        mask = torch.cat([t["feature_attention_mask"] for t in sounds]).to(model.device)
        lengths = mask.sum(-1)
        tower = model.get_submodule(SOUND)
        out = tower(mels.permute(0, 2, 1)[mask.bool()].T, feature_lens=lengths)
        heard = out.last_hidden_state.split(sound_tokens(mask))
        return OmniFeatures(seen.merged if seen else (), heard=heard)

    def spread(
        self, features: MediaFeatures | None, prompts: Sequence[Encoded], rows: Sequence[int]
    ) -> OmniFeatures | None:
        """The features of every row's media, row after row; None if no row has any."""
        assert features is None or isinstance(features, OmniFeatures)
        if features is None:
            return None
        seen = MropeFamily.spread(self, features, prompts, rows)
        heard = tuple(features.heard[i] for i in shown(prompts, ("input_features",), rows))
        return OmniFeatures(seen.merged if seen else (), heard=heard) if seen or heard else None

    def embedded(
        self, model: Any, input_ids: torch.Tensor, features: MediaFeatures | None
    ) -> torch.Tensor:
        """Embeddings [B, T, H] with what is heard in its places."""
        embeds = model.get_input_embeddings()(input_ids)
        if not isinstance(features, OmniFeatures) or not features.heard:
            return embeds
        return placed(embeds, input_ids == model.config.audio_token_id, features.heard)

    # ------------------------------------------------------------------------------ on the disk

    def save(self, model: Any, folder: str, weights: Mapping[str, torch.Tensor]) -> None:
        """The thinker alone, under its published names, also where a whole model was read."""
        named = _published(model, weights)
        model.save_pretrained(folder, state_dict=named, save_original_format=False)

    def export(self, model: Any, folder: str, weights: Mapping[str, torch.Tensor]) -> None:
        """As a whole model that does not speak: vLLM knows no thinker alone."""
        thinker = copy.deepcopy(model.config)
        # To this vLLM listens, and it is True unless told; transformers listens to the thinker's.
        thinker.text_config.tie_word_embeddings = _tied(model)
        whole = transformers.Qwen2_5OmniConfig(
            thinker_config=thinker.to_dict(),
            enable_audio_output=False,
            architectures=["Qwen2_5OmniForConditionalGeneration"],
        )
        Path(folder).mkdir(parents=True, exist_ok=True)
        whole.to_json_file(f"{folder}/config.json", use_diff=False)
        named = self.export_names(_published(model, weights))
        file = f"{folder}/model.safetensors"
        safetensors.torch.save_file(
            {n: w.contiguous() for n, w in named.items()}, file, {"format": "pt"}
        )

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those of the whole model, as published."""
        return {f"thinker.{_beside_the_head(name)}": weight for name, weight in named.items()}


def _published(model: Any, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Under published names; a head that is tied to the embeddings is left out."""
    left_out = "lm_head.weight" if _tied(model) else None
    return {_beside_the_head(n): weight for n, weight in weights.items() if n != left_out}


def _tied(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def _beside_the_head(name: str) -> str:
    """A weight's name where towers and decoder are no model inside."""
    for ours, theirs in ((VISION, "visual"), (SOUND, "audio_tower"), (LANGUAGE, "model")):
        if name.startswith(f"{ours}."):
            return theirs + name.removeprefix(ours)
    return name


def _chunks(places: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Positions [3, N] cut where time passes the next multiple of `size`, counted from the first.

    After a leap over several multiples one token is cut off for each, as in transformers.
    """
    times = (places[0] - places[0, 0]).tolist()
    cuts = [0]
    for i, time in enumerate(times):
        if time >= len(cuts) * size:
            cuts.append(i)
    return [places[:, i:j] for i, j in itertools.pairwise([*cuts, len(times)])]


def _config(build: BuildConfig, tokenizer: Any) -> Any:
    config_class: Any = transformers.Qwen2_5OmniThinkerConfig
    parts = {"text": build.text, "vision": build.vision, "audio": build.audio}
    tokens = builder.token_fields(tokenizer)
    fixed = {"text": {*tokens}, "vision": {"out_hidden_size"}, "audio": {"output_dim"}}
    for part, overrides in parts.items():
        own = config_class.sub_configs[f"{part}_config"].__annotations__
        builder.check_fields(build, part, overrides, {*own} - fixed[part])
    text, width = builder.text_fields(build, {})
    vision, audio = {**SMALL_VISION, **build.vision}, {**SMALL_AUDIO, **build.audio}
    builder.head_dim("vision", "hidden_size", vision, "num_heads", 4)
    builder.head_dim("audio", "d_model", audio, "encoder_attention_heads", 1)
    text.setdefault("rope_parameters", qwen_models.mrope(width))
    tied = text.pop(builder.TIED, False)
    token = tokenizer.convert_tokens_to_ids
    return config_class(
        # The text config ties by default, and vLLM listens to it.
        text_config={**text, **tokens, builder.TIED: tied},
        vision_config={**vision, "out_hidden_size": text["hidden_size"]},
        audio_config={**audio, "output_dim": text["hidden_size"]},
        tie_word_embeddings=tied,
        image_token_index=token(IMAGE),
        video_token_index=token(VIDEO),
        audio_token_index=token(AUDIO),
        audio_start_token_id=token("<|audio_bos|>"),
        audio_end_token_id=token("<|audio_eos|>"),
        vision_start_token_id=token("<|vision_bos|>"),
        vision_end_token_id=token("<|vision_eos|>"),
    )
