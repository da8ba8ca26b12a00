"""Recipes by name, and inputs of their losses."""

from __future__ import annotations

import torch

from vlmrl import plugins
from vlmrl.algorithms.base import LossInputs
from vlmrl.schema import (
    Completion,
    Frame,
    Parsed,
    Prompt,
    PromptBatch,
    Rewards,
    Rollouts,
    Sample,
    Truth,
)

PUBLISHED = ["dapo", "dr_grpo", "gpg", "grpo", "rloo"]
"""Recipes whose losses are compared with numbers of their papers, and with slow versions."""


def recipe_of(name, **options):
    return plugins.build("algorithm", name, options)


def facts_of(new, advantages):
    """What passes and advantages would tell the loss of these rows: the media changed nothing."""
    return {
        "correct": (advantages[:, :1] > 0).float(),
        "pass_rate": torch.full((len(new), 1), 0.5),
        "kl_weight": torch.ones(len(new), 1),
        "masked_media": new.detach().clone(),
        "teacher": new.detach().clone(),
    }


def inputs_of(
    new, advantages, *, old=None, sampling=None, ref=None, mask=None, weights=None, extra=None
):
    mask = torch.ones_like(new).bool() if mask is None else mask
    old = new.detach() if old is None else old
    return LossInputs(
        new=new,
        old=old,
        sampling=old if sampling is None else sampling,
        ref=ref,
        advantages=advantages,
        mask=mask,
        weights=torch.ones(len(new)) if weights is None else weights,
        num_tokens=int(mask.sum()),
        num_rollouts=len(new),
        max_tokens=new.shape[1],
        extra=facts_of(new, advantages) if extra is None else extra,
    )


def random_inputs(seed=0, spread=0.3, **changes):
    """Four completions of 3 to 6 tokens with old, sampling and reference log-probs nearby."""
    noise = torch.Generator().manual_seed(seed)

    def near(centre):
        return centre + spread * torch.randn(4, 6, generator=noise)

    new = (-1 - torch.rand(4, 6, generator=noise)).requires_grad_()
    values = {
        "old": near(new.detach()),
        "sampling": near(new.detach()),
        "ref": near(new.detach()),
        "mask": torch.arange(6) < torch.tensor([6, 3, 4, 5])[:, None],
    }
    given = torch.tensor([[1.5], [-0.5], [-0.7], [-0.3]])
    return inputs_of(new, given, **{**values, **changes})


def rewards_of(rows, valid=None):
    total = torch.tensor(rows, dtype=torch.float32)
    return Rewards(total, torch.ones_like(total).bool() if valid is None else valid, ())


def rollouts_of(rewards, sources=None, weights=None, length=1):
    num_prompts, num_completions = rewards.total.shape
    prompts = tuple(
        Prompt(
            Sample(
                str(p),
                sources[p] if sources else "source",
                ("?",),
                Truth(),
                weight=weights[p] if weights else 1.0,
            ),
            "?",
            None,
            Frame(),
        )
        for p in range(num_prompts)
    )
    parsed = Parsed(None, None, "none", False, 0.0)
    group = tuple(
        Completion("", parsed, Frame(), (g,) * length, (-1.0,) * length)
        for g in range(num_completions)
    )
    return Rollouts(PromptBatch(prompts), (group,) * num_prompts)


def advantages_of(recipe, rewards):
    """Advantages [P, G]; of recipes for tokens, the mean over those of a completion of one token."""
    values = recipe.advantages(rewards, rollouts_of(rewards)).values
    return values if values.ndim == 2 else values.mean(-1)
