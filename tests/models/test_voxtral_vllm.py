"""Voxtral's prompts against transformers' own processor, whose tokenizer and format are mistral-common's."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from helpers.small import audio
from helpers.tekken import write_published
from vlmrl.data.prompt import make_prompt
from vlmrl.models.loading import load_processor
from vlmrl.schema import Media, Sample, Truth, Turn
from vlmrl.schema.media import Audio

pytest.importorskip("mistral_common", reason="needs what vLLM installs: make test-vllm")
soundfile = pytest.importorskip("soundfile")

SHORT, LONG = audio(1.0, 1), audio(30.5, 2)
Parts = tuple[str | Audio, ...]
CASES: dict[str, list[Parts]] = {
    "text": [("Hello world",)],
    "two texts": [("Hello", "world")],
    "one recording": [(SHORT, "Hello world")],
    "two recordings": [("Hello", SHORT, LONG, "world 12")],
    "turns": [("Hello", SHORT), ("Hello world.",), (LONG, "And?")],
}
"""Turns of user and policy by turns."""


def hf_content(part: str | Audio) -> dict[str, str]:
    """A part as transformers' processor takes it: a recording as the bytes of a file."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    file = io.BytesIO()
    soundfile.write(file, part.samples, part.rate, format="WAV", subtype="FLOAT")
    return {"type": "audio", "base64": base64.b64encode(file.getvalue()).decode()}


@pytest.mark.parametrize(
    ("case", "system"), [*((case, "") for case in CASES), ("text", "You are brief.")]
)
def test_ids_and_mel_features_are_those_of_transformers_processor(
    case: str, system: str, tmp_path: Path
) -> None:
    turns = CASES[case]
    heard = [part for parts in turns for part in parts if isinstance(part, Audio)]
    folder = write_published(tmp_path)
    theirs: Any = transformers.AutoProcessor.from_pretrained(folder)
    assert type(theirs.tokenizer).__name__ == "MistralCommonBackend"
    roles = ("user", "assistant") * len(turns)
    messages: list[Any] = [
        {"role": role, "content": [hf_content(part) for part in parts]}
        for role, parts in zip(roles, turns, strict=False)
    ]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    expected = theirs.apply_chat_template(messages)

    processor, family = load_processor(str(folder))
    shown = [
        tuple(part if isinstance(part, str) else Media("audio", data=b"-") for part in parts)
        for parts in turns
    ]
    history = tuple(Turn(r, p) for r, p in zip(roles, shown[:-1], strict=False))
    sample = Sample("row-1", "t", shown[-1], Truth(), history=history, system=system)
    made = make_prompt(sample, heard, family, processor).encoded

    assert list(made.ids) == expected["input_ids"][0].tolist()
    assert bool(made.tensors) == bool(heard)
    for key, tensor in made.tensors.items():
        assert torch.equal(tensor, expected[key])
