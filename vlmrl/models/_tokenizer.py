"""The tokenizer of a small model: byte-level BPE trained on the text of its cards.

One token per whole number and one for the lead-in of a box answer, so that an answer is short and
each number one decision: what a model of under a million parameters can learn in a minute.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

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
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
LEAD_INS = ('{"bbox_2d": [', '{"point_2d": [')
ROLES = ("system\n", "user\n", "assistant\n")

# A number is a piece, a word takes its leading space, the rest (", " or "]}") stays together.
_PIECES = r"[0-9]+| ?\p{L}+|(?:(?! ?\p{L})[^0-9])+"
_UNTRAINED = re.compile("|".join([*map(re.escape, SPECIAL + TAGS + LEAD_INS), "[0-9]+"]))


def train(corpus: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocab_size` ids that gives back any text unchanged.

    The tags are tokens, but not special ones: decoding keeps them. The commonest whole numbers of
    the corpus get one token each, up to half of the ids that bytes and added tokens leave free.
    """
    added = [*SPECIAL, *TAGS, *(lead for lead in LEAD_INS if any(lead in text for text in corpus))]
    free = vocab_size - 256 - len(added)
    counts = Counter(number for text in corpus for number in re.findall("[0-9]{2,}", text))
    numbers = sorted((n for n, _ in counts.most_common(free // 2)), key=lambda n: (len(n), n))

    bpe = _bpe(Tokenizer(BPE()))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=256 + free - len(numbers), initial_alphabet=alphabet, show_progress=False
    )
    # Every prompt names the roles, so each counts as often as there are texts.
    texts = [*corpus, *ROLES * max(1, len(corpus))]
    bpe.train_from_iterator((piece for text in texts for piece in _UNTRAINED.split(text)), trainer)
    return _wrap(_with_numbers(bpe, numbers), added)


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


def _wrap(tokenizer: Tokenizer, added: Sequence[str]) -> PreTrainedTokenizerFast:
    tokenizer.add_tokens([AddedToken(t, special=t in SPECIAL, normalized=False) for t in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=131072,
    )
