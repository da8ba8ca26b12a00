"""The shared forward against the plain one: random micro-batches, and how far the two are apart."""

from __future__ import annotations

import torch

from helpers.small import advantages, mixed_batch, prompt
from vlmrl.config import LoraConfig
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.forward.packing import pack
from vlmrl.schema import MicroBatch

LOGPROBS, GRADIENT = 2e-6, 1e-5
"""What rounding may do in float32: log-probs absolutely, gradients relative to their norm."""
TEMPERATURE = 0.9
TRAININGS: dict[str, dict[str, object]] = {
    "whole": {},
    "checkpointing": {"gradient_checkpointing": True},
    "lora": {"lora": LoraConfig(rank=4, towers=["vision", "projector", "language"])},
    "frozen": {"freeze": ["vision", "projector"]},
}
"""Ways to train a family of images: name -> settings of `model`."""


def micro_batch(made, images=(1, 2, 0, 1), counts=(3, 2, 4, 1), longest=7, seed=0):
    """Groups of unequal size, completions of 1 to `longest` random tokens, some without loss."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    shape = (len(group), longest)
    allowed = torch.tensor(sorted(set(range(len(made.tokenizer))) - set(made.banned.tolist())))
    ids = allowed[torch.randint(len(allowed), shape, generator=generator)]
    lengths = torch.randint(1, longest + 1, shape[:1], generator=generator)
    lengths[:3] = torch.tensor([1, longest, 2])[: len(lengths)]
    mask = torch.arange(longest) < lengths[:, None]
    mask[1, :2] = False
    return MicroBatch(
        prompts=tuple(prompt(made, i, images=n) for i, n in enumerate(images)),
        group=group,
        token_ids=ids,
        mask=mask,
        sampling_logprobs=torch.zeros(shape),
        advantages=torch.randn(len(group), 1, generator=generator),
        weights=torch.ones(len(group)),
    )


def numbers(made, micro, shared):
    """Log-probs, entropies, and the gradient of a weighted sum of both."""
    logprobs, entropy = completion_logprobs(
        made.base, made.family, micro, TEMPERATURE, made.pad_id, shared, entropy_gradient=True
    )
    return logprobs.detach(), entropy.detach(), gradient(made, logprobs, entropy)


def gradient(made, logprobs, entropy):
    """The gradient of a weighted sum of log-probs and entropies [B, T], flat."""
    signs = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(1))
    total = (logprobs * signs + 0.3 * entropy * signs.flip(-1)).sum()
    grads = torch.autograd.grad(total, made.trainable, materialize_grads=True)
    return torch.cat([g.flatten() for g in grads])


def gaps(made, micro):
    """Largest difference of the log-probs, relative difference of the gradients."""
    plain, shared = numbers(made, micro, False), numbers(made, micro, True)
    return distance(plain, shared)


def distance(expected, found):
    """Largest difference of the log-probs, relative difference of the gradients, of two `numbers`."""
    logprobs = (found[0] - expected[0]).abs().max().item()
    return logprobs, ((found[2] - expected[2]).norm() / expected[2].norm()).item()


def with_live_adapter(made):
    """An adapter that is not 0, as after some updates."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in made.base.named_parameters():
        if ".lora_B." in name:
            parameter.data.normal_(std=0.05, generator=generator)
    return made


def rollouts_of(made):
    engine = Hf().start(made)
    return engine.generate(mixed_batch(made), Sampling(n=3, max_tokens=6, seed=1))


def packed(rollouts, updates=1, micro_tokens=10**6, sharing=False):
    return pack(
        rollouts,
        advantages(rollouts),
        updates=updates,
        micro_tokens=micro_tokens,
        max_tokens=6,
        sharing=sharing,
    )
