"""The request of both vLLM engines for one prompt, and the checks on its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.engines.base import Sampling, ServedPolicy
from vlmrl.engines.completions import Sampled
from vlmrl.engines.vllm_parts.media_parts import as_seen
from vlmrl.errors import LostEngine, UserError
from vlmrl.media_types import Audio, Video
from vlmrl.schema import Prompt
from vlmrl.system.seeds import seed_of

__all__ = ["EngineFault", "require_same_prompt"]

BAN = -100.0
"""Logit bias of a media token; vLLM takes no stronger one."""


class EngineFault(Exception):
    """The engine, not the user, went wrong: restart it and ask again."""


def end_run(fault: EngineFault) -> LostEngine:
    """Return the error that ends a run of several processes after a fault."""
    return LostEngine(
        f"{fault} (with several processes vLLM is not started again within a step: continue from the "
        "last checkpoint with resume=auto)"
    )


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """An engine's completions of one prompt."""

    prompt_ids: tuple[int, ...]
    """The prompt after media expansion, as the engine saw it."""
    group: tuple[Sampled, ...]

    def repeated(self, n: int) -> ServerAnswer:
        """Return the answer to a greedy request, which vLLM writes once, as `n` equal completions."""
        return ServerAnswer(self.prompt_ids, self.group * n)


def sampling_fields(policy: ServedPolicy, sampling: Sampling, prompt: int) -> dict[str, Any]:
    """Return the fields of vLLM's SamplingParams for prompt number `prompt` of a batch.

    The temperature is not among them: the logits are scaled by it (`_model.set_temperature`), so
    that vLLM's raw log-probs are those at the temperature, before bans and cuts.
    """
    return {
        "n": 1 if sampling.greedy else sampling.n,  # vLLM refuses a group of equal completions
        "max_tokens": sampling.max_tokens,
        "temperature": 0.0 if sampling.greedy else 1.0,
        "top_p": 1.0 if sampling.greedy else sampling.top_p,
        "top_k": 0 if sampling.greedy else sampling.top_k,
        # Completion i gets seed + i; a hash, that of `Sampling.at`, keeps prompts from sharing draws.
        "seed": (sampling.keys[prompt][0] if sampling.keys else seed_of(sampling.seed, prompt))
        >> 1,
        "logprobs": 0,
        "stop_token_ids": list(policy.stop_ids),
        "ignore_eos": True,  # stop_token_ids are all that stop
        "logit_bias": {int(token): BAN for token in policy.banned},
        "detokenize": False,
    }


def refuse_long(prompt: Prompt, max_tokens: int, limit: int) -> None:
    """Raise UserError if a prompt and its completions do not fit; vLLM would cut them short."""
    needed = len(prompt.encoded.ids) + max_tokens
    if needed > limit:
        raise UserError(
            f"sample {prompt.sample.id!r}: {len(prompt.encoded.ids)} prompt tokens and "
            f"{max_tokens} new ones exceed the engine's max_model_len ({limit})"
        )


def refuse_many(prompt: Prompt, limits: Mapping[str, int]) -> None:
    """Raise UserError if a prompt has more media of a kind than the engine was started for.

    `limits` are by the engine's options: `max_images`, `max_audios`, `max_videos`.
    """
    counts = {
        "max_images": len(prompt.images),
        "max_audios": sum(isinstance(m, Audio) for m in prompt.media),
        "max_videos": sum(isinstance(m, Video) for m in prompt.media),
    }
    for option, count in counts.items():
        if count > limits[option]:
            raise UserError(
                f"sample {prompt.sample.id!r}: {count} {option[4:]} exceed the engine's "
                f"{option} ({limits[option]})"
            )


def media_data(prompt: Prompt) -> dict[str, list[Any]]:
    """Return vLLM's `multi_modal_data`: decoded media by kind; of videos the frames that were taken."""
    data: dict[str, list[Any]] = {}
    if prompt.images:
        data["image"] = list(prompt.images)
    audios = [(m.samples, m.rate) for m in prompt.media if isinstance(m, Audio)]
    if audios:
        data["audio"] = audios
    videos = [as_seen(m) for m in prompt.media if isinstance(m, Video)]
    if videos:
        data["video"] = videos
    return data


def check(
    prompt: Prompt,
    answer: ServerAnswer,
    policy: ServedPolicy,
    sampling: Sampling,
    versions: tuple[int, int],
) -> None:
    """Raise unless the answer is whole, of this prompt, and by weights of these versions.

    `versions` are the first and the last that it may be by: equal unless weights change in flight.

    Raises:
        UserError: the engine saw other prompt tokens than the trainer; asking again cannot help.
        EngineFault: anything else that is wrong.
    """
    require_same_prompt(prompt, answer.prompt_ids)
    if len(answer.group) != sampling.n:
        raise EngineFault(f"{len(answer.group)} completions came back for n = {sampling.n}")
    vocabulary = policy.base.config.get_text_config().vocab_size
    banned, stops = set(policy.banned.tolist()), set(policy.stop_ids)
    for written in answer.group:
        problem = _problem(written, vocabulary, banned, stops, sampling.max_tokens)
        first, last = versions
        if problem is None and not all(first <= v <= last for v, _ in written.versions):
            problem = f"it is by weights {written.versions}, not by version {first} (to {last})"
        if problem is not None:
            raise EngineFault(f"sample {prompt.sample.id!r}, a completion: {problem}")


def _problem(
    written: Sampled, vocabulary: int, banned: set[int], stops: set[int], limit: int
) -> str | None:
    ids, logprobs = written.token_ids, written.logprobs
    if not ids or len(ids) > limit or len(logprobs) != len(ids):
        return f"{len(ids)} tokens (limit {limit}) with {len(logprobs)} log-probs"
    if not all(0 <= token < vocabulary for token in ids):
        return f"token {max(ids)} outside the vocabulary of {vocabulary}"
    if banned & set(ids):
        return f"it holds the media token {min(banned & set(ids))}"
    if not all(math.isfinite(p) and p <= 1e-3 for p in logprobs):
        return "a log-prob is not finite or above 0"
    stopped = ids[-1] in stops
    if written.finish_reason != ("stop" if stopped else "length"):
        return f"it says {written.finish_reason!r} after token {ids[-1]}"
    if not stopped and len(ids) != limit:
        return f"it breaks off after {len(ids)} of {limit} tokens"
    if sum(count for _, count in written.versions) != len(ids):
        return f"versions {written.versions} for {len(ids)} tokens"
    return None


def require_same_prompt(prompt: Prompt, seen: Sequence[int]) -> None:
    """Refuse an answer to other prompt tokens than the trainer's.

    Raises:
        UserError: names the sample and where they differ.
    """
    ours = prompt.encoded.ids
    if tuple(seen) == ours:
        return
    differs = next(
        (i for i, (a, b) in enumerate(zip(ours, seen, strict=False)) if a != b),
        min(len(ours), len(seen)),
    )
    a, b = (list(ids[differs : differs + 5]) for ids in (ours, seen))
    raise UserError(
        f"sample {prompt.sample.id!r}: {len(ours)} prompt tokens in the trainer, {len(seen)} in "
        f"vLLM, which differ from position {differs} on ({a} against {b}): another "
        "processor, pixel limit or chat template?"
    )
