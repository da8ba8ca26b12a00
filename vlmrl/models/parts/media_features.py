"""Features of media: cut by prompt, given to rows, put in the places of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vlmrl.schema import Encoded

ByPrompt = tuple[torch.Tensor, ...]
"""Features [tokens, H] of the media of each prompt; [0, H] of one without."""


def by_prompt(features: torch.Tensor, prompts: Sequence[Encoded], token: int) -> ByPrompt:
    """The features [..., H] of all prompts' media, cut by the placeholders `token` of each prompt.

    Raises:
        ValueError: they are not as many.
    """
    counts = [p.ids.count(token) if p.tensors else 0 for p in prompts]
    features = features.reshape(-1, features.shape[-1])
    _check(len(features), sum(counts))
    return features.split(counts)


def spread(features: ByPrompt | None, rows: Sequence[int]) -> ByPrompt | None:
    """Features of every row's media, row after row; None if no row has any."""
    if features is None or not any(len(features[row]) for row in rows):
        return None
    return tuple(features[row] for row in rows)


def shown(prompts: Sequence[Encoded], keys: Sequence[str], rows: Sequence[int]) -> list[int]:
    """Which media the rows show, row after row, counted over all prompts.

    A prompt has as many as its tensors under `keys` are long.
    """
    counts = [sum(len(p.tensors.get(key, ())) for key in keys) for p in prompts]
    first = [sum(counts[:i]) for i in range(len(counts))]
    return [first[row] + k for row in rows for k in range(counts[row])]


def placed(
    embeds: torch.Tensor, places: torch.Tensor, features: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Embeddings [B, T, H] with the features, each [tokens, H], at `places` [B, T], in order.

    Raises:
        ValueError: features and places are not as many.
    """
    put = torch.cat(tuple(features)).to(embeds.dtype)
    _check(len(put), int(places.sum()))
    return embeds.masked_scatter(places[..., None], put)


def _check(features: int, places: int) -> None:
    if features != places:
        raise ValueError(f"{features} media features for {places} placeholders")
