"""Small checkpoints of random weights that rate and compare: reward models, CLIP, SigLIP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import CLIPTokenizer

from helpers.chat_calls import save_small_model
from helpers.small import CORPUS, TEXT, loaded, model_config
from vlmrl.models.loading import load_model

LAYERS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
LAYERS |= {"num_attention_heads": 2}
SIDE = 28
"""Pixels of a side of the images of a small CLIP."""


def save_value_head(folder: Path, bias: bool = True) -> Path:
    """A Qwen2.5-VL with a value head in a file of its own, as Skywork-VL-Reward is stored."""
    save_small_model(folder)
    torch.manual_seed(1)
    head = {"v_head.summary.weight": 0.2 * torch.randn(1, TEXT["hidden_size"])}
    if bias:
        head["v_head.summary.bias"] = torch.tensor([0.25])
    save_file(head, folder / "value_head.safetensors")
    return folder


def save_text_classifier(folder: Path, labels: int = 1) -> Path:
    """A Llama that classifies sequences, with the tokenizer and chat template of a small Qwen."""
    tokenizer = loaded("qwen2_5_vl").processor.tokenizer
    config = transformers.LlamaConfig(
        **TEXT, vocab_size=len(tokenizer), num_labels=labels, pad_token_id=tokenizer.pad_token_id
    )
    torch.manual_seed(2)
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.chat_template = loaded("qwen2_5_vl").processor.chat_template
    tokenizer.save_pretrained(folder)
    return folder


def save_image_classifier(folder: Path) -> Path:
    """A Gemma 3 that sees and classifies sequences."""
    small = load_model(model_config("gemma3"), CORPUS, seed=0)
    small.model.config.num_labels = 1
    torch.manual_seed(3)
    model = transformers.Gemma3ForSequenceClassification(small.model.config)
    model.model.load_state_dict(small.model.model.state_dict())
    model.save_pretrained(folder)
    small.processor.save_pretrained(folder)
    return folder


def save_clip(folder: Path) -> Path:
    """A CLIP whose tokens are characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(f"{one}</w>" for one in alphabet), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        vocab={name: n for n, name in enumerate(names)}, merges=[], model_max_length=24
    )
    text = {**LAYERS, "vocab_size": len(names), "max_position_embeddings": 24}
    text |= {"bos_token_id": len(names) - 2, "eos_token_id": len(names) - 1}
    vision = {**LAYERS, "image_size": SIDE, "patch_size": 14}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    torch.manual_seed(4)
    return _save(folder, transformers.CLIPModel(config), tokenizer, "CLIP")


def save_siglip(folder: Path) -> Path:
    """A SigLIP with the tokenizer of a small Qwen."""
    tokenizer = loaded("qwen2_5_vl").processor.tokenizer
    tokenizer.model_max_length = 16
    text = {**LAYERS, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    vision = {**LAYERS, "image_size": SIDE, "patch_size": 14}
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    torch.manual_seed(5)
    return _save(folder, transformers.SiglipModel(config), tokenizer, "Siglip")


def _save(folder: Path, model: Any, tokenizer: Any, kind: str) -> Path:
    size = {"height": SIDE, "width": SIDE}
    images = getattr(transformers, f"{kind}ImageProcessor")(size=size, crop_size=size)
    getattr(transformers, f"{kind}Processor")(images, tokenizer).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
