"""The low-memory forward: a prompt once, then its completions one at a time.

The prompt's keys and values are detached from its graph. Every completion runs forward after them
and backward, which adds to their gradients; finally the prompt's backward starts from
those. Memory holds the activations of one prompt and one completion for any size of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from vlmrl.forward.experts import choices_of_rows, replaying
from vlmrl.forward.logprobs import completion_logprobs, scored_logprobs
from vlmrl.forward.packing import rows_of
from vlmrl.forward.shared import SharedLayout, sharing
from vlmrl.models.base import Family
from vlmrl.models.cache_sizes import recurs
from vlmrl.schema import Encoded, MicroBatch


def one_by_one(
    model: object,
    family: Family,
    micro: MicroBatch,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[Any]],
    entropy_gradient: bool = False,
) -> Iterator[tuple[int, MicroBatch, torch.Tensor, torch.Tensor]]:
    """Yield for every row of `micro` its number, a micro-batch of it, log-probs and entropies [1, T].

    The caller runs the backward of one row before it asks for the next. Gradient checkpointing is
    not supported: with it transformers fills no cache.
    """
    for which, prompt in enumerate(micro.prompts):
        rows = (micro.group == which).nonzero()
        choices = choices_of_rows(rows_of(micro, rows[0]), len(prompt.encoded.ids))
        with autocast(), replaying(model, family, choices):
            prefix = _compute_prefix(model, family, prompt.encoded)
        for row in rows:
            part = rows_of(micro, row)
            if family.two_way_media and part.encoded[1:]:
                # Its mask looks up tokens of the prompt, which a row behind a prefix leaves out.
                with autocast():
                    alone = completion_logprobs(
                        model, family, part, temperature, 0, True, None, entropy_gradient
                    )
                yield int(row), part, *alone
                continue
            tokens = part.token_ids[0, : int(part.lengths)]
            with autocast():
                hidden = _continue_prefix(prefix, model, family, part, tokens)
                scored = hidden[part.mask[0, : len(tokens)].to(hidden.device)]
                logprobs = scored_logprobs(
                    scored, family.head(model), part, temperature, None, entropy_gradient
                )
            yield int(row), part, *logprobs
        # The prompt's backward, from the gradients that the completions left.
        pairs = zip(prefix.computed, prefix.leaves, strict=True)
        used = [(x, leaf.grad) for x, leaf in pairs if x.requires_grad and leaf.grad is not None]
        if used:
            outputs, gradients = zip(*used, strict=True)
            torch.autograd.backward(outputs, gradients)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The tensors that completions need of their prompt, as computed and as leaves of their graphs.

    They are the last hidden state [1, H], then keys and values [1, K, P, D] of every layer, or its states.
    """

    computed: tuple[torch.Tensor, ...]
    leaves: tuple[torch.Tensor, ...]


def _compute_prefix(model: Any, family: Family, prompt: Encoded) -> _Prefix:
    device = next(model.parameters()).device
    ids = torch.tensor([prompt.ids], device=device)
    positions = prompt.position_ids[:, None].to(device)
    features = family.spread(family.tower_features(model, [prompt]), [prompt], [0])
    text = model.config.get_text_config()
    cache = DynamicCache(config=text) if recurs(text) else DynamicCache()
    hidden = family.decode(model, ids, torch.ones_like(ids), positions, features, cache)
    layers: list[Any] = cache.layers
    computed = (hidden[:, -1], *(x for layer in layers for x in _held_by(layer)))
    return _Prefix(computed, tuple(x.detach().requires_grad_() for x in computed))


def _held_by(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of a layer of a cache, or the states that it holds in place of them."""
    if hasattr(layer, "recurrent_states"):
        return layer.conv_states[0], layer.recurrent_states[0]
    return layer.keys, layer.values


def _continue_prefix(
    prefix: _Prefix, model: object, family: Family, part: MicroBatch, tokens: torch.Tensor
) -> torch.Tensor:
    """Return the hidden states [C, H] that predict the `tokens` [C] of the only completion of `part`."""
    prompt, shown = part.prompts[0].encoded, list(part.encoded[1:])
    first, *layers = prefix.leaves
    ids = tokens[None, :-1].to(first.device)
    if not ids.numel():
        return first
    sizes = torch.tensor([len(prompt.ids)]), torch.tensor([0]), torch.tensor([ids.shape[1]])
    positions = part.follow(0, ids.shape[1])[:, None].to(first.device)
    features = family.tower_features(model, shown) if shown else None
    features = family.spread(features, shown, range(len(shown)))
    keys_values = tuple(zip(layers[::2], layers[1::2], strict=True))
    start = len(prompt.ids)
    choices = choices_of_rows(part, start + len(tokens))
    choices = None if choices is None else choices[:, start:-1]
    with (
        sharing(SharedLayout.of(*sizes).to(first.device), keys_values),
        replaying(model, family, choices),
    ):
        hidden = family.decode(model, ids, torch.ones_like(ids), positions, features)
    return torch.cat([first, hidden[0]])
