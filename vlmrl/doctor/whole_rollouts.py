"""Rollouts of several turns at their limits: what a forecast of memory counts, and engines must take."""

from __future__ import annotations

from vlmrl.answers import templates
from vlmrl.config import Config
from vlmrl.doctor.bench import Bench, CheckResult
from vlmrl.errors import UserError
from vlmrl.interaction.driver import Driver
from vlmrl.interaction.trail import Trail
from vlmrl.media_types import Decoded, PilImage
from vlmrl.schema import Completion, Prompt


def longest_of(bench: Bench) -> Prompt | None:
    """Return the longest prompt of a source that acts; None: no source does."""
    if not isinstance(bench.options, Driver):
        return None
    acting = [p for p in bench.prompts if p.sample.source in bench.options.open_runner]
    return max(acting, key=lambda prompt: len(prompt.encoded.ids), default=None)


def write_longest(config: Config, bench: Bench, prompt: Prompt) -> Completion:
    """Return a rollout of full-length turns, as many as fit, with an image like the prompt's in between."""
    return _write(config, bench, prompt)[0]


def require_engine_room(bench: Bench, prompt: Prompt) -> CheckResult | None:
    """Say in one line where the engine's limits end a rollout before those of the config do."""
    assert isinstance(bench.options, Driver)
    _, last = _write(bench.config.at(0), bench, prompt)
    try:
        bench.options.inner.require_room(bench.policy, last, bench.config.at(0).rollout.max_tokens)
    except UserError as error:
        text = f"rollout.turns allows more than the engine takes, which ends rollouts: {error}"
        return CheckResult("warn", "turns", text)
    return None


def _write(config: Config, bench: Bench, prompt: Prompt) -> tuple[Completion, Prompt]:
    """Return such a rollout, and the prompt of its last turn."""
    policy, limits, turn = bench.policy, config.rollout.turns, config.rollout.max_tokens
    told = {"token_ids": (1,) * turn, "logprobs": (0.0,) * turn}
    said = templates.completion("", prompt.sample.template, prompt.frame, **told)
    image = next((medium for medium in prompt.media if isinstance(medium, PilImage)), None)
    shown: list[str | Decoded] = ["Nothing was found." if image is None else image]
    trail, last = Trail(policy.family, policy.processor, prompt).write(said), prompt
    while trail.num_turns < min(limits.max_turns, limits.max_tokens // turn):
        segment, encoded = trail.encode_observation(shown)
        longer = trail.length + len(encoded.ids) + turn
        media = len(trail.media) + len(segment.media)
        if longer > limits.max_length or media > limits.max_images:
            break
        trail = trail.observe(segment, encoded)
        last = trail.next_prompt()
        trail = trail.write(said)
    return trail.finish(said, "stop"), last
