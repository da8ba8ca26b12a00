"""`vlmrl export --embeddings`: a model's embeddings of whole words, as `bmas` reads them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.small import policy
from rewards.bmas import Bmas
from vlmrl.cli.app import app
from vlmrl.errors import UserError
from vlmrl.features.export.embeddings import write_embeddings
from vlmrl.schema import Truth
from vlmrl.scoring.verifier import judge


def test_the_vectors_of_words_are_those_of_their_tokens(tmp_path: Path) -> None:
    made = policy()
    made.save(str(tmp_path / "model"))
    file = tmp_path / "out/words.npz"
    found = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--embeddings", str(file)])
    assert found.exit_code == 0, found.output
    with np.load(file) as saved:
        vectors = dict(zip(saved["words"].tolist(), saved["vectors"], strict=True))
    assert f"{len(vectors)} words" in found.output
    table = made.base.get_input_embeddings().weight.detach().numpy()
    expected: dict[str, np.ndarray] = {}
    spaced = set()
    for number in range(len(made.tokenizer)):
        if number in made.tokenizer.added_tokens_decoder:
            continue
        text = made.tokenizer.decode([number])
        words = re.findall(r"[^\W_]+", text.lower())
        if len(words) != 1 or words[0] in spaced:
            continue
        if text == f" {words[0]}":
            expected[words[0]] = table[number]
            spaced.add(words[0])
        else:
            expected.setdefault(words[0], table[number])
    assert len(spaced) > 3
    assert vectors.keys() == expected.keys()
    for word, vector in expected.items():
        np.testing.assert_array_equal(vectors[word], vector)
    pairs = [(a, b) for a in vectors for b in vectors if a != b]
    one, other = next((a, b) for a, b in pairs if vectors[a] @ vectors[b] > 0)
    a, b = (vectors[word] / np.linalg.norm(vectors[word]) for word in (one, other))
    score = judge(Bmas(vectors=str(file)), one, Truth(text=(other,))).score
    assert score == pytest.approx(float(a @ b), abs=1e-6)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.npz"):
        write_embeddings("nothing", tmp_path / "words.txt")
