"""Whisper's mel features of audio, the input of Qwen2-Audio and Qwen2.5-Omni."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vlmrl.errors import UserError
from vlmrl.media_types import Audio


def make_mel_features(
    extractor: Any, audios: Sequence[Audio], whole: bool
) -> dict[str, torch.Tensor]:
    """Make `input_features`, float32 [audios, mel, frames], and their `feature_attention_mask`.

    With `whole`, there are always as many frames as the extractor's chunk has; otherwise as many
    as the longest audio needs. Without audios the result is empty.

    Raises:
        UserError: An audio has another sampling rate, or is longer than the chunk and would be cut.
    """
    if not audios:
        return {}
    for audio in audios:
        if audio.rate != extractor.sampling_rate:
            raise UserError(
                f"expected audio at {extractor.sampling_rate} Hz, got {audio.rate} Hz: "
                f"set data.audio.sampling_rate to {extractor.sampling_rate}"
            )
        if len(audio.samples) > extractor.n_samples:
            raise UserError(
                f"expected audio of at most {extractor.chunk_length} s, got {audio.duration:.2f} s"
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


def count_audio_tokens(mask: torch.Tensor) -> list[int]:
    """Count the tokens of each audio; `mask` [audios, frames] marks the frames that are not padding.

    The encoder halves the frames twice, so a token is four frames of 10 ms.
    """
    frames = (mask.sum(-1) - 1) // 2 + 1
    return ((frames - 2) // 2 + 1).tolist()
