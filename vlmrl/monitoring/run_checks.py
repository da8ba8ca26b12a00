"""The checks of a run at intervals: parity of engine and trainer, and the media ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from PIL import Image

from vlmrl.config import ChecksConfig
from vlmrl.data.prompt import continue_prompt, make_prompt, with_media
from vlmrl.engines.base import RunningEngine, Sampling
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack_all
from vlmrl.policy.policy import Policy
from vlmrl.schema import Media, MediaKind, Prompt, PromptBatch, Sample, Truth
from vlmrl.schema.media import Audio, Decoded
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed

# --------------------------------------------------------------------------------------------------
# Parity of engine and trainer: compare their log-probs on the same tokens.
#
# A rollout engine that is silently wrong (weights that did not arrive, a stale cache, other pixels)
# still writes plausible text, but its log-probs give it away. The check runs at the start, after the
# first sync and at intervals. Its prompts are always the same, so a stale prefix or image cache shows.


TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Largest allowed mean |Δ log p| for each `model.dtype`: far above rounding, below any fault seen."""


@dataclass(frozen=True, slots=True)
class Parity:
    """How far an engine's log-probs are from the trainer's, over the tokens of some completions.

    `mean_abs`, `max_abs`: of Δ = log π_trainer - log π_engine, in nats. `kl`: estimate of
    KL(engine || trainer), mean of exp(Δ) - 1 - Δ (Schulman's k3). `max_ratio`: exp(max |Δ|).
    """

    mean_abs: float
    max_abs: float
    kl: float
    max_ratio: float
    tokens: int

    def metrics(self) -> dict[str, float]:
        """Return the numbers under the names of their curves."""
        return {f"parity/{name}": float(value) for name, value in asdict(self).items()}

    def require(self, tolerance: float, when: str) -> None:
        """Stop the run if the engine differs from the trainer; `when` names the check.

        Raises:
            UserError: `mean_abs` exceeds the tolerance or is not finite. The error gives the numbers and the
                likely causes.
        """
        if self.mean_abs <= tolerance:
            return
        raise UserError(
            f"{when}: the engine's log-probs are not the trainer's: mean |Δ log p| "
            f"{self.mean_abs:.2g} (allowed {tolerance:g}), largest {self.max_abs:.2g}, KL "
            f"{self.kl:.2g}, largest ratio {self.max_ratio:.3g}, over {self.tokens} tokens. "
            "Likely: weights that did not reach the engine (a tied head, a LoRA, a renamed or "
            "partly sent tensor), caches not emptied after an update, other pixels (processor, "
            "pixel limits), or an engine of lower precision than the trainer (engine options dtype, "
            "quantization, kv_cache_dtype; checks.parity_tolerance allows a known gap)"
        )


def tolerance(policy: Policy) -> float:
    """Return what `Parity.require` should allow for this policy."""
    return TOLERANCE[policy.config.dtype]


def measure_parity(
    engine: RunningEngine,
    policy: Policy,
    prompts: Sequence[Prompt],
    n: int = 4,
    max_tokens: int = 16,
) -> Parity:
    """Let the engine write `n` completions for each prompt and score them with the policy.

    The seed is always the same and the training's own draws are unaffected. The engine must hold the
    policy's current weights.
    """
    sampling = Sampling(n=n, max_tokens=max_tokens, temperature=policy.temperature, seed=0)
    rollouts = engine.generate(PromptBatch(tuple(prompts)), sampling)
    batch, gaps = pack_all(rollouts, micro_tokens=8192, max_tokens=max_tokens), []
    for micro in policy.with_old([batch])[0].micro:
        assert micro.old_logprobs is not None
        gaps.append((micro.old_logprobs - micro.sampling_logprobs)[micro.mask].double())
    gap = torch.cat(gaps)
    largest = gap.abs().max().item()
    return Parity(
        mean_abs=gap.abs().mean().item(),
        max_abs=largest,
        kl=(gap.exp() - 1 - gap).mean().item(),
        max_ratio=math.exp(min(largest, 700.0)),
        tokens=len(gap),
    )


def make_probe_prompts(policy: Policy, turns: bool = False) -> tuple[Prompt, ...]:
    """Make two fixed prompts with one medium each and one of text only, the same in every call.

    With `turns` also one of a second turn: the first was shown a medium of another size.
    """
    rng = np.random.default_rng(0)
    media: list[Decoded]
    if "image" in policy.family.kinds:
        kind: MediaKind = "image"
        media = [Image.fromarray(p) for p in rng.integers(0, 255, (2, 84, 112, 3), np.uint8)]
        observed: Decoded = Image.fromarray(rng.integers(0, 255, (112, 56, 3), np.uint8))
    else:
        kind, rate = "audio", policy.processor.feature_extractor.sampling_rate
        media = [Audio(s, rate) for s in rng.normal(0, 0.1, (2, rate)).astype(np.float32)]
        observed = Audio(rng.normal(0, 0.1, rate // 2).astype(np.float32), rate)
    question = (
        "Describe in detail what can be seen here, where it is, and how many there are of each."
    )
    made = []
    for number, shown in enumerate([[medium] for medium in media] + [[]]):
        parts: tuple[str | Media, ...] = (*(Media(kind, data=b"noise") for _ in shown), question)
        sample = Sample(f"probe-{number}", "probe", parts, Truth())
        made.append(make_prompt(sample, shown, policy.family, policy.processor))
    if not turns:
        return tuple(made)
    prompt, family, processor = made[0], policy.family, policy.processor
    wish_ids = policy.tokenizer("Show me more.", add_special_tokens=False)["input_ids"]
    longer = continue_prompt(prompt, (*wish_ids, policy.stop_ids[0])).encoded
    text = family.reply(processor, ["Here:", observed])
    seen = family.extend(processor, text, [observed], longer.next_position, prompt.media)
    encoded, shown_media = family.join(longer, seen), (*prompt.media, observed)
    text = f"{prompt.text}Show me more.{text}"
    return (*made, replace(prompt, text=text, encoded=encoded, media=shown_media))


# --------------------------------------------------------------------------------------------------
# The checks that a run makes at intervals: parity and media ablation.


PARITY_PROMPTS = 2
"""Prompts of the run that the parity probe uses in addition to its fixed ones of noise."""


@dataclass(frozen=True)
class Checks:
    """The checks of a run; `prompts` are a few fixed ones with media (perhaps none), without tensors."""

    config: ChecksConfig
    policy: Policy
    engine: RunningEngine
    scorer: Scorer
    prompts: Sequence[Prompt]
    max_tokens: int
    at_once: int
    """Prompts of a training step: the media ablation computes no more of them together."""
    tell: Callable[[str], None]
    """A function that shows the user a message."""
    turns: bool = False
    """Whether rollouts have several turns."""

    def __call__(self, done: int, progress: float) -> dict[str, float]:
        """Run what is due after `done` steps, with the weights that the next step draws with; return metrics.

        Changes neither weights nor any generator, so a resumed run goes on the same.

        Raises:
            UserError: the engine differs from the trainer, or the model ignores its media and
                `checks.media_ablation_stop` is set.
        """
        metrics: dict[str, float] = {}
        if self._parity_due(done):
            prompts = make_probe_prompts(self.policy, self.turns)
            model = self.policy.family, self.policy.processor
            prompts += tuple(with_media(p, p.media, *model) for p in self.prompts[:PARITY_PROMPTS])
            parity = measure_parity(self.engine, self.policy, prompts)
            allowed = self.config.parity_tolerance or tolerance(self.policy)
            parity.require(allowed, f"parity after {done} steps")
            metrics |= parity.metrics()
            distributed.barrier()  # the media ablation may set another temperature for all ranks
        if self._ablation_due(done):
            metrics |= self._ablate_media(done, progress)
        return metrics

    def due(self, done: int) -> bool:
        """Return whether a check is due after `done` steps."""
        return self._ablation_due(done) or self._parity_due(done)

    def _ablation_due(self, done: int) -> bool:
        every = self.config.media_ablation_every
        return bool(self.prompts) and every > 0 and done % every == 0

    def _parity_due(self, done: int) -> bool:
        every = self.config.parity_every
        wanted = self.config.parity_exact or not self.engine.capabilities.exact
        return wanted and every > 0 and (done == 1 or done % every == 0)

    def _ablate_media(self, done: int, progress: float) -> dict[str, float]:
        # A run without media never gets here.
        from vlmrl.monitoring.media_ablation import measure_reliance

        limits = self.max_tokens, self.at_once
        reliance = measure_reliance(
            self.engine, self.policy, self.scorer, self.prompts, *limits, progress
        )
        floor = self.config.media_ablation_min_drop
        complaint = reliance.complaint(floor) if floor is not None else None
        if complaint and self.config.media_ablation_stop:
            raise UserError(f"after {done} steps: {complaint}")
        if complaint:
            self.tell(f"after {done} steps: {complaint}")
        return reliance.metrics()
