"""A policy whose weights have sizes and no numbers: a forward tells what it would keep, and computes nothing.

It is the run's own policy of the run's own parts, so that what is counted on it is what is counted on a
real one; only its tensors are torch's fake ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from vlmrl import plugins
from vlmrl.config import ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.errors import UserError
from vlmrl.media_types import Decoded
from vlmrl.models.loading import Loaded, load_model, set_pixel_budget
from vlmrl.models.parts.qwen import MropeFamily
from vlmrl.models.small.qwen_models import build_published
from vlmrl.planning.published import architecture_of
from vlmrl.policy.policy import Policy
from vlmrl.schema import Media, Prompt, Sample, Truth

__all__ = ["sketch", "sketch_prompt"]

CORPUS = ("word " * 64,)
"""What the small tokenizer is trained on."""
GROUPED = "grouped_mm"
"""The way to compute experts whose shapes do not depend on where tokens are routed."""


def sketch(
    config: ModelConfig, corpus: Sequence[str] = CORPUS, layers: int | None = None
) -> Policy:
    """Return the policy of a config without the numbers of its weights; its tokenizer knows the corpus.

    With `layers`, a published model has only this number in its language tower.

    Raises:
        UserError: the architecture is unknown here, or its weights are quantized.
    """
    if config.quantization:
        raise UserError(
            "model.quantization: bitsandbytes needs real weights; plan without it, or run vlmrl doctor"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"  # where a policy is
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device):
        loaded = (
            load_model(config, corpus) if config.build else _load_published(config, corpus, layers)
        )
        if getattr(loaded.model.config.get_text_config(), "num_experts", 0):
            loaded.model.set_experts_implementation(GROUPED)
    for module in loaded.model.modules():
        if hasattr(module, "_deepstack_process"):
            module._deepstack_process = _put_by_index
    policy = Policy(*loaded, config)  # adapters have numbers: peft moves them
    if policy.frozen_towers is not None:
        policy.frozen_towers.checked = True  # there are no numbers to compare
    return policy


def _put_by_index(
    hidden: torch.Tensor, places: torch.Tensor, features: torch.Tensor
) -> torch.Tensor:
    """Do what Qwen3-VL's own does by a mask, whose count of places a fake tensor does not know."""
    index = places.nonzero(as_tuple=True)
    hidden = hidden.clone()
    hidden[index] = hidden[index].clone() + features
    return hidden


def _load_published(config: ModelConfig, corpus: Sequence[str], layers: int | None) -> Loaded:
    assert config.path is not None  # the config allows exactly one of the two
    found = architecture_of(config.path)
    family = plugins.build("family", found.family)
    assert isinstance(family, MropeFamily)
    text = {**found.text, **({} if layers is None else {"num_hidden_layers": layers})}
    model, processor = build_published(family.small, text, found.vision, found.tied, corpus)
    if config.attention:
        model.set_attn_implementation(config.attention)
    set_pixel_budget(processor, config)
    family.adopt(processor, model.config)
    return Loaded(model, processor, family)


def sketch_prompt(policy: Policy, images: int, pixels: int, text_tokens: int) -> Prompt:
    """Return a prompt of square images of `pixels` pixels each, and about `text_tokens` of text."""
    side = round(pixels**0.5)
    media: list[Decoded] = [Image.new("RGB", (side, side)) for _ in range(images)]
    bare = _prompt(policy, media, "")
    beside = text_tokens - len(policy.tokenizer(bare.text)["input_ids"])
    return _prompt(policy, media, " word" * max(0, beside))


def _prompt(policy: Policy, media: list[Decoded], text: str) -> Prompt:
    parts: tuple[str | Media, ...] = (*(Media("image", data=b"-") for _ in media), text)
    sample = Sample("planned", "planned", parts, Truth())
    return make_prompt(sample, media, policy.family, policy.processor)
