"""What all checks of a day share: the shape of the model, its sizes, and how a policy is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from groups import Case, make_policy

from gpu_day.device import DEVICE, GIB, Measured, release
from vlmrl.forward.logprobs import Sharing
from vlmrl.parts.families.small.qwen_models import mrope
from vlmrl.policy.policy import Policy

TEXT_3B = {
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 11008,
    "initializer_range": 0.02,
    "rope_parameters": {**mrope(128), "rope_theta": 1e6},
    "tie_word_embeddings": True,
}
VISION_3B = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "intermediate_size": 3420,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "initializer_range": 0.02,
}
"""Qwen/Qwen2.5-VL-3B-Instruct's config.json."""

TEXT_TINY = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
TEXT_TINY |= {"num_hidden_layers": 2, "intermediate_size": 128}
VISION_TINY = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64}
VISION_TINY |= {"fullatt_block_indexes": [1]}

ON = Sharing("on", 1.3, possible=True, verified=True)
OFF = Sharing("off", 1.3, possible=True)


@dataclass(frozen=True)
class Day:
    """The sizes of a day: those that mean something, or tiny ones that only show that it runs."""

    tiny: bool

    @property
    def build(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the fields of the text and the vision config."""
        return (TEXT_TINY, VISION_TINY) if self.tiny else (TEXT_3B, VISION_3B)

    @property
    def vocabulary(self) -> int:
        return 512 if self.tiny else 151936

    @property
    def ids(self) -> range:
        """Return token ids that completions are made of, none of which the tokenizer knows."""
        return range(self.vocabulary // 2, self.vocabulary)

    @property
    def repeats(self) -> int:
        return 1 if self.tiny else 5

    def case(self, prompt: int, completion: int, group: int) -> Case:
        """Return this case, or a tiny one in its place."""
        return Case(48, 6, 2) if self.tiny else Case(prompt, completion, group)

    def policy(self, **model: Any) -> Policy:
        """Build a policy on the device, the same weights each time, once unused memory is given back.

        Who asks lets go of the policy before, so one function builds one policy.
        """
        release()
        text, vision = self.build
        with torch.device(DEVICE):
            return make_policy(text, vision, self.vocabulary, **{"dtype": "bfloat16", **model})


def gib(size: float) -> str:
    """Write bytes."""
    return f"{size / GIB:.3g} GiB" if size >= GIB / 10 else f"{size / 2**20:.3g} MiB"


def cells(found: Measured | None) -> dict[str, str]:
    """Return the columns of a measurement; None is out of memory."""
    if found is None:
        return {"ms": "out of memory"}
    ms = f"{1000 * found.seconds:.4g} ± {found.spread:.0%}"
    return {"ms": ms, "peak": gib(found.peak)}
