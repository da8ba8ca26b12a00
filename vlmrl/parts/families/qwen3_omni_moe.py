"""Qwen3-Omni's thinker: Qwen3-VL's tower and experts, an audio tower of its own, text as output.

Source: Xu et al. 2025, "Qwen3-Omni Technical Report", arXiv:2509.17765.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from vlmrl.models.base import ATTENTION_LINEAR, ENCODER_LINEAR
from vlmrl.models.media_features import make_mel_features
from vlmrl.parts.families.glm4v_moe import split_experts
from vlmrl.parts.families.qwen2_5_omni import AUDIO_PATH, LANGUAGE_PATH, VISION_PATH, Qwen25Omni
from vlmrl.parts.families.qwen3_vl_moe import share_chosen
from vlmrl.parts.families.qwen_like import MropeFamily, PromptLayout, seconds_per_grid
from vlmrl.parts.families.small import omni_model
from vlmrl.parts.families.small.omni_model import SmallOmniModel
from vlmrl.schema import Encoded, Space
from vlmrl.schema.media import Audio, Decoded, PilImage, Video


@dataclass(frozen=True)
class Qwen3OmniMoe(Qwen25Omni):
    """The family of model types `qwen3_omni_moe_thinker` and `qwen3_omni_moe` (only its thinker).

    `input_features` is float32 [audios, mel, frames of the longest], and `feature_attention_mask` marks
    the frames that are not padding. Positions are float32: those of a video's frames are fractions.
    """

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_omni_moe_thinker", "qwen3_omni_moe")
    refused: ClassVar[Mapping[str, str]] = {}  # what speaks has no model type of its own
    hears_videos: ClassVar[bool] = False
    space: ClassVar[Space] = "norm1000"
    media_tokens: ClassVar[tuple[str, ...]] = MropeFamily.media_tokens
    towers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": tuple(
            f"{VISION_PATH}.{part}." for part in ("patch_embed", "pos_embed", "blocks")
        ),
        "audio": tuple(
            f"{AUDIO_PATH}.{part}."
            for part in ("conv2d1", "conv2d2", "conv2d3", "conv_out", "layers", "ln_post")
        ),
        "projector": (
            *(f"{VISION_PATH}.{part}." for part in ("merger", "merger_list")),
            *(f"{AUDIO_PATH}.{part}." for part in ("proj1", "proj2")),
        ),
        "language": (f"{LANGUAGE_PATH}.", "lm_head."),
    }
    lora_targets: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "vision": ("qkv", "proj", "linear_fc1", "linear_fc2"),
        "audio": (*ENCODER_LINEAR, "conv_out"),
        "projector": ("0", "2", "proj1", "proj2"),
        "language": ATTENTION_LINEAR,
    }
    router: ClassVar[str] = "mlp.gate"
    unserved_videos: ClassVar[str] = "vLLM rounds the positions of Qwen3-Omni's videos"
    thinker: ClassVar[SmallOmniModel] = omni_model.QWEN3
    speakers: ClassVar[tuple[str, ...]] = ("talker", "code2wav")

    # ------------------------------------------------------------------------------- prompts

    def encode(self, processor: Any, text: str, media: Sequence[Decoded]) -> Encoded:
        encoded = MropeFamily.encode(self, processor, text, media)
        return replace(encoded, position_ids=encoded.position_ids.float())

    def _lay_video(
        self,
        processor: Any,
        layout: PromptLayout,
        video: Video,
        grid: tuple[int, int, int],
        audio_tokens: int,
    ) -> None:
        """Lay out a video as one grid; its times are not rounded to whole positions, as in transformers."""
        indices = np.indices(grid).reshape(3, -1)
        seconds = indices[0].astype(np.float32) * np.float32(seconds_per_grid(processor, video))
        times = seconds * np.float32(processor.tokens_per_second)
        places = torch.from_numpy(np.stack([times, *indices[1:]]).astype(np.float64))
        layout.put([processor.video_token_id] * places.shape[1], places + layout.start)

    def _encode_audio(
        self, processor: Any, media: Sequence[Decoded]
    ) -> tuple[dict[str, torch.Tensor], Iterator[int]]:
        heard = [medium for medium in media if isinstance(medium, Audio)]
        tensors = make_mel_features(processor.feature_extractor, heard, whole=False)
        frames = tensors["feature_attention_mask"].sum(-1).tolist() if heard else []
        counts = (sum(map(_halve_thrice, _chunks(n))) for n in frames)
        timed = (medium for medium in media if not isinstance(medium, PilImage))
        return tensors, iter([next(counts) if isinstance(m, Audio) else 0 for m in timed])

    def _join_tensors(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        if name in ("input_features", "feature_attention_mask"):
            most = max(before.shape[-1], after.shape[-1])
            before, after = (F.pad(x, (0, most - x.shape[-1])) for x in (before, after))
        return torch.cat([before, after])

    # ------------------------------------------------------------------------------- forward

    def hear(
        self, model: Any, audible: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Run the audio tower once on the audio of all prompts; return the features [tokens, H] of each.

        The tower cuts audio in chunks of a second and fills the last up to a whole one. Audio of less than
        a second is heard as alone, whatever stands beside it: transformers fills it up to the longest.
        """
        tower = model.get_submodule(AUDIO_PATH)
        mels = [
            mel[:, : int(mask.sum())].to(model.device)
            for t in audible
            for mel, mask in zip(t["input_features"], t["feature_attention_mask"], strict=True)
        ]
        chunks = [chunk for mel in mels for chunk in mel.T.split(CHUNK)]
        lengths = torch.tensor([len(chunk) for chunk in chunks])
        edges = torch.tensor(
            [min(mel.shape[1], CHUNK) for mel in mels for _ in _chunks(mel.shape[1])]
        )
        padded = torch.stack([F.pad(c, (0, 0, 0, int(edges.max()) - len(c))).T for c in chunks])
        tokens = _halve_thrice(lengths)
        real = torch.arange(int(_halve_thrice(edges).max())) < tokens[:, None]
        with _edged(tower, edges.to(model.device)):
            out = tower(
                feature_lens=torch.tensor([mel.shape[1] for mel in mels], device=model.device),
                padded_feature=padded,
                chunk_lengths=lengths.to(model.device),
                valid_indices=real.flatten().nonzero().squeeze(-1).to(model.device),
            )
        counts = [sum(map(_halve_thrice, _chunks(mel.shape[1]))) for mel in mels]
        return out.last_hidden_state.split(counts)

    def weigh(self, router: Any, logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the softmax of all or of these experts alone, as the config has it; see `Family.weigh`."""
        if router.norm_topk_prob:
            return share_chosen(logits, experts)
        return logits.softmax(-1, dtype=torch.float).gather(1, experts).to(logits.dtype)

    # ------------------------------------------------------------------------------ on the disk

    def export_names(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights of a whole model's thinker, with each expert's own, as they are published."""
        return split_experts(Qwen25Omni.export_names(self, named))


CHUNK = 100
"""Frames of 10 ms that the audio tower sees at a time; the HF processor counts tokens for no other number."""


def _chunks(frames: int) -> list[int]:
    """Return the frames of each chunk of an audio."""
    return [min(CHUNK, frames - start) for start in range(0, frames, CHUNK)]


def _halve_thrice(frames: Any) -> Any:
    """Return the tokens of a chunk of frames, whose number three convolutions halve, rounding up."""
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames


@contextlib.contextmanager
def _edged(tower: Any, edges: torch.Tensor) -> Iterator[None]:
    """Let each chunk end at its edge [chunks] for the convolutions, as if no chunk beside it were longer."""

    def cut(edges: torch.Tensor) -> Any:
        parts = iter(edges.split(tower.conv_chunksize))

        def zero(module: object, given: object, out: torch.Tensor) -> torch.Tensor:
            inside = torch.arange(out.shape[-1], device=out.device) < next(parts)[:, None]
            return out * inside[:, None, None]  # the activation of 0 is 0

        return zero

    halves = (edges + 1) // 2
    hooks = [
        tower.conv2d1.register_forward_hook(cut(halves)),
        tower.conv2d2.register_forward_hook(cut((halves + 1) // 2)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
