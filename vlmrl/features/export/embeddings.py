"""`vlmrl export --embeddings`: the token embeddings of a model as word vectors, which `bmas` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vlmrl.answers import text
from vlmrl.assemble.trained_run import run_of
from vlmrl.config import ModelConfig
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model

SPACES = ("\u0120", "\u2581")
"""How byte-level and SentencePiece vocabularies write the space before a word."""


def write_embeddings(model: str, file: Path) -> int:
    """Write a `.npz` with `words` [V] and their `vectors` [V, H], float32; return how many words it has.

    The words are the vocabulary's tokens that are one word to `bmas`; of several spellings of one the
    vector is that of the first with a space before it in small letters, else of the first. Of the model's
    files only the embeddings are read.

    Raises:
        UserError: the model cannot be loaded, or the file's name does not end in `.npz`.
    """
    if file.suffix != ".npz":
        raise UserError(f"export --embeddings: expected a file that ends in .npz, got {file}")
    loaded = load_model(ModelConfig(path=run_of(model)[1]), as_stored=True)
    weight = loaded.model.get_input_embeddings().weight.detach()
    tokenizer = loaded.processor.tokenizer
    added = tokenizer.added_tokens_decoder
    best: dict[str, tuple[bool, int]] = {}
    for number in range(min(len(tokenizer), len(weight))):
        if number in added:
            continue
        words = text.tokens(tokenizer.decode([number]))
        if len(words) != 1:
            continue
        piece = tokenizer.convert_ids_to_tokens(number)
        plain = piece[1:] if piece.startswith(SPACES) else ""
        rank = (plain != words[0], number)
        best[words[0]] = min(best.get(words[0], rank), rank)
    rows = torch.tensor([number for _, number in best.values()])
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, words=np.array([*best]), vectors=weight[rows].float().numpy())
    return len(best)
