"""Log-probs of completions and their gradient by plain transformers, its processor and forward, by row."""

from __future__ import annotations

import torch

from helpers.prompts import hf_inputs
from helpers.shared_forward import TEMPERATURE, gradient, with_live_adapter
from helpers.small import loaded, policy
from vlmrl.config import LoraConfig

OWN_POSITIONS = ("qwen2_5_vl",)
"""Families whose text behind a video transformers places otherwise than Qwen's code: it is given ours."""


def trained_as(name, training):
    """A policy of a family whose weights all train ("whole"), adapters in all towers ("lora"), or no tower
    of media ("frozen")."""
    torch.manual_seed(0)  # adapters begin at random
    towers = [*loaded(name).family.towers]
    if training == "lora":
        return with_live_adapter(policy(name, lora=LoraConfig(rank=4, towers=towers)))
    media = [tower for tower in towers if tower not in ("projector", "language")]
    return policy(name, freeze=media if training == "frozen" else [])


def plain_numbers(made, micro):
    """Log-probs, entropies, and the gradient of a weighted sum of both, as `shared_forward.numbers`.

    In evaluation mode: in training mode Gemma 3n's own forward passes by some of the adapters.
    """
    made.base.eval()
    rows = [row_numbers(made, micro, row) for row in range(len(micro.group))]
    made.base.train()
    logprobs, entropy = (torch.stack(found) for found in zip(*rows, strict=True))
    return logprobs.detach(), entropy.detach(), gradient(made, logprobs, entropy)


def row_numbers(made, micro, row):
    """Log-probs and entropies [T] of one completion, 0 where it has no loss."""
    prompt, mask = micro.prompts[int(micro.group[row])], micro.mask[row]
    ids = micro.token_ids[row][: int(mask.nonzero().max()) + 1]
    start = len(prompt.encoded.ids)
    inputs = inputs_of(made, prompt, ids)
    scores = made.base(**inputs, use_cache=False).logits[0, start - 1 : -1].float() / TEMPERATURE
    logs = torch.nn.functional.pad(scores.log_softmax(-1), (0, 0, 0, len(mask) - len(ids)))
    chosen = logs.gather(-1, micro.token_ids[row][:, None])[:, 0]
    entropy = -(logs.exp() * logs).sum(-1)
    return chosen.where(mask, 0.0), entropy.where(mask, 0.0)


def inputs_of(made, prompt, ids):
    """What the HF processor makes of a prompt, with the ids [T] of a completion behind it."""
    inputs = dict(hf_inputs(made, prompt))
    shape = inputs["input_ids"].shape
    for key, value in inputs.items():
        if isinstance(value, torch.Tensor) and value.shape == shape:
            behind = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            added = behind.get(key, torch.zeros_like(ids)).to(value.dtype)
            inputs[key] = torch.cat([value, added[None]], dim=1)
    if made.base.config.model_type in OWN_POSITIONS:
        encoded = prompt.encoded
        behind = encoded.next_position + torch.arange(len(ids))
        rows = (len(encoded.position_ids), len(ids))
        inputs["position_ids"] = torch.cat([encoded.position_ids, behind.expand(rows)], dim=1)[
            :, None
        ]
    return inputs
