"""Checks of data, processor and verifiers: all that can be wrong before the model says a word."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from vlmrl.answers import templates
from vlmrl.config import RewardConfig, whole
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.features.check.doctor_bench import Bench, CheckResult
from vlmrl.media.decode import decode
from vlmrl.policy.policy import Policy
from vlmrl.schema import Demo, Frame, Prompt, PromptBatch, Sample
from vlmrl.schema.media import Audio, Video, described
from vlmrl.scoring.reward_components import resolve
from vlmrl.scoring.scorer import Scorer
from vlmrl.scoring.verifier import FunctionVerifier
from vlmrl.training import sft
from vlmrl.truths import prompting

TRUTHS = 8
"""Rows of each source whose truth is scored."""
ENOUGH, NEARLY = 0.9, 0.99
"""Shares of a verifier's range. A right answer that states a confidence of 0.9 may get just that."""
PIXELS = 1e-5
FINE = 1_000_000
"""Cells across and down the grid on which a truth is stated without loss."""


def sources(opened: Sequence[Source]) -> Iterator[CheckResult]:
    """Load the first row of every source."""
    for source in opened:
        text = f"{source.name} {source.split}: {len(source.rows)} rows, "
        try:
            sample = source.sample(0)
            media = [described(m) for m in decode(sample, source.access, source.reading)]
        except UserError as error:
            yield CheckResult("warn", "source", f"{text}the first is bad: {error}")
        else:
            text += f"first row: {'; '.join(media) or 'no media'}"
            turns = [
                "a system turn" * bool(sample.system),
                f"{len(sample.examples)} examples" * bool(sample.examples),
                f"{len(sample.history)} earlier turns" * bool(sample.history),
            ]
            if any(turns):
                text += f"; before the question: {', '.join(filter(None, turns))}"
            yield CheckResult("ok", "source", text)


def rows(bench: Bench) -> Iterator[CheckResult]:
    """Report the share of bad rows among those looked at."""
    count = len(bench.prompts) + len(bench.bad)
    limit = bench.config.data.quarantine_limit
    text = f"{len(bench.bad)} of {count} training rows looked at are bad"
    if not bench.bad:
        yield CheckResult("ok", "rows", text)
        return
    text += f"; see `vlmrl data check`; the first: {bench.bad[0]}"
    yield CheckResult("FAIL" if len(bench.bad) / count > limit else "warn", "rows", text)


def lengths(bench: Bench) -> Iterator[CheckResult]:
    """Prompt tokens, media expanded, against the limit."""
    sizes = sorted(len(prompt.encoded.ids) for prompt in bench.prompts)
    limit = bench.config.data.max_prompt_tokens
    long = sum(length > limit for length in sizes)
    text = (
        f"prompts of {sizes[0]} to {sizes[-1]} tokens, median {statistics.median(sizes):g}, over "
        f"{len(sizes)} rows; data.max_prompt_tokens is {limit}"
    )
    if not long:
        yield CheckResult("ok", "lengths", text)
        return
    advice = f"{long} are dropped: raise the limit, or lower model.max_pixels"
    yield CheckResult("FAIL" if long == len(sizes) else "warn", "lengths", f"{text}; {advice}")


def demonstrations(bench: Bench) -> Iterator[CheckResult]:
    """Tokens of the rows' own demonstrations against the limit of completions: RL cuts longer ones."""
    written: list[int] = []
    for prompt in bench.prompts:
        if prompt.sample.demo is not None and not prompt.sample.demo.turns:
            with contextlib.suppress(UserError):  # a demonstration that its template does not take
                rollouts = sft.demonstrations(bench.policy, PromptBatch((prompt,)), 0.0, 0)
                written.append(len(rollouts.completions[0][0].token_ids))
    limit = bench.config.last.rollout.max_tokens
    long = sum(length > limit for length in written)
    if long:
        text = (
            f"{long} of {len(written)} demonstrations are longer than rollout.max_tokens, {limit}, the "
            f"longest {max(written)} tokens: completions like them are cut"
        )
        yield CheckResult("warn", "lengths", text)


def processor(bench: Bench) -> Iterator[CheckResult]:
    """Ids and pixels are those of the HF processor, and every placeholder gets a feature.

    Prompts with videos are not compared: each family's processor wants to be told of them otherwise. Nor are
    recordings of a family whose processor takes conversations alone.
    """
    first: dict[str, Prompt] = {}
    for prompt in sorted(bench.prompts, key=lambda prompt: not prompt.media):
        first.setdefault(prompt.sample.source, prompt)
    looked = [*first.values()]
    wrong = [f"sample {p.sample.id!r}: {problem}" for p in looked for problem in _unlike(bench, p)]
    for problem in wrong:
        yield CheckResult("FAIL", "processor", problem)
    if not wrong:
        media = sum(len(prompt.media) for prompt in looked)
        skipped = sum(_stands_apart(bench, prompt) for prompt in looked)
        apart = f"; {skipped} not compared" if skipped else ""
        text = "ids and media are the HF processor's, " if skipped < len(looked) else ""
        text += "every placeholder has its feature"
        counts = f"prompts: {len(looked)}, media: {media}{apart}"
        yield CheckResult("ok", "processor", f"{text} ({counts})")


def verifiers(bench: Bench) -> Iterator[CheckResult]:
    """Check that the truth, written as prompts ask for it, gets every verifier's full score.

    A stage's verifiers are looked at where they are others than the config's.
    """
    groups: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in bench.prompts:
        groups[prompt.sample.source].append(prompt)
    # What fails on a truth is reported below, by name.
    lenient = bench.config.scoring.model_copy(update={"fault_limit": 1.0})
    own = bench.scorer.rewards
    sets: dict[str, Mapping[str, Sequence[RewardConfig]]] = {"": own}
    for index, rewards in enumerate(bench.scorer.by_stage.values()):
        if others := {s: rewards[s] for s in rewards if rewards[s] != own.get(s)}:
            sets[f"{whole.label(bench.config.stages, index)}: "] = others
    for where, rewards in sets.items():
        with Scorer(rewards, lenient) as scorer:
            for source in [source for source in groups if source in rewards]:
                for result in _truths(bench, scorer, source, groups[source][:TRUTHS]):
                    yield replace(result, text=where + result.text)


# --------------------------------------------------------------------------------------- parts


def _unlike(bench: Bench, prompt: Prompt) -> Iterator[str]:
    """Where our prompt is not what the HF processor makes of it, or not what the model takes."""
    policy, ours = bench.policy, prompt.encoded
    if not _stands_apart(bench, prompt):
        yield from _unlike_processor(policy, prompt)
    if prompt.images:
        wanted = policy.family.images_tokens(policy.processor, [i.size for i in prompt.images])
        places = ours.ids.count(policy.base.config.image_token_id)
        if wanted != places:
            yield f"{places} placeholders for images of {wanted} tokens"
    family, device = policy.family, policy.device
    ids, positions = torch.tensor([ours.ids], device=device), ours.position_ids.to(device)
    try:
        with policy.generating():
            features = family.spread(family.tower_features(policy.base, [ours]), [ours], [0])
            family.decode(policy.base, ids, None, positions[:, None], features)
    except ValueError as error:  # the family counts features and placeholders
        yield str(error)


def _stands_apart(bench: Bench, prompt: Prompt) -> bool:
    """Return whether the HF processor does not take the prompt as it is."""
    videos = any(isinstance(medium, Video) for medium in prompt.media)
    return videos or (bool(prompt.media) and not bench.policy.family.one_call)


def _unlike_processor(policy: Policy, prompt: Prompt) -> Iterator[str]:
    ours = prompt.encoded
    shown: dict[str, Any] = {"images": list(prompt.images)} if prompt.images else {}
    if heard := [medium for medium in prompt.media if isinstance(medium, Audio)]:
        shown |= {"audio": [m.samples for m in heard], "sampling_rate": heard[0].rate}
    start = policy.tokenizer.bos_token
    begun = start is not None and prompt.text.startswith(start)  # by the chat template
    theirs = policy.processor(
        text=[prompt.text], **shown, add_special_tokens=not begun, return_tensors="pt"
    )
    if (ids := tuple(theirs["input_ids"][0].tolist())) != ours.ids:
        yield (
            f"{len(ours.ids)} ids are not the HF processor's {len(ids)}: a changed processor or "
            "another version of transformers"
        )
    for name in ours.tensors.keys() & theirs.keys():
        mine, other = ours.tensors[name].float(), theirs[name].float()
        if mine.shape != other.shape:
            yield f"{name} has shape {tuple(mine.shape)}, the HF processor's {tuple(other.shape)}"
        elif (gap := (mine - other).abs().max().item()) > PIXELS:
            yield f"{name} differs from the HF processor's by {gap:.2g}"


def _truths(
    bench: Bench, scorer: Scorer, source: str, prompts: Sequence[Prompt]
) -> Iterator[CheckResult]:
    best: dict[str, list[float]] = defaultdict(list)
    faults: dict[str, str] = {}
    looked: dict[str, RewardConfig] = {reward.label: reward for reward in scorer.rewards[source]}
    for prompt in prompts:
        sample, written = prompt.sample, []
        for text, frame in right_answers(sample, prompt.frame).items():
            ids = tuple(bench.policy.tokenizer(text)["input_ids"])
            written.append(templates.completion(text, sample.template, frame, token_ids=ids))
        (group,) = scorer.judge([written], [sample], whole=False)
        for reward in scorer.rewards_of(sample):
            looked[reward.label] = reward
            verdicts = [judged.verdicts[reward.label] for judged in group]
            scores = [v.score for v in verdicts if v.applies and v.score is not None]
            wrong = [v.fault for v in verdicts if v.fault is not None]
            if scores:
                best[reward.label].append(max(scores))
            elif wrong:
                faults[reward.label] = f"sample {sample.id!r}: {wrong[0]}"
    for reward in looked.values():
        name = f"{source}/{reward.label}"
        if reward.label in faults:
            problem = f"{name} fails on the truth: {faults[reward.label]}"
            yield CheckResult("FAIL", "verifier", problem)
        else:
            yield _judged(name, reward, best[reward.label], len(prompts))


def right_answers(sample: Sample, frame: Frame) -> dict[str, Frame]:
    """Return demonstrations of a sample's truth, each with the frame of its coordinates.

    A model writes whole pixels, which for a small box may be far from its truth, and no fault of
    the verifier. So the truth is stated on a finer grid too. None for a truth that no model could
    write.
    """
    if not prompting.can_write(sample.truth):
        return {}
    fine = replace(frame, space="resized", resized_width=FINE, resized_height=FINE)
    tags = (tag.name for tag in templates.template(sample.template).tags)
    demo = Demo("I see it.", answer=sample.truth, contents=dict.fromkeys(tags, "I see it."))
    return {
        prompting.demonstrate(demo, sample.template, f, form=sample.form): f for f in (fine, frame)
    }


def _judged(name: str, reward: RewardConfig, scores: Sequence[float], rows: int) -> CheckResult:
    verifier = resolve(reward).verifier
    if verifier.scope != "item":
        return CheckResult("ok", "verifier", f"{name} compares completions: one truth says nothing")
    if not scores:
        return CheckResult("warn", "verifier", f"{name} applies to none of {rows} rows looked at")
    least = (min(scores) - verifier.low) / (verifier.high - verifier.low)
    text = f"{name} gives the truth of {len(scores)} rows {min(scores):.3g} to {max(scores):.3g}"
    if least >= NEARLY:
        return CheckResult("ok", "verifier", text)
    about_truth = bool(verifier.needs) or isinstance(verifier, FunctionVerifier)
    text += f", {verifier.high:g} is the most"
    if least >= ENOUGH or not about_truth:
        return CheckResult("warn", "verifier", text)
    advice = f"mend the truth or the options; `vlmrl verify {reward.verifier}` shows more"
    return CheckResult("FAIL", "verifier", f"{text}: {advice}")
