"""Checks of model, engine and trainer: does it look, does it fit, do weights reach the engine?"""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from vlmrl.algorithms.base import needs_reference, passes_of
from vlmrl.answers import geometry, parsing, templates
from vlmrl.config import Config
from vlmrl.engines.base import Sampling
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.errors import UserError
from vlmrl.features.check.doctor_bench import Bench, CheckResult
from vlmrl.forward.packing import pack
from vlmrl.forward.sequence_parallel import find_obstacle
from vlmrl.interaction.driver import Driver, first_view
from vlmrl.interaction.tools import CLOSE, OPEN, PolicyTurn, Runner, parse_calls
from vlmrl.interaction.trail import Trail
from vlmrl.monitoring.media_ablation import measure_reliance
from vlmrl.monitoring.memory_forecast import TIGHT, Forecast, cached_completions, forecast
from vlmrl.monitoring.run_checks import Parity, make_probe_prompts, measure_parity, tolerance
from vlmrl.policy.optimizers import adamw
from vlmrl.runs.complaints import NO_ANSWERS
from vlmrl.schema import Completion, Frame, Prompt, PromptBatch, Rewards, Rollouts, Space
from vlmrl.schema.media import Decoded, PilImage

# --------------------------------------------------------------------------------------------------
# Rollouts of several turns at their limits: what a forecast of memory counts, and engines must take.


def longest_of(bench: Bench) -> Prompt | None:
    """Return the longest prompt of a source that acts; None: no source does."""
    if not isinstance(bench.options, Driver):
        return None
    acting = [p for p in bench.prompts if p.sample.source in bench.options.open_runner]
    return max(acting, key=lambda prompt: len(prompt.encoded.ids), default=None)


def write_longest(config: Config, bench: Bench, prompt: Prompt) -> tuple[Completion, Prompt]:
    """Return a rollout of full-length turns, as many as fit, and the prompt of its last turn.

    Between its turns an image like the prompt's is shown.
    """
    policy, limits, turn = bench.policy, config.rollout.turns, config.rollout.max_tokens
    sampled = {"token_ids": (1,) * turn, "logprobs": (0.0,) * turn}
    reply = templates.completion("", prompt.sample.template, prompt.frame, **sampled)
    image = next((medium for medium in prompt.media if isinstance(medium, PilImage)), None)
    shown: list[str | Decoded] = ["Nothing was found." if image is None else image]
    trail, last = Trail(policy.family, policy.processor, prompt).write(reply), prompt
    while trail.num_turns < min(limits.max_turns, limits.max_tokens // turn):
        segment, encoded = trail.encode_observation(shown)
        longer = trail.length + len(encoded.ids) + turn
        media = len(trail.media) + len(segment.media)
        if longer > limits.max_length or media > limits.max_images:
            break
        trail = trail.observe(segment, encoded)
        last = trail.next_prompt()
        trail = trail.write(reply)
    return trail.finish(reply, "stop"), last


def require_engine_room(bench: Bench, prompt: Prompt) -> CheckResult | None:
    """Say in one line where the engine's limits end a rollout before those of the config do."""
    assert isinstance(bench.options, Driver)
    _, last = write_longest(bench.config.at(0), bench, prompt)
    try:
        bench.options.inner.require_room(bench.policy, last, bench.config.at(0).rollout.max_tokens)
    except UserError as error:
        text = f"rollout.turns allows more than the engine takes, which ends rollouts: {error}"
        return CheckResult("warn", "turns", text)
    return None


# --------------------------------------------------------------------------------------------------
# Check of tools and environments: one rollout of two turns as the model would see it, and its cost.


def turns(bench: Bench) -> Iterator[CheckResult]:
    """Call the first function of each source that acts, with an example, and show the whole."""
    with bench.opened_tools() as runners:
        for source, runner in runners.items():
            prompt = next((p for p in bench.prompts if p.sample.source == source), None)
            if prompt is not None:
                yield _example(bench, prompt, runner)
    longest = longest_of(bench)
    if longest is not None and (result := require_engine_room(bench, longest)) is not None:
        yield result


def _example(bench: Bench, prompt: Prompt, runner: Runner) -> CheckResult:
    policy, text = bench.policy, "up"  # any word, where the whole text is the action
    if schemas := runner.schemas():
        schema = schemas[0]["function"]
        known, required = schema["parameters"]["properties"], schema["parameters"].get("required")
        arguments = {key: _value(known[key], prompt.frame) for key in required or ()}
        call = {"name": schema["name"], "arguments": arguments}
        text = f"{OPEN}{json.dumps(call)}{CLOSE}"
    ids = (*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.stop_ids[0])
    sampled = {"token_ids": ids, "logprobs": (0.0,) * len(ids)}
    reply = templates.completion(text, prompt.sample.template, prompt.frame, **sampled)
    view = first_view(policy.family, policy.processor, prompt)
    world = runner.begin(prompt.sample, 0)
    (outcome,) = runner.run_all([PolicyTurn(parse_calls(text), view, text, world)])
    source = prompt.sample.source
    if outcome.fault is not None:
        return CheckResult("FAIL", "turns", f"{source}: a call failed: {outcome.fault}")
    if outcome.step is not None and outcome.step.done:
        return CheckResult("ok", "turns", f"{source}: the world ended at the example {text}")
    trail = Trail(policy.family, policy.processor, prompt).write(reply)
    segment, encoded = trail.encode_observation(outcome.parts)
    trail = trail.observe(segment, encoded)
    verdict, budget = _budget(bench, len(prompt.encoded.ids), len(encoded.ids), len(segment.media))
    shown = textwrap.indent(trail.next_prompt().text, "      | ", lambda line: True)
    text = f"{source}: {budget}; an example, as the policy would see it:\n{shown}"
    return CheckResult(verdict, "turns", text)


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


def _value(schema: Mapping[str, Any], frame: Frame) -> Any:
    """Return an example of an argument; a box is the upper left quarter."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        pixels = ((frame.width or 56) // 2, (frame.height or 56) // 2)
        half = {"pixel": pixels, "norm1": (0.5, 0.5)}
        corner = [*half.get(frame.space, (500, 500))]
        return {4: [0, 0, *corner], 2: corner}.get(schema.get("minItems", 0), [])
    plain = {"integer": 1, "number": 2, "boolean": False, "string": "1 + 1", "object": {}}
    return plain.get(schema.get("type", ""), "1 + 1")


# --------------------------------------------------------------------------------------------------


BATCH = 4
"""Prompts of the training step."""
BLIND = 1e-5
"""A model whose log-probs move less than this with the media (nats) does not get them at all."""
NUDGE = 0.05
"""Size of the change of weights that must reach the engine, relative to their own deviation."""
CLEAR = 0.1
"""How much better (IoU) another space must fit before it is worth a warning."""


def media(bench: Bench) -> Iterator[CheckResult]:
    """Check that the model's answers depend on the images, videos and audio."""
    if not bench.shown:
        yield CheckResult("ok", "media", "no prompt has media")
        return
    limits = bench.config.last.rollout.max_tokens, bench.config.rollout.prompts
    reliance = measure_reliance(bench.engine, bench.policy, bench.scorer, bench.shown, *limits)
    floor = bench.config.checks.media_ablation_min_drop
    if blind := reliance.complaint(BLIND):
        yield CheckResult("FAIL", "media", blind)
    elif floor is not None and (complaint := reliance.complaint(floor)):
        yield CheckResult("warn", "media", complaint)
    else:
        drops = ((k.removeprefix("media_ablation/"), v) for k, v in reliance.metrics().items())
        text = ", ".join(f"{name} {drop:.3g}" for name, drop in drops)
        yield CheckResult("ok", "media", f"the model looks: {text}")


def coordinates(bench: Bench) -> Iterator[CheckResult]:
    """Guess the space of the boxes in greedy answers; scoring never uses this."""
    asked = [p for p in bench.prompts if p.sample.truth.boxes and p.images]
    if not asked:
        yield CheckResult("ok", "coordinates", "no truth has boxes in an image")
        return
    greedy = Sampling(n=1, max_tokens=bench.config.last.rollout.max_tokens, greedy=True)
    rollouts = bench.engine.generate(PromptBatch(tuple(asked)), greedy)
    own = bench.policy.family.space
    pairs = [(p, c) for p, (c,) in zip(asked, rollouts.completions, strict=True) if c.answer]
    fits = {space: _fit(pairs, space) for space in (own, *get_args(Space))}
    if not fits[own]:
        text = f"none of {len(asked)} greedy answers has a box: nothing can be said"
        yield CheckResult("ok", "coordinates", f"{text} (the family writes {own})")
        return
    means = {space: sum(fit) / len(fit) for space, fit in fits.items() if fit}
    best = max(means, key=lambda space: means[space])
    seen = ", ".join(f"{space} {mean:.2f}" for space, mean in means.items())
    text = f"mean IoU of {len(fits[own])} answers read as {seen}; they are read as {own}"
    if means[best] < means[own] + CLEAR:
        yield CheckResult("ok", "coordinates", text)
    else:
        text += f", but seem to be {best}: cold-start or prompt it"
        yield CheckResult("warn", "coordinates", text)


def memory(bench: Bench) -> Iterator[CheckResult]:
    """Compare the forecast of a step's peak with the device."""
    policy, parts = bench.policy, bench.config.distributed.sequence_parallel
    if parts > 1 and (obstacle := find_obstacle(policy.base, policy.sharing.possible, parts)):
        yield CheckResult("FAIL", "memory", obstacle)
        return
    kl = any(map(needs_reference, bench.algorithms))
    forecasts: dict[str, tuple[Forecast, float]] = {}
    for moment in bench.config.moments:
        now = bench.config.at(moment)
        sizes = now.model_dump_json(include={"rollout", "optimizer"})
        if sizes not in forecasts:
            forecasts[sizes] = _forecast(bench, now, kl), moment
    seen, when = max(forecasts.values(), key=lambda each: each[0].peak)
    largest = f" (the largest, {100 * when:g} % into training)" if len(forecasts) > 1 else ""
    device = policy.device.type
    if seen.share <= TIGHT:
        yield CheckResult("ok", "memory", f"{device}: a step{largest} needs about {seen}")
    else:
        text = f"{device}: a step{largest} needs about {seen}; {seen.advice()}"
        yield CheckResult("FAIL" if seen.share > 1 else "warn", "memory", text)
    engine = bench.generator
    if not isinstance(engine, VllmOptions) or not seen.parts["engine"] + seen.parts["kv cache"]:
        return
    limit = bench.config.last.rollout.max_tokens
    cache, fit = cached_completions(engine, policy, bench.prompts, limit)
    text = f"vLLM's share leaves about {cache / 2**30:.2f} GiB: {fit} of the longest completions"
    if fit:
        yield CheckResult("ok", "memory", f"{text} at a time")
    else:
        lever = "gpu_memory_utilization" if device == "cuda" else "kv_cache_gib"
        yield CheckResult("FAIL", "memory", f"{text} fit; raise engine.options.{lever}")


def first_parity(bench: Bench) -> Iterator[CheckResult]:
    """Check that the engine computes what the trainer computes."""
    parity = _parity(bench)
    parity.require(_allowed(bench), "before any update")
    yield CheckResult("ok", "parity", f"before any update: {_numbers(parity)}")


def step(bench: Bench) -> Iterator[CheckResult]:
    """One real batch is generated, scored and trained on; its rewards alternate."""
    config, policy = bench.config.at(0), bench.policy
    draw = config.rollout
    sampling = Sampling.of(draw, draw.group_size)
    drawn_from = {source.label for source in config.data.train}  # of the first stage
    prompts = [prompt for prompt in bench.prompts if prompt.sample.source in drawn_from]
    rollouts = bench.engine.generate(PromptBatch(tuple(prompts[:BATCH])), sampling)
    rewards = bench.scorer.score(rollouts)
    lr, name = config.optimizer.lr, config.optimizer.name
    policy.use_optimizer(adamw(policy.trainable, lr, name=name), config.optimizer)
    bench.engine.rest()
    update = _update(bench, rollouts)
    bench.engine.sync(policy)
    drawn = f"{len(rollouts.completions)} prompts x {draw.group_size} completions"
    scored = f"mean reward {rewards.total[rewards.valid].mean():.3g}" if rewards.valid.any() else ""
    norm = update["update/grad_norm"]
    completions = [c for group in rollouts.completions for c in group]
    readable = sum(completion.answer is not None for completion in completions)
    answers = f"{readable} of {len(completions)} answers readable"
    text = f"{drawn}, {answers}, {scored or 'all masked'}, gradient norm {norm:.3g}"
    if update["update/skipped"] or not norm:
        advice = "nothing would be learnt; try model.dtype=float32"
        yield CheckResult("FAIL", "step", f"{text}: {advice}")
    elif not scored:
        yield CheckResult("FAIL", "step", f"{text}: no completion has a reward")
    elif not readable and bench.config.sft is None:
        excerpt = f"the first completion: {completions[0].text!r:.120}"
        yield CheckResult("warn", "step", f"{text}: nothing to learn from; {NO_ANSWERS}; {excerpt}")
    else:
        yield CheckResult("ok", "step", text)


def second_parity(bench: Bench) -> Iterator[CheckResult]:
    """Check that changed weights reach the engine."""
    allowed = _allowed(bench)
    _nudge(bench.policy.trainable)
    stale = _parity(bench)
    bench.engine.sync(bench.policy)
    parity = _parity(bench)
    parity.require(allowed, "after a change of all trained weights")
    text = f"after a change of all trained weights: {_numbers(parity)}"
    if bench.engine.capabilities.exact:
        yield CheckResult("ok", "sync", f"{text}; the engine shares the trainer's weights")
    elif stale.mean_abs > 10 * allowed:
        yield CheckResult("ok", "sync", f"{text}; before the sync {stale.mean_abs:.2g}")
    else:
        small = f"the change itself moved log-probs by {stale.mean_abs:.2g} only"
        yield CheckResult("warn", "sync", f"{text}; {small}: this proves little")


# --------------------------------------------------------------------------------------- parts


def _forecast(bench: Bench, now: Config, kl: bool) -> Forecast:
    """Forecast a step of whole rollouts, where a source acts in several turns."""
    prompt, engine = longest_of(bench), bench.generator
    if prompt is None:
        return forecast(now, bench.policy, engine, bench.prompts, kl)
    return forecast(now, bench.policy, engine, [prompt], kl, write_longest(now, bench, prompt)[0])


def _parity(bench: Bench) -> Parity:
    prompts = (*make_probe_prompts(bench.policy, bench.turns), *bench.shown[:2])
    return measure_parity(bench.engine, bench.policy, prompts)


def _allowed(bench: Bench) -> float:
    return bench.config.checks.parity_tolerance or tolerance(bench.policy)


def _numbers(found: Parity) -> str:
    return (
        f"engine and trainer differ by {found.mean_abs:.2g} nats on average, {found.max_abs:.2g} at "
        f"most, over {found.tokens} tokens"
    )


def _update(bench: Bench, rollouts: Rollouts) -> dict[str, float]:
    """Train on rewards of 1 and 0 in turns, with all that the algorithm does before an update."""
    config, policy, algorithm = bench.config.at(0), bench.policy, bench.algorithms[0]
    prompts, completions = map(torch.arange, rollouts.shape)
    ones = (prompts[:, None] + completions) % 2 == 0
    rewards = Rewards(ones.float(), torch.ones_like(ones), ())
    advantages = algorithm.advantages(rewards, rollouts, 0.0)
    batches = pack(
        rollouts,
        advantages,
        updates=1,
        micro_tokens=config.optimizer.micro_batch_tokens,
        max_tokens=config.rollout.max_tokens,
    )
    if needs_reference(algorithm):
        with tempfile.TemporaryDirectory() as folder:
            policy.keep_reference(Path(folder) / "reference")
    batches = policy.run_passes(batches, passes_of(algorithm), seed=0)
    return policy.update(list(algorithm.prepare(batches, 0.0)), algorithm, config.optimizer.lr, 0.0)


@torch.no_grad()
def _nudge(weights: Sequence[torch.nn.Parameter]) -> None:
    for number, weight in enumerate(weights):
        generator = torch.Generator(weight.device).manual_seed(number)
        noise = torch.randn(weight.shape, generator=generator, device=weight.device)
        spread = weight.float().std(correction=0)
        # Weights that are all alike (norms, fresh adapters) have no deviation of their own.
        weight.add_((noise * (NUDGE * spread + 1e-3)).to(weight.dtype))


def _fit(pairs: Sequence[tuple[Prompt, Completion]], space: Space) -> list[float]:
    """Per answer that has boxes in any space: how well they fit the truth, read in this one."""
    fits = []
    for prompt, completion in pairs:
        boxes = {
            each: parsing.boxes(completion.answer or "", replace(prompt.frame, space=each))[0]
            for each in get_args(Space)
        }
        if any(boxes.values()):
            best = [
                max((geometry.iou(true, box) for box in boxes[space]), default=0.0)
                for true in prompt.sample.truth.boxes or ()
            ]
            fits.append(sum(best) / len(best))
    return fits
