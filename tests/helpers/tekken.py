"""A folder as Mistral publishes Voxtral, without its weights: `tekken.json` and configs, no template."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import transformers

NAMED = """<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS]
[TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]
[TOOL_CONTENT] - - - - [AUDIO] [BEGIN_AUDIO] - - - - - - - - [TRANSCRIBE]""".split()
"""Special tokens in the order of their ids in published files; those that are `-` are named by number."""
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LEARNED = (b"He", b"ll", b"Hell", b"Hello", b" w", b"or", b" wor", b"ld", b" world", b"re", b" re")


def write_published(folder: Path) -> Path:
    """Write the folder and return it; its vocabulary is the bytes and a few words."""
    pieces = [*(bytes([byte]) for byte in range(256)), *LEARNED]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for rank, piece in enumerate(pieces)
    ]
    names = [f"<SPECIAL_{i}>" if name == "-" else name for i, name in enumerate(NAMED)]
    special = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)]
    config = {"pattern": PATTERN, "version": "v7", "num_vocab_tokens": len(vocab)}
    config |= {"default_num_special_tokens": len(names), "default_vocab_size": len(names + vocab)}
    mel = {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}
    sound = {"sampling_rate": 16000, "frame_rate": 12.5, "chunk_length_s": 30.0}
    tekken = {"config": config, "vocab": vocab, "special_tokens": special}
    tekken["audio"] = {**sound, "audio_encoding_config": mel}
    (folder / "tekken.json").write_text(json.dumps(tekken))
    transformers.VoxtralConfig(audio_token_id=24).save_pretrained(folder)
    transformers.WhisperFeatureExtractor(
        feature_size=128, processor_class="VoxtralProcessor"
    ).save_pretrained(folder)
    return folder
