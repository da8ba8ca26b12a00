"""Check of tools and environments: one rollout of two turns as the model would see it, and its cost."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from vlmrl.answers import templates
from vlmrl.doctor.bench import Bench, CheckResult
from vlmrl.doctor.whole_rollouts import longest_of, require_engine_room
from vlmrl.interaction.calls import CLOSE, OPEN, parse_calls
from vlmrl.interaction.driver import first_view
from vlmrl.interaction.tools import PolicyTurn, Runner
from vlmrl.interaction.trail import Trail
from vlmrl.schema import Frame, Prompt


def turns(bench: Bench) -> Iterator[CheckResult]:
    """Call the first function of each source that acts, with an example, and show the whole."""
    with bench.opened_tools() as runners:
        for source, runner in runners.items():
            prompt = next((p for p in bench.prompts if p.sample.source == source), None)
            if prompt is not None:
                yield _example(bench, prompt, runner)
    longest = longest_of(bench)
    if longest is not None and (finding := require_engine_room(bench, longest)) is not None:
        yield finding


def _example(bench: Bench, prompt: Prompt, runner: Runner) -> CheckResult:
    policy = bench.policy
    text = _write_turn(runner, prompt.frame)
    ids = (*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.stop_ids[0])
    told = {"token_ids": ids, "logprobs": (0.0,) * len(ids)}
    said = templates.completion(text, prompt.sample.template, prompt.frame, **told)
    view = first_view(policy.family, policy.processor, prompt)
    world = runner.begin(prompt.sample, 0)
    (outcome,) = runner.run_all([PolicyTurn(parse_calls(text), view, text, world)])
    if outcome.fault is not None:
        return CheckResult(
            "FAIL", "turns", f"{prompt.sample.source}: a call failed: {outcome.fault}"
        )
    if outcome.step is not None and outcome.step.done:
        text = f"{prompt.sample.source}: the world ended at the example {text}"
        return CheckResult("ok", "turns", text)
    trail = Trail(policy.family, policy.processor, prompt).write(said)
    segment, encoded = trail.encode_observation(outcome.parts)
    trail = trail.observe(segment, encoded)
    verdict, budget = _budget(bench, len(prompt.encoded.ids), len(encoded.ids), len(segment.media))
    shown = textwrap.indent(trail.next_prompt().text, "      | ", lambda line: True)
    text = f"{prompt.sample.source}: {budget}; an example, as the policy would see it:\n{shown}"
    return CheckResult(verdict, "turns", text)


def _write_turn(runner: Runner, frame: Frame) -> str:
    """Return a turn that calls the first function; any word where the whole text is the action."""
    if not (schemas := runner.schemas()):
        return "up"
    schema = schemas[0]["function"]
    call = {"name": schema["name"], "arguments": _arguments(schema["parameters"], frame)}
    return f"{OPEN}{json.dumps(call)}{CLOSE}"


def _budget(bench: Bench, prompt: int, observed: int, media: int) -> tuple[Any, str]:
    """Say what rollouts with such a call in every turn take of the limits; lengths in tokens."""
    rollout = bench.config.at(0).rollout
    limits, turn = rollout.turns, rollout.max_tokens
    most = limits.max_turns
    length, written = prompt + most * turn + (most - 1) * observed, most * turn
    shown = (most - 1) * media
    text = (
        f"prompt {prompt} tokens, a turn at most {turn}, this observation {observed} with {media} media; "
        f"{most} turns like this are up to {length} tokens (max_length {limits.max_length}), {written} "
        f"of the policy (max_tokens {limits.max_tokens}), {shown} media (max_images {limits.max_images})"
    )
    if most > 1 and prompt + 2 * turn + observed > limits.max_length:
        return "FAIL", f"{text}: not even one observation fits"
    over = length > limits.max_length or written > limits.max_tokens or shown > limits.max_images
    return ("warn", f"{text}: the limits may end it earlier") if over else ("ok", text)


def _arguments(schema: Mapping[str, Any], frame: Frame) -> dict[str, Any]:
    """Return an example of each required argument; a box is the upper left quarter."""
    known = schema["properties"]
    return {key: _value(known[key], frame) for key in schema.get("required", ())}


def _value(schema: Mapping[str, Any], frame: Frame) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        pixels = ((frame.width or 56) // 2, (frame.height or 56) // 2)
        half = {"pixel": pixels, "norm1": (0.5, 0.5)}
        corner = [*half.get(frame.space, (500, 500))]
        return {4: [0, 0, *corner], 2: corner}.get(schema.get("minItems", 0), [])
    plain = {"integer": 1, "number": 2, "boolean": False, "string": "1 + 1", "object": {}}
    return plain.get(schema.get("type", ""), "1 + 1")
