"""Qwen2.5-Omni's thinker: images, videos and audio in one prompt, text as output.

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
import torch
import transformers

from vlmrl.config import BuildConfig
from vlmrl.models.base import ENCODER_LINEAR, LANGUAGE_LINEAR, is_tied
from vlmrl.models.media_features import (
    count_audio_tokens,
    make_mel_features,
    media_of_rows,
    place_features,
    stand_alone,
)
from vlmrl.parts.families.qwen_like import (
    MediaFeatures,
    MropeFamily,
    PromptLayout,
    seconds_per_grid,
)
from vlmrl.parts.families.small import omni_model
from vlmrl.parts.families.small.omni_model import SmallOmniModel
from vlmrl.schema import Encoded, Frame, MediaKind, Space
from vlmrl.schema.media import Audio, Decoded, PilImage, Video

NESTED = "Qwen2_5OmniThinkerModel" in dir(transformers)
"""Whether towers and decoder are submodules of `model`, as since transformers 5.21, or of the whole."""
VISION_PATH, AUDIO_PATH, LANGUAGE_PATH = (
    ("model.visual", "model.audio_tower", "model.language_model")
    if NESTED
    else ("visual", "audio_tower", "model")
)


@dataclass(frozen=True, slots=True)
class OmniFeatures(MediaFeatures):
    """Features of images, videos and, in order, of audio: `audio[i]` is [tokens, H]. Audio has no levels."""

    audio: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True)
class Qwen25Omni(MropeFamily):
    """The family of model types `qwen2_5_omni_thinker` and `qwen2_5_omni` (only its thinker).

    For the audios and the videos with audio, in prompt order, `input_features` is float32
    [audios, mel, frames], and `feature_attention_mask` marks the frames that are not padding.
    """

    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_omni_thinker", "qwen2_5_omni")
    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("qwen2_5_omni_talker", "qwen2_5_omni_token2wav"),
        "it speaks and writes no text; use the whole Qwen2.5-Omni or its thinker",
    )
    kinds: ClassVar[tuple[MediaKind, ...]] = ("image", "video", "audio")
    hears_videos: ClassVar[bool] = True
    space: ClassVar[Space] = "resized"
    media_tokens: ClassVar[tuple[str, ...]] = tuple(omni_model.QWEN2_5.named.values())
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": (f"{VISION_PATH}.patch_embed.", f"{VISION_PATH}.blocks."),
        "audio": (
            f"{AUDIO_PATH}.conv1.",
            f"{AUDIO_PATH}.conv2.",
            f"{AUDIO_PATH}.layers.",
            f"{AUDIO_PATH}.ln_post.",
            f"{AUDIO_PATH}.audio_bos_eos_token.",
        ),
        "projector": (f"{VISION_PATH}.merger.", f"{AUDIO_PATH}.proj."),
        "language": (f"{LANGUAGE_PATH}.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("q", "k", "v", "proj", "gate_proj", "up_proj", "down_proj"),
        "audio": ENCODER_LINEAR,
        "projector": ("0", "2", "proj"),
        "language": LANGUAGE_LINEAR,
    }
    decoder_layers: ClassVar[tuple[str, ...]] = (
        f"{LANGUAGE_PATH}.layers",
        f"{VISION_PATH}.blocks",
        f"{AUDIO_PATH}.layers",
    )
    unread: ClassVar[tuple[str, ...]] = (f"{AUDIO_PATH}.audio_bos_eos_token.",)

    saves_exports: ClassVar[bool] = True
    unserved_videos: ClassVar[str] = (
        "vLLM lays out videos of Qwen2.5-Omni differently from transformers"
    )
    thinker: ClassVar[SmallOmniModel] = omni_model.QWEN2_5
    speakers: ClassVar[tuple[str, ...]] = ("talker", "token2wav")
    """What a whole model has beside its thinker."""

    def reader(self) -> Any:
        """Return the class that reads only the thinker of a whole model, from the weights `thinker.*`."""
        thinker: Any = getattr(transformers, self.thinker.model)
        # Otherwise transformers reports every weight that it does not read.
        thinker._keys_to_ignore_on_load_unexpected = [rf"^{part}\." for part in self.speakers]
        return thinker

    def build(self, build: BuildConfig, corpus: Sequence[str], seed: int) -> tuple[Any, Any]:
        return omni_model.build(self.thinker, build, corpus, seed)

    # ------------------------------------------------------------------------------- prompts

    def adopt(self, processor: Any, config: Any) -> None:
        """Store on the processor what encoding needs, from the config of a thinker or of a whole model."""
        config = getattr(config, "thinker_config", config)
        MropeFamily.adopt(self, processor, config)
        for kind in self.kinds:
            setattr(processor, f"{kind}_token_id", getattr(config, f"{kind}_token_id"))
        processor.tokens_per_second = config.position_id_per_seconds
        if self.hears_videos:
            processor.tokens_per_chunk = int(processor.tokens_per_second * config.seconds_per_chunk)
            processor.audio_mark_ids = (config.audio_start_token_id, config.audio_end_token_id)

    def frame(self, processor: object, medium: Decoded | None) -> Frame:
        if isinstance(medium, Audio):
            return Frame(space=self.space, duration=medium.duration)
        return MropeFamily.frame(self, processor, medium)

    def _lay_video(
        self,
        processor: Any,
        layout: PromptLayout,
        video: Video,
        grid: tuple[int, int, int],
        audio_tokens: int,
    ) -> None:
        """Lay out a video as one grid, interleaved with its audio in chunks of some seconds.

        Positions are exactly those of transformers: the audio marks share the positions of the
        vision marks, and the last marks follow the last token of either.
        """
        indices = np.indices(grid)
        # As transformers computes it, in float32: 25 * 0.08 is 2.
        seconds = indices[0].astype(np.float32) * np.float32(seconds_per_grid(processor, video))
        indices[0] = (seconds * processor.tokens_per_second).astype(np.int64)
        seen = torch.from_numpy(indices.reshape(3, -1)) + layout.start
        if not audio_tokens:
            layout.put([processor.video_token_id] * seen.shape[1], seen)
            return
        heard = torch.arange(layout.start, layout.start + audio_tokens).expand(3, -1)
        start, end = ([mark] for mark in processor.audio_mark_ids)
        turns = [
            [(token, part) for part in _cut_chunks(places, processor.tokens_per_chunk)]
            for token, places in (
                (processor.video_token_id, seen),
                (processor.audio_token_id, heard),
            )
        ]
        layout.put(start, torch.full((3, 1), layout.start - 1))
        for turn in itertools.zip_longest(*turns):
            for token, part in filter(None, turn):
                layout.put([token] * part.shape[1], part)
        layout.put(end, torch.full((3, 1), layout.start))
        layout.start -= 1

    def _encode_audio(
        self, processor: Any, media: Sequence[Decoded]
    ) -> tuple[dict[str, torch.Tensor], Iterator[int]]:
        audios = [
            m.audio if isinstance(m, Video) else m for m in media if not isinstance(m, PilImage)
        ]
        heard = [audio for audio in audios if audio is not None]
        tensors = make_mel_features(processor.feature_extractor, heard, whole=True)
        lengths = iter(count_audio_tokens(tensors["feature_attention_mask"]) if tensors else ())
        return tensors, iter([0 if audio is None else next(lengths) for audio in audios])

    # ------------------------------------------------------------------------------- forward

    def visual(self, model: Any) -> Any:
        """Return the vision tower."""
        return model.get_submodule(VISION_PATH)

    def language(self, model: Any) -> Any:
        """Return the decoder, which takes embeddings."""
        return model.get_submodule(LANGUAGE_PATH)

    def run_towers(self, model: Any, prompts: Sequence[Encoded]) -> OmniFeatures | None:
        """Run both towers on all media of all prompts at once, with gradient."""
        seen = MropeFamily.run_towers(self, model, prompts)
        audible = [p.tensors for p in prompts if "input_features" in p.tensors]
        if seen is None and not audible:
            return None
        audio = self.hear(model, audible) if audible else ()
        return _join(seen, audio)

    def hear(
        self, model: Any, audible: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Run the audio tower once on the audio of all prompts; return the features [tokens, H] of each."""
        mels = torch.cat([t["input_features"] for t in audible]).to(model.device)
        mask = torch.cat([t["feature_attention_mask"] for t in audible]).to(model.device)
        lengths = mask.sum(-1)
        tower = model.get_submodule(AUDIO_PATH)
        out = tower(mels.permute(0, 2, 1)[mask.bool()].T, feature_lens=lengths)
        return out.last_hidden_state.split(count_audio_tokens(mask))

    def media_of(self, model: Any, prompt: Encoded) -> list[Encoded]:
        mels = prompt.tensors.get("input_features", ())
        names = ("input_features", "feature_attention_mask")
        return MropeFamily.media_of(self, model, prompt) + [
            stand_alone(
                model.config.audio_token_id, {n: prompt.tensors[n][i : i + 1] for n in names}
            )
            for i in range(len(mels))
        ]

    def join_features(self, found: Sequence[Sequence[MediaFeatures]]) -> OmniFeatures:
        seen = MropeFamily.join_features(self, found)
        audio = [m.audio for media in found for m in media if isinstance(m, OmniFeatures)]
        return _join(seen, tuple(itertools.chain.from_iterable(audio)))

    def spread(
        self, features: MediaFeatures | None, prompts: Sequence[Encoded], rows: Sequence[int]
    ) -> OmniFeatures | None:
        assert features is None or isinstance(features, OmniFeatures)
        if features is None:
            return None
        seen = MropeFamily.spread(self, features, prompts, rows)
        audio = tuple(features.audio[i] for i in media_of_rows(prompts, ("input_features",), rows))
        return _join(seen, audio) if seen or audio else None

    def embed(
        self, model: Any, input_ids: torch.Tensor, features: MediaFeatures | None
    ) -> torch.Tensor:
        """Return the embeddings [B, T, H] with the features of audio put in."""
        embeds = model.get_input_embeddings()(input_ids)
        if not isinstance(features, OmniFeatures) or not features.audio:
            return embeds
        return place_features(embeds, input_ids == model.config.audio_token_id, features.audio)

    # ------------------------------------------------------------------------------ on the disk

    def published(
        self, model: object, weights: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the weights of the thinker alone, even if a whole model was read."""
        whole = MropeFamily.published(self, model, weights)
        return {name.removeprefix("thinker."): weight for name, weight in whole.items()}

    def export_config(self, model: Any, folder: str) -> None:
        """Write the config of a whole model that does not speak: vLLM does not know the thinker alone."""
        thinker = copy.deepcopy(model.config)
        # vLLM reads this field, which defaults to True; transformers reads that of the thinker.
        thinker.text_config.tie_word_embeddings = is_tied(model)
        whole = getattr(transformers, f"{self.thinker.stem}Config")(
            thinker_config=thinker.to_dict(),
            enable_audio_output=False,
            architectures=[f"{self.thinker.stem}ForConditionalGeneration"],
        )
        Path(folder).mkdir(parents=True, exist_ok=True)
        whole.to_json_file(f"{folder}/config.json", use_diff=False)

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"thinker.{_flat_name(name)}": weight for name, weight in named.items()}


def _join(seen: MediaFeatures | None, audio: Sequence[torch.Tensor]) -> OmniFeatures:
    """Return features of images and videos, if there are any, with those of audio."""
    if seen is None:
        return OmniFeatures((), audio=tuple(audio))
    return OmniFeatures(seen.merged, seen.deepstack, tuple(audio))


def _flat_name(name: str) -> str:
    """Return a weight's name for a model whose towers and decoder are not submodules of `model`."""
    for ours, theirs in (
        (VISION_PATH, "visual"),
        (AUDIO_PATH, "audio_tower"),
        (LANGUAGE_PATH, "model"),
    ):
        if name.startswith(f"{ours}."):
            return theirs + name.removeprefix(ours)
    return name


def _cut_chunks(places: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Cut positions [3, N] wherever time, counted from the first, passes a multiple of `size`.

    After a jump over several multiples, one token is cut off for each, as in transformers.
    """
    times = (places[0] - places[0, 0]).tolist()
    cuts = [0]
    for i, time in enumerate(times):
        if time >= len(cuts) * size:
            cuts.append(i)
    return [places[:, i:j] for i, j in itertools.pairwise([*cuts, len(times)])]
