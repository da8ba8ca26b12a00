"""The shared forward of layers that hold a state: the prompt's states are handed to each of its completions.

Such a layer runs twice, on the prompts and then on the completions, each of which begins with the last inputs
of its prompt's convolution and with its recurrent state. Gradients add up in these.

Legend: see `shared` and `delta_net`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vlmrl.models.delta_net import Run, States, run_after

if TYPE_CHECKING:
    from vlmrl.forward.shared import SharedLayout


def recur_packed(layout: SharedLayout, layer: int, run: Run, hidden: torch.Tensor) -> torch.Tensor:
    """Return what a layer that holds a state makes of a row [L, H]: completions after their prompt's states.

    Prompts are padded on the left, where padding leaves states as they are: zero.
    """
    prompts, per_group = layout.prompts, layout.completions.index.shape[1]
    steps = torch.arange(prompts.index.shape[1], device=hidden.device)
    missing = len(steps) - prompts.real.sum(1, keepdim=True)
    index = prompts.index.gather(1, (steps - missing).clamp(min=0))
    real = None if prompts.full else steps >= missing
    out, states = run_after(run, layer, hidden[index], None, real)
    back = (steps + missing).clamp(max=len(steps) - 1)
    out = out.gather(1, back[..., None].expand_as(out))
    window, state = (x.repeat_interleave(per_group, 0) for x in states)
    rows = hidden[layout.completions.index.flatten(0, 1)]
    own, _ = run_after(run, layer, rows, (window, state))
    return layout.put(out.flatten(0, 1), own.flatten(0, 1))


def recur_after(states: States, layer: int, run: Run, hidden: torch.Tensor) -> torch.Tensor:
    """Return what a layer makes of a completion [1, C, H] after the states of its prompt."""
    return run_after(run, layer, hidden, states)[0]
