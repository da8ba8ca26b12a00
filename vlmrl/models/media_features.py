"""Features of media: split by prompt, picked for rows, put in place of their placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vlmrl.errors import UserError
from vlmrl.schema import Encoded
from vlmrl.schema.media import Audio

# --------------------------------------------------------------------------------------------------
# Whisper's mel features of audio, the input of Qwen2-Audio and Qwen2.5-Omni.


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


# --------------------------------------------------------------------------------------------------


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
