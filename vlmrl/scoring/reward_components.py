"""From `RewardConfig` to a verifier to call: schedules, shipped names, users' functions.

A component is one entry of a source's `rewards` at one moment of training. Verifiers are built once
per set of options and kept; worker processes build their own from the same name and options.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import RewardConfig, ScoringConfig, schedule
from vlmrl.config.sections.rewards import check_names
from vlmrl.errors import UserError
from vlmrl.schema import (
    MAX_CONFIGURATIONS,
    AnswerForm,
    Completion,
    RowReward,
    Sample,
    Template,
    Verdict,
)
from vlmrl.scoring.verifier import CorrectnessVerifier, FunctionVerifier, Verifier

# --------------------------------------------------------------------------------------------------
# TRL's reward functions.


def is_trl_function(function: Callable[..., Any]) -> bool:
    """Return whether the signature is a TRL reward function's: it asks for `completions`."""
    return "completions" in inspect.signature(function).parameters


# --------------------------------------------------------------------------------------------------
# A reward as a component: the verifier, its schedule and its deadline.


SLOW_DEADLINE = 5.0
"""Seconds one call of a slow verifier may take when the config names no deadline."""
USER_DEADLINE = 30.0
"""Seconds one call of a user's verifier may take when the config names no time limit."""
OFFERED = ("answer", "truth", "completion", "sample", "text", "thought")
"""What a plain function may ask for (`verifier.FunctionVerifier`)."""

Spec = tuple[str, str]
"""A verifier by reference: its name in the config and its options as JSON."""


@dataclass(frozen=True, slots=True)
class Component:
    """One verifier of a source with its weight at some moment of training."""

    label: str
    verifier: Verifier
    weight: float
    reward: RewardConfig
    """The entry in the config, which says how its score counts."""
    spec: Spec
    deadline: float | None
    """Seconds for one call in the pool; None: calls run in line."""

    def judge(self, completion: Completion, sample: Sample, *shown: Any) -> Verdict:
        """Judge what the reward grades of one completion, here; `shown` is what the policy saw."""
        return judge_tag(self.verifier, self.reward.tag, completion, sample, *shown)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether its calls run in the pool or in threads."""
        return self.deadline is not None or self.verifier.waits


def judge_tag(
    verifier: Verifier, tag: str | None, completion: Completion, sample: Sample, *shown: Any
) -> Verdict:
    """Judge the content of a tag of one completion, the template's answer where `tag` is None."""
    read = completion if tag is None else templates.of_tag(completion, tag)
    return verifier(read, sample, *shown)


def check_tags(rewards: Iterable[RewardConfig], template: str | Template) -> None:
    """Check that a template has the tags that rewards grade.

    Raises:
        UserError: it has not, or the tag is the thought, which is never graded.
    """
    graded = [(reward.label, reward.tag) for reward in rewards if reward.tag is not None]
    if not graded:  # of most samples, and this is asked for each
        return
    tags = [tag.name for tag in templates.template(template).tags if tag.name != "think"]
    for label, tag in graded:
        if tag not in tags:
            raise UserError(
                f"reward {label!r}: tag: expected one that the template {template} has "
                f"({', '.join(tags) or 'none'}), got {tag!r}{plugins.nearest(tag, tags)}"
            )


def resolve(reward: RewardConfig, progress: float = 0.0) -> Component:
    """Return the component that `reward` means at `progress` (share of training done, in [0, 1]).

    Raises:
        UserError: unknown verifier or option, a wrong type, or a schedule that makes no sense.
    """
    where = f"reward {reward.label!r}"
    options = {
        key: schedule.resolve(value, progress, f"{where}, option {key!r}")
        for key, value in reward.options.items()
    }
    weight = schedule.resolve(reward.weight, progress, f"{where}, weight")
    spec = (reward.verifier, json.dumps(options, sort_keys=True, default=str))
    verifier = build(spec)
    if reward.tag is not None and verifier.scope != "item":
        raise UserError(f"{where}: tag: expected a verifier of single completions")
    deadline = reward.timeout_s
    if deadline is None:  # a user's verifier may hang, a shipped one only if it is slow
        is_users = ":" in reward.verifier and not verifier.waits
        deadline = SLOW_DEADLINE if verifier.slow else USER_DEADLINE if is_users else None
    return Component(reward.label, verifier, float(weight), reward, spec, deadline)


@functools.lru_cache(maxsize=256)
def from_row(reward: RowReward) -> RewardConfig:
    """Return a row's reward as a config would state it."""
    options = json.loads(reward.options)
    return RewardConfig(verifier=reward.verifier, weight=reward.weight, options=options)


def from_rows(
    sample: Sample, of_source: Sequence[RewardConfig], named: set[RowReward]
) -> list[RewardConfig]:
    """Return the rewards of a sample with its own: the gates of its source, then its own.

    `named` collects what the rows of a run name.

    Raises:
        UserError: that becomes more than MAX_CONFIGURATIONS.
    """
    named.update(replace(reward, weight=1.0) for reward in sample.rewards)
    if len(named) > MAX_CONFIGURATIONS:
        raise UserError(
            f"sample {sample.id!r}: its rewards: the rows of a run may name at most "
            f"{MAX_CONFIGURATIONS} different verifiers with options"
        )
    own = [from_row(reward) for reward in sample.rewards]
    labels = {reward.label for reward in own}
    return [r for r in of_source if r.gate and r.label not in labels] + own


def moments(reward: RewardConfig) -> list[float]:
    """Return each progress at which the component must be looked at; see `config.schedule.moments`."""
    values = [reward.weight, *reward.options.values()]
    where = f"reward {reward.label!r}"
    return sorted({m for value in values for m in schedule.moments(value, where)})


def components_of(
    source: str, rewards: Sequence[RewardConfig], scoring: ScoringConfig
) -> list[Component]:
    """Return the components of a source at every moment of its schedules.

    Raises:
        UserError: as `resolve` and `check_joined`; `combine: gate` without a gate; a reward is to be
            correct by one that there is not. The rest the config has checked.
    """
    if scoring.combine == "gate" and not any(reward.gate for reward in rewards):
        raise UserError(f"source {source!r}: scoring.combine is gate, but no reward is a gate")
    resolved = [resolve(each, at) for each in rewards for at in moments(each)]
    check_joined(resolved)
    items = [c.label for c in resolved if c.verifier.scope == "item"]
    for c in resolved:
        by = c.verifier.correct_by if isinstance(c.verifier, CorrectnessVerifier) else None
        if by is not None and by not in items:
            raise UserError(
                f"source {source!r}, reward {c.label!r}: expected correct_by to name an item reward "
                f"of this source, got {by!r}{plugins.nearest(by, items)}"
            )
    return resolved


def check_joined(components: Sequence[Component]) -> None:
    """Check what the rewards of one source say of each other, and their limits, at every moment.

    Raises:
        UserError: as `check_names`; a limit that every or no score exceeds, or a factor that may be
            negative.
    """
    check_names([c.reward for c in components])
    by_label = {c.label: c.verifier for c in components}
    for c in components:
        limits = [(f"gated_by {name!r}", name, above) for name, above in c.reward.gated_by.items()]
        limits += [("gate_above", c.label, c.reward.gate_above)] if c.reward.gate else []
        for key, name, limit in limits:
            low, high = by_label[name].low, by_label[name].high
            if not low <= limit < high:
                raise UserError(
                    f"reward {c.label!r}: {key}: expected at least {low:g} and less than {high:g}, the "
                    f"range of the scores of {name!r}, got {limit:g}"
                )
        low, high = c.verifier.low, c.verifier.high
        if c.reward.max_score is not None and not low < c.reward.max_score <= high:
            raise UserError(
                f"reward {c.label!r}: max_score: expected more than {low:g} and at most {high:g}, the "
                f"range of its scores, got {c.reward.max_score:g}"
            )
        if c.reward.multiplies and 1 + min(c.weight * low, c.weight * high) < 0:
            raise UserError(
                f"reward {c.label!r}: multiplies: expected a weight with 1 + w·s >= 0 for scores from "
                f"{low:g} to {high:g}, got {c.weight:g}"
            )


@functools.lru_cache(maxsize=256)
def build(spec: Spec) -> Verifier:
    """Return the verifier that a spec stands for; the same object for the same spec in one process.

    The name is a shipped verifier's, or `file.py:Name` or `module:Name` of a Verifier class, of a
    plain function (`FunctionVerifier`) or of a TRL reward function (`is_trl_function`).

    Raises:
        UserError: as `plugins.build`; or the name is no verifier's, or a function asks for
            something that nobody passes.
    """
    name, options_json = spec
    options = json.loads(options_json)
    factory = plugins.load("verifier", name)
    if inspect.isclass(factory) and issubclass(factory, Verifier):
        verifier: Verifier = plugins.build("verifier", name, options)
        return verifier
    if inspect.isclass(factory) or not callable(factory):
        raise UserError(f"verifier {name!r} is neither a function nor a subclass of vlmrl Verifier")
    label = name.rpartition(":")[2]
    if is_trl_function(factory):
        from vlmrl.scoring.trl_verifier import TrlVerifier  # few runs have one

        return TrlVerifier(functools.partial(factory, **options), label)
    _check_signature(name, factory, options)
    return FunctionVerifier(functools.partial(factory, **options), label)


def _check_signature(
    name: str, function: Callable[..., Any], options: Mapping[str, object]
) -> None:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in options:
        if key not in parameters and not takes_any:
            raise UserError(
                f"verifier {name!r} has no option {key!r}{plugins.nearest(key, list(parameters))}"
            )
    for key, parameter in parameters.items():
        fixed = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        optional = parameter.default is not parameter.empty
        if key in OFFERED or key in options or fixed or optional:
            continue
        raise UserError(
            f"verifier {name!r} asks for {key!r}, which nobody passes; a verifier function may "
            f"name any of {', '.join(OFFERED)}, and options that the config sets"
        )


# --------------------------------------------------------------------------------------------------
# How all verifiers of a source together read an answer.


def form_of(rewards: Sequence[RewardConfig]) -> AnswerForm:
    """Return the form of an answer that all these verifiers can read, as training begins.

    What grades another tag says nothing of the answer.

    Raises:
        UserError: a verifier cannot be built, or two read the answer under different keys.
    """
    forms = {
        reward.label: resolve(reward).verifier.answer_form()
        for reward in rewards
        if reward.tag is None
    }
    keys: dict[str, str] = {}
    for label, form in forms.items():
        if form.key is not None:
            keys.setdefault(form.key, label)
    if len(keys) > 1:
        (a, first), (b, second), *_ = keys.items()
        raise UserError(
            f"rewards {first!r} and {second!r} read one answer under two keys, {a!r} and {b!r}: "
            "give both the same key, or each a source of its own"
        )
    return AnswerForm(
        kinds=tuple(dict.fromkeys(kind for form in forms.values() for kind in form.kinds)),
        key=next(iter(keys), None),
        confidence=any(form.confidence for form in forms.values()),
        pointed=any(form.pointed for form in forms.values()),
        own_lines=any(form.own_lines for form in forms.values()),
    )
