"""Recordings as Whisper's mel features, which Qwen2-Audio and Qwen2.5-Omni both take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vlmrl.errors import UserError
from vlmrl.media_types import Audio


def mel_features(extractor: Any, audios: Sequence[Audio], whole: bool) -> dict[str, torch.Tensor]:
    """`input_features` float32 [recordings, mel, frames] and `feature_attention_mask` of them.

    `whole`: always as many frames as the extractor's chunk has; else as many as the longest needs.

    Raises:
        UserError: a recording at another rate, or longer than the chunk (it would be cut).
    """
    if not audios:
        return {}
    for audio in audios:
        if audio.rate != extractor.sampling_rate:
            raise UserError(
                f"a recording at {audio.rate} Hz for a model of {extractor.sampling_rate} Hz: "
                f"set data.audio.sampling_rate to {extractor.sampling_rate}"
            )
        if len(audio.samples) > extractor.n_samples:
            raise UserError(
                f"a recording of {audio.duration:.2f} s: this model hears at most "
                f"{extractor.chunk_length} s"
            )
    out = extractor(
        [audio.samples for audio in audios],
        sampling_rate=extractor.sampling_rate,
        padding="max_length" if whole else "longest",
        return_attention_mask=True,
        return_tensors="pt",
    )
    mask = out["attention_mask"].long()
    return {"input_features": out["input_features"], "feature_attention_mask": mask}


def sound_tokens(mask: torch.Tensor) -> list[int]:
    """How many tokens each recording becomes; `mask` [recordings, frames] says which are sound.

    Two convolutions and a pooling of stride 2: a token is four frames of 10 ms.
    """
    frames = (mask.sum(-1) - 1) // 2 + 1
    return ((frames - 2) // 2 + 1).tolist()
