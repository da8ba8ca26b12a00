"""Building small models with a real architecture and random weights: the steps all families share."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from vlmrl.config import BuildConfig
from vlmrl.errors import UserError
from vlmrl.plugins import nearest

# --------------------------------------------------------------------------------------------------
# The tokenizer of a small model: byte-level BPE trained on the text of its cards.
#
# Every common whole number is one token, and so is the lead-in of a box answer: an answer is short and each
# number one decision, which a model with less than a million parameters can learn in a minute.


SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""The special tokens of Qwen2-VL, Qwen2.5-VL and Qwen3-VL that a chat prompt needs."""


@dataclass(frozen=True, slots=True)
class Format:
    """The tokens that a family's chat prompts and processor need; the defaults are those of Qwen."""

    special: tuple[str, ...] = SPECIAL
    """Tokens that are left out when a completion is decoded."""
    plain: tuple[str, ...] = ()
    """Added tokens that are kept when a completion is decoded."""
    last: tuple[str, ...] = ()
    """Further special tokens, whose ids are the largest."""
    roles: tuple[str, ...] = ("system\n", "user\n", "assistant\n")
    end: str = "<|im_end|>"
    pad: str = "<|endoftext|>"
    start: str | None = None
    """The token that begins every prompt; the chat template writes it."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Attributes of the tokenizer that the processor reads, e.g. `image_token`."""


TAGS = ("<think>", "</think>", "<answer>", "</answer>")
LEAD_INS = ('{"bbox_2d": [', '{"point_2d": [')
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens of a small model whose corpus has calls, as they are of Qwen's own."""
_CALLS = re.compile(r'<tool_call>(\{"name": "\w+", "arguments": \{(?:"\w+": \[?)?)')

# A number is a piece, a word takes its leading space, the rest (", " or "]}") stays together.
_PIECES = r"[0-9]+| ?\p{L}+|(?:(?! ?\p{L})[^0-9])+"


def train(
    corpus: Sequence[str], vocab_size: int, format: Format | None = None
) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocab_size` ids that decodes any text unchanged.

    The tags are tokens, but not special ones: decoding keeps them. The most common whole numbers of
    the corpus get one token each, up to half of the ids that bytes and added tokens leave free.

    Raises:
        UserError: The bytes and the tokens of the chat format alone exceed `vocab_size`.
    """
    format = format or Format()
    leads = [lead for lead in LEAD_INS if any(lead in text for text in corpus)]
    calls = {lead for text in corpus for lead in _CALLS.findall(text)}
    leads += [*MARKS, *sorted(calls)] if calls else []
    added = [*format.special, *format.plain, *TAGS, *leads, *format.last]
    free = vocab_size - 256 - len(added)
    if free < 0:
        raise UserError(
            f"model.build.vocab_size: expected at least {vocab_size - free}, got {vocab_size}"
        )
    counts = Counter(number for text in corpus for number in re.findall("[0-9]{2,}", text))
    numbers = sorted((n for n, _ in counts.most_common(free // 2)), key=lambda n: (len(n), n))

    bpe = _bpe(Tokenizer(BPE()))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=256 + free - len(numbers), initial_alphabet=alphabet, show_progress=False
    )
    # Every prompt names the roles, so each counts as often as there are texts.
    texts = [*corpus, *format.roles * max(1, len(corpus))]
    # Numbers and added tokens must not be learned again.
    known = re.compile("|".join([*map(re.escape, added), *map(re.escape, LEAD_INS), "[0-9]+"]))
    bpe.train_from_iterator((piece for text in texts for piece in known.split(text)), trainer)
    return _wrap(_with_numbers(bpe, numbers), added, format)


def _bpe(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _with_numbers(trained: Tokenizer, numbers: Sequence[str]) -> Tokenizer:
    model = json.loads(trained.to_str())["model"]
    vocab = model["vocab"]
    for number in numbers:
        vocab[number] = len(vocab)
    merges = [tuple(pair) for pair in model["merges"]]
    # ignore_merges: a piece that is in the vocabulary is one token, so numbers need no merges.
    return _bpe(Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=True)))


def _wrap(tokenizer: Tokenizer, added: Sequence[str], format: Format) -> PreTrainedTokenizerFast:
    special = {*format.special, *format.last}
    tokenizer.add_tokens([AddedToken(t, special=t in special, normalized=False) for t in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=format.start,
        eos_token=format.end,
        pad_token=format.pad,
        extra_special_tokens=dict(format.named),
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=131072,
    )


# --------------------------------------------------------------------------------------------------


TEXT: Mapping[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,  # head_dim 32 is the smallest that vLLM's CPU build takes
    "max_position_embeddings": 32768,
    "initializer_range": 0.05,
}
AUDIO: Mapping[str, Any] = {
    "d_model": 96,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 192,
    "num_mel_bins": 40,
    "initializer_range": 0.05,
}
TIED = "tie_word_embeddings"
ROPE = {"rope_type": "default", "rope_theta": 100.0}
"""Rotary parameters; the short prompts of a small model need no low frequencies."""


def build(
    model_class: str,
    config_of: Callable[[Any], Any],
    build: BuildConfig,
    corpus: Sequence[str],
    seed: int,
    format: Format | None = None,
) -> tuple[Any, Any]:
    """Build a model (float32, evaluation mode, weights drawn from `seed`) and its tokenizer.

    The tokenizer is trained on `corpus`, or that of the language model in `build.weights` with the tokens of
    `format`; `config_of` makes the model's config from it.

    Raises:
        UserError: The architecture does not have an overridden field or rejects its value.
    """
    published = None
    if build.weights:
        from vlmrl.models import tower_weights  # few models have them

        published = tower_weights.tokenizer_of(build)
    if published is None:
        tokenizer = train(corpus, build.vocab_size, format)
    else:
        format = format or Format()
        added = [*format.special, *format.plain, *format.last]
        tokenizer = _wrap(published.backend_tokenizer, added, format)
    try:
        config = config_of(tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = getattr(transformers, model_class)(config).eval()
    except (StrictDataclassError, ValueError, KeyError) as error:
        raise UserError(f"model.build: {' '.join(str(error).split())}") from error
    model.generation_config.update(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model, tokenizer


def token_fields(tokenizer: Any, build: BuildConfig) -> dict[str, int | None]:
    """Return the fields of a text config that its tokenizer determines; a vocabulary may have spare ids."""
    return {
        "vocab_size": max(len(tokenizer), build.text.get("vocab_size", 0)),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def check_fields(
    build: BuildConfig, part: str, overrides: Mapping[str, object], fields: set[str]
) -> None:
    """Refuse, with a UserError, a field that the architecture does not have."""
    for key in overrides:
        if key not in fields:
            raise UserError(
                f"model.build.{part}: {build.family} has no field {key!r}"
                f"{nearest(key, sorted(fields))}"
            )


def text_fields(build: BuildConfig, own: Mapping[str, object]) -> tuple[dict[str, Any], int]:
    """Return the fields of the language model, with the family's `own`, and the width of one head.

    Raises:
        UserError: The widths and the numbers of heads do not match.
    """
    text = {**TEXT, **own, **build.text}
    heads = text["num_attention_heads"]
    text.setdefault("num_key_value_heads", heads)
    width = text.get("head_dim") or head_dim("text", "hidden_size", text, "num_attention_heads", 2)
    if heads % text["num_key_value_heads"]:
        raise UserError("model.build.text: num_key_value_heads must divide num_attention_heads")
    return text, width


def head_dim(
    part: str, width_key: str, fields: Mapping[str, Any], heads_key: str, multiple: int
) -> int:
    """Return the width of one head, for rotary embeddings a multiple of `multiple`; else raise UserError."""
    width, heads = fields[width_key], fields[heads_key]
    whole = isinstance(width, int) and isinstance(heads, int) and min(width, heads) > 0
    if not whole or width % (multiple * heads):
        raise UserError(
            f"model.build.{part}: {width_key} ({width!r}) must be a multiple of "
            f"{multiple} * {heads_key} ({heads!r})"
        )
    return width // heads
