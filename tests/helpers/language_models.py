"""Small random causal language models with a tokenizer, as they are published."""

from pathlib import Path
from typing import Any

import torch
import transformers

from helpers.small import CORPUS
from vlmrl.parts.families.small.builder import train

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 320}
SIZES |= {"num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-5}
SIZES |= {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}
TURN = "<|im_start|>user\nHow many green circles?<|im_end|>\n<|im_start|>assistant\n"


def source(folder: Path, kind: str = "Llama", **fields: Any) -> Any:
    """Save a random causal language model and its tokenizer, which knows no image."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **fields}, initializer_range=0.3)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
    model.save_pretrained(folder)
    train(CORPUS, 310).save_pretrained(folder)
    return model


def says(model: Any, ids: list[int]) -> torch.Tensor:
    """The logits [T, V] of a text of these ids."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]
