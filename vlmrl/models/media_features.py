"""Features of media: split by prompt, picked for rows, put in place of their placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vlmrl.errors import UserError
from vlmrl.schema import Encoded, MediaKind
from vlmrl.schema.media import Audio, Decoded, kind_of

# --------------------------------------------------------------------------------------------------
# Whisper's mel features of audio, the input of Qwen2-Audio, Qwen2.5-Omni and Qwen3-Omni.


def make_mel_features(
    extractor: Any, audios: Sequence[Audio], whole: bool
) -> dict[str, torch.Tensor]:
    """Make `input_features`, float32 [audios, mel, frames], and their `feature_attention_mask`.

    With `whole`, there are always as many frames as the extractor's chunk has. Otherwise there are as
    many as the longest audio needs, of any length, each filled up with silence to whole frames, as
    vLLM does: of the longest the extractor would drop a part of a frame, and keep it of the others.
    Without audios the result is empty.

    Raises:
        UserError: An audio has another sampling rate, is longer than the chunk and would be cut, or is too
            short for a frame.
    """
    if not audios:
        return {}
    check_audios(audios, extractor.sampling_rate, extractor.chunk_length if whole else None)
    samples = [audio.samples for audio in audios]
    if not whole:
        samples = [np.pad(each, (0, -len(each) % extractor.hop_length)) for each in samples]
        least = min(len(each) for each in samples)
        if least <= extractor.n_fft // 2:
            raise UserError(
                f"expected audio of more than {extractor.n_fft // 2} samples, got {least}"
            )
    out = extractor(
        samples,
        sampling_rate=extractor.sampling_rate,
        padding="max_length" if whole else "longest",
        truncation=whole,
        return_attention_mask=True,
        return_tensors="pt",
    )
    mask = out["attention_mask"].long()
    return {"input_features": out["input_features"], "feature_attention_mask": mask}


def check_audios(audios: Sequence[Audio], rate: int, seconds: float | None = None) -> None:
    """Raise a UserError for an audio of another sampling rate, or of more than these seconds."""
    for audio in audios:
        if audio.rate != rate:
            raise UserError(
                f"expected audio at {rate} Hz, got {audio.rate} Hz: "
                f"set data.audio.sampling_rate to {rate}"
            )
        if seconds is not None and len(audio.samples) > seconds * rate:
            raise UserError(f"expected audio of at most {seconds} s, got {audio.duration:.2f} s")


def count_audio_tokens(mask: torch.Tensor) -> list[int]:
    """Count the tokens of each audio; `mask` [audios, frames] marks the frames that are not padding.

    The encoder halves the frames twice, so a token is four frames of 10 ms.
    """
    frames = (mask.sum(-1) - 1) // 2 + 1
    return ((frames - 2) // 2 + 1).tolist()


# --------------------------------------------------------------------------------------------------


def check_places(
    kinds: Sequence[MediaKind], places: Sequence[MediaKind], media: Sequence[Decoded]
) -> None:
    """Raise a UserError unless the placeholders of a prompt, by their kinds, are those of its media."""
    shown = [kind_of(medium) for medium in media]
    if list(places) != shown:
        counts = ", ".join(
            f"{places.count(k)} {k} placeholders for {shown.count(k)} {k}s" for k in kinds
        )
        raise UserError(f"the prompt has {counts}, or they are in another order")


ByPrompt = tuple[torch.Tensor, ...]
"""For each prompt, the features [tokens, H] of its media; [0, H] for a prompt without media."""


def split_by_prompt(features: torch.Tensor, prompts: Sequence[Encoded], token: int) -> ByPrompt:
    """Split features [..., H] of all media by prompt, one for each placeholder `token`; else ValueError."""
    counts = [p.ids.count(token) if p.tensors else 0 for p in prompts]
    features = features.reshape(-1, features.shape[-1])
    _check(len(features), sum(counts))
    return features.split(counts)


def spread(features: ByPrompt | None, rows: Sequence[int]) -> ByPrompt | None:
    """Return the features of the media of every row, row after row; None if no row has any."""
    if features is None or not any(len(features[row]) for row in rows):
        return None
    return tuple(features[row] for row in rows)


def stand_alone(token: int, tensors: Mapping[str, torch.Tensor], length: int = 1) -> Encoded:
    """Return a prompt of `length` placeholders that shows the medium of these tensors, and no text."""
    return Encoded((token,) * length, (token,), tensors, torch.arange(length)[None], length)


def join(found: Sequence[Sequence[ByPrompt]]) -> ByPrompt:
    """Return for each prompt the features of its media, of each medium the `ByPrompt` of it alone."""
    some = next(medium[0] for media in found for medium in media)
    return tuple(
        torch.cat([medium[0] for medium in media]) if media else some[:0] for media in found
    )


def media_of_rows(
    prompts: Sequence[Encoded], keys: Sequence[str], rows: Sequence[int]
) -> list[int]:
    """List the indices of the media that the rows show, row after row, counted over all prompts.

    The number of a prompt's media is the total length of its tensors under `keys`.
    """
    counts = [sum(len(p.tensors.get(key, ())) for key in keys) for p in prompts]
    first = [sum(counts[:i]) for i in range(len(counts))]
    return [first[row] + k for row in rows for k in range(counts[row])]


def place_features(
    embeds: torch.Tensor, places: torch.Tensor, features: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Put features, each [tokens, H], into embeddings [B, T, H] at `places` [B, T]; else ValueError."""
    put = torch.cat(tuple(features)).to(embeds.dtype)
    _check(len(put), int(places.sum()))
    return embeds.masked_scatter(places[..., None], put)


def _check(features: int, places: int) -> None:
    if features != places:
        raise ValueError(f"{features} media features for {places} placeholders")
