"""Sample rollouts in the trainer's own process with its own weights: exact, needs nothing else.

The prompt is prefilled once per group, and its keys and values are held once where that pays
(`prompt_rows`); finished rows leave the batch; media token ids are never sampled; token ids are
kept as sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch

from vlmrl.engines.base import Capabilities, Engine, RunningEngine, Sampling, ServedPolicy
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.engines.prompt_rows import hold, prefill
from vlmrl.engines.routed_experts import Recorder, watching
from vlmrl.errors import NotFinite
from vlmrl.schema import Completion, Prompt, PromptBatch, Rollouts
from vlmrl.system.seeds import GOLDEN, mix

MAX_PAIRS = 2**27
"""Pairs of tokens in the prefill of one pass: its attention takes some bytes for each."""
SHRINK = 0.75
"""Drop finished rows from the cache once less than this share of its rows is unfinished."""


@dataclass(frozen=True)
class Hf(Engine):
    """In the trainer's own process, with its own weights."""

    max_num_seqs: int = 512
    """Completions generated at the same time."""
    capabilities = Capabilities(exact=True, routes=True, every_rank=True)

    def start(self, policy: ServedPolicy) -> RunningHf:
        """Generate with this policy from now on."""
        return RunningHf(self, policy)


class RunningHf(RunningEngine):
    """The engine on a policy, whose weights are always the newest."""

    def __init__(self, options: Hf, policy: ServedPolicy) -> None:
        super().__init__(options.capabilities)
        self.options, self.policy = options, policy

    def sync(self, policy: ServedPolicy) -> None:
        """Keep the policy: its weights are already the new ones."""
        self.policy = policy

    @torch.no_grad()
    def generate(self, batch: PromptBatch, sampling: Sampling) -> Rollouts:
        """Return groups of `sampling.n` completions, in the prompts' order.

        The draw depends on `sampling.seed` and on the batch alone, or on `sampling.keys`.
        """
        policy = self.policy
        generator = torch.Generator(policy.device).manual_seed(sampling.seed)
        groups: list[tuple[Completion, ...]] = []
        with policy.generating(), watching(policy) as record:
            for part in _passes(batch, sampling, max(1, self.options.max_num_seqs // sampling.n)):
                prompts = batch.prompts[part]
                keys = [key for own in sampling.keys[part] for key in own]
                shares = _shares_of(keys) if keys else _shares_from(generator)
                groups += _generate(policy, prompts, sampling, shares, record)
        return Rollouts(batch, tuple(groups), version=policy.version)


def _passes(batch: PromptBatch, sampling: Sampling, most: int) -> Iterator[slice]:
    """Yield the prompts of each pass, at most `most`.

    Where draws do not depend on company, long prompts (what tools have shown is in them) go in several.
    """
    begin = 0
    while begin < len(batch):
        end, longest = begin, 0
        while end < min(begin + most, len(batch)):
            longest = max(longest, len(batch.prompts[end].encoded.ids))
            if sampling.keys and end > begin and (end + 1 - begin) * longest**2 > MAX_PAIRS:
                break
            end += 1
        yield slice(begin, end)
        begin = end


def _generate(
    policy: ServedPolicy,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    shares: Shares,
    record: Recorder,
) -> list[tuple[Completion, ...]]:
    cache, hidden, mask = prefill(policy, prompts)
    record.prefilled(mask, sampling.n)
    held = hold(policy.base, cache, mask, sampling.n, sampling.max_tokens)
    count = len(prompts) * sampling.n
    hidden = hidden.repeat_interleave(sampling.n, 0)
    position = torch.tensor([p.encoded.next_position for p in prompts], device=policy.device)
    position = position.repeat_interleave(sampling.n)
    axes = prompts[0].encoded.position_ids.shape[0]

    tokens: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
    stopped = [False] * count
    rows = torch.arange(count)  # which completion each row of the cache writes
    stop_ids = set(policy.stop_ids)
    for step in range(sampling.max_tokens):
        token, logprob = _draw(policy, hidden, sampling, lambda: shares(rows, step))  # noqa: B023
        drawn = logprob.tolist()
        if not math.isfinite(sum(drawn)):
            wrong = [row for row, lp in zip(rows.tolist(), drawn, strict=True) if lp != lp]
            _refuse(prompts, [row // sampling.n for row in wrong])
        writing = []
        for at, (row, tok, lp) in enumerate(zip(rows.tolist(), token.tolist(), drawn, strict=True)):
            if stopped[row]:
                continue
            tokens[row].append(tok)
            logprobs[row].append(lp)
            stopped[row] = tok in stop_ids
            if not stopped[row]:
                writing.append(at)
        if not writing or step + 1 == sampling.max_tokens:
            break
        if len(writing) <= SHRINK * len(rows):
            keep = torch.tensor(writing, device=policy.device)
            held.take(keep, sampling.max_tokens - step)
            rows, token, position = rows[keep.cpu()], token[keep], position[keep]
        places = (position + step).view(1, -1, 1).expand(axes, -1, 1)
        with held.attending():
            hidden = policy.family.decode(
                policy.base, token[:, None], held.grow(), places, None, held.cache
            )[:, -1]
        record.decoded(rows)
    written = [
        Sampled(
            tuple(tokens[row]),
            tuple(logprobs[row]),
            "stop" if stopped[row] else "length",
            ((policy.version, len(tokens[row])),),
            record.of(row, len(tokens[row])),
        )
        for row in range(count)
    ]
    groups = [written[at : at + sampling.n] for at in range(0, count, sampling.n)]
    return make_completions(policy, prompts, groups)


def _refuse(prompts: Sequence[Prompt], wrong: Sequence[int]) -> NoReturn:
    sample = prompts[wrong[0] if wrong else 0].sample
    raise NotFinite(
        f"the policy's logits are not finite (first: sample {sample.id!r} of source "
        f"{sample.source!r}); if its weights have diverged, lower the learning rate and resume"
    )


def _draw(
    policy: ServedPolicy,
    hidden: torch.Tensor,
    sampling: Sampling,
    share: Callable[[], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row; return the tokens and their log-probs, [R].

    The log-prob is the full distribution's at the temperature, before bans and cuts: the trainer's.
    """
    logits = policy.family.head(policy.base)(hidden).float()
    full = (logits / sampling.temperature).log_softmax(-1)
    allowed = full.index_fill(-1, policy.banned, -torch.inf)
    if sampling.greedy:
        token = allowed.argmax(-1)
    else:
        token = _sampled(_cut(allowed, sampling).softmax(-1), share().to(policy.device))
    return token, full.gather(1, token[:, None])[:, 0]


Shares = Callable[[torch.Tensor, int], torch.Tensor]
"""Draws the random numbers [R, 1], float64 in [0, 1), of these rows at this step."""


def _shares_from(generator: torch.Generator) -> Shares:
    def draw(rows: torch.Tensor, step: int) -> torch.Tensor:
        shape, device = (len(rows), 1), generator.device
        return torch.rand(shape, dtype=torch.float64, generator=generator, device=device)

    return draw


def _shares_of(keys: Sequence[int]) -> Shares:
    """Draw by counter, so that a row's numbers depend on its key and the step alone."""
    seeds = np.array(keys, np.uint64)

    def draw(rows: torch.Tensor, step: int) -> torch.Tensor:
        mixed = mix(seeds[rows.numpy()] + np.uint64((step + 1) * GOLDEN % 2**64))
        return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)[:, None]

    return draw


def _sampled(probs: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return one index per row of probabilities [R, V]: where their sum passes a random share [R, 1].

    One random number per row; `torch.multinomial` draws one for every token of the vocabulary. In
    float64, in which the sum of a large vocabulary loses no rare token.
    """
    mass = probs.cumsum(-1, dtype=torch.float64)
    drawn = torch.searchsorted(mass, share * mass[:, -1:], right=True)[:, 0]
    return drawn.clamp_(max=probs.shape[-1] - 1)  # among NaN nothing is found


def _cut(logprobs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Apply top-k, then top-p (the smallest set of tokens whose mass reaches p), to [R, V]."""
    if 0 < sampling.top_k < logprobs.shape[-1]:
        least = logprobs.topk(sampling.top_k, -1).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logprobs.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        logprobs = logprobs.masked_fill(beyond.gather(-1, order.argsort(-1)), -torch.inf)
    return logprobs
