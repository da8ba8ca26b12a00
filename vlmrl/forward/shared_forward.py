"""The shared forward: each prompt once, then its completions, all groups in one packed row.

All completions of a group have the same prompt. The plain forward computes it once per completion,
this one computes it once: G(P + C) tokens become P + GC. Log-probs and gradients are the same.
"""

from __future__ import annotations

from typing import Any

import torch

from vlmrl.forward.router_replay import choices_of_packed
from vlmrl.forward.sequence_parallel import Split, decode
from vlmrl.forward.shared_attention import sharing
from vlmrl.forward.shared_layout import SharedLayout
from vlmrl.models.base import Family
from vlmrl.schema import MicroBatch


def shared_hidden(
    model: Any, family: Family, micro: MicroBatch, split: Split | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the hidden states [N, H] that predict the scored tokens, in `micro.mask.nonzero()` order.

    With `split` they are those that this rank has; the second tensor, bool, says which. None: all.
    `attention.dispatch.install` must have been called on the model.
    """
    device = next(model.parameters()).device
    encoded = micro.encoded
    layout, ids, positions, scored = pack_row(micro, device)
    features = family.spread(family.tower_features(model, encoded), encoded, _in_order(micro))
    choices = choices_of_packed(micro, layout)
    with sharing(layout):
        # Without a mask of ones some models read restarting positions as new sequences.
        ones = torch.ones_like(ids)
        hidden, own = decode(split, model, family, choices, ids, ones, positions, features)
    if own is None:
        return hidden[0].index_select(0, scored), None
    here = own.holds(scored)
    return hidden[0].index_select(0, scored[here] - own.start), here


def _in_order(micro: MicroBatch) -> list[int]:
    """List which of `micro.encoded` the packed row shows, from its first place to its last."""
    if not micro.suffixes:
        return list(range(len(micro.prompts)))
    order, groups, shown = [], micro.group.tolist(), micro.shown
    for which in range(len(micro.prompts)):
        order.append(which)
        order += [i for row, group in enumerate(groups) if group == which for i in shown[row]]
    return order


def pack_row(
    micro: MicroBatch, device: torch.device
) -> tuple[SharedLayout, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the layout, ids [1, L], positions [A, 1, L], and places [N] that predict the scored tokens.

    The last token of a completion predicts nothing and is left out. A completion's positions
    continue those of its prompt.
    """
    encoded = [prompt.encoded for prompt in micro.prompts]
    group, lengths = micro.group, (micro.lengths - 1).clamp(min=0)
    layout = SharedLayout.of(torch.tensor([len(e.ids) for e in encoded]), group, lengths)
    row, step = (torch.arange(int(lengths.max())) < lengths[:, None]).nonzero(as_tuple=True)
    place = layout.row_start[row] + step
    prompts = layout.prompts.index[layout.prompts.real]
    ids = torch.empty(layout.length, dtype=torch.long)
    ids[prompts] = torch.tensor([i for e in encoded for i in e.ids])
    ids[place] = micro.token_ids[row, step]
    positions = torch.empty((encoded[0].position_ids.shape[0], layout.length), dtype=torch.long)
    positions[:, prompts] = torch.cat([e.position_ids for e in encoded], 1)
    if micro.suffixes:
        follow = [micro.follow(i, n) for i, n in enumerate(lengths.tolist())]
        positions[:, place] = torch.cat(follow, 1)
    else:
        positions[:, place] = torch.tensor([e.next_position for e in encoded])[group[row]] + step
    row, step = micro.mask.nonzero(as_tuple=True)
    last = layout.prompt_end[group[row]] - 1
    scored = torch.where(step > 0, layout.row_start[row] + step - 1, last)
    return layout.to(device), ids[None].to(device), positions[:, None].to(device), scored.to(device)
