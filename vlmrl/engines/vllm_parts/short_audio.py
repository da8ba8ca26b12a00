"""vLLM's Qwen2-Audio with an encoder of any length; vLLM 0.32 takes 3,000 frames alone, those of 30 s."""

from __future__ import annotations

from typing import get_args, get_type_hints

from vllm.model_executor.models import qwen2_audio
from vllm.utils.tensor_schema import TensorShape

PUBLISHED = 3000
Qwen2AudioForConditionalGeneration = qwen2_audio.Qwen2AudioForConditionalGeneration

for hint in get_type_hints(qwen2_audio.Qwen2AudioFeatureInputs, include_extras=True).values():
    for shape in get_args(hint):
        if isinstance(shape, TensorShape):
            shape.dims = tuple("frames" if size == PUBLISHED else size for size in shape.dims)
