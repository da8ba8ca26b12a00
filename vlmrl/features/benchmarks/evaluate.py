"""`vlmrl eval`: a model on a card or a file, with the verifiers that train, and a manifest of how.

A number without its prompt, pixel budget, coordinate space and verifier options cannot be compared;
the manifest holds them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.assemble.prompts import build_prompt_maker
from vlmrl.assemble.sources import with_audio
from vlmrl.assemble.trained_run import run_of
from vlmrl.assemble.turns import drive, schemas_of
from vlmrl.config import (
    ChunksConfig,
    Config,
    EvaluationConfig,
    ModelConfig,
    PluginRef,
    RewardConfig,
    ScoringConfig,
    SourceConfig,
    TurnsConfig,
)
from vlmrl.config.sections.run import hide_secrets
from vlmrl.data.loader import eval_batches
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.source import (
    access_of,
    held_out_split,
    open_card,
    open_source,
    reading_of,
    target,
)
from vlmrl.engines.base import Engine, RunningEngine
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.models.loading import load_model, pixels_of
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.output.outputs import Output
from vlmrl.runs.run_log import SILENT
from vlmrl.scoring.reward_components import form_of, resolve
from vlmrl.scoring.scorer import Scorer
from vlmrl.training.evaluation import Evaluation, evaluate

MAX_TOKENS = 512
"""Completion limit of a model that comes with no run config."""


def evaluate_model(
    model: str,
    data: str,
    *,
    samples: int = 0,
    force_thinking: bool = False,
    out: Path | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    max_tokens: int | None = None,
    rewards: Sequence[RewardConfig] = (),
    engine: PluginRef = PluginRef(name="hf"),
    options: dict[str, Any] | None = None,
    template: str | None = None,
    output: Output = SILENT,
) -> dict[str, Any]:
    """Evaluate a checkpoint folder, a run folder (its best checkpoint) or a hub name.

    `data` is `CARD_OR_FILE[:split]`. A model of a run is asked and judged as that run did where it knows
    the data; else `rewards` or the card's own verifiers judge. `template` takes the place of theirs.
    Writes `evaluation.json` and `evaluation.jsonl` (every sample) into `out`, if given; returns the
    result with its manifest.

    Raises:
        UserError: no such model, card, split or verifier; nothing judges this data.
    """
    run, folder = run_of(model)
    source = _source(run, data, options, limit)
    source = source.model_copy(update={"template": template or source.template})
    source = source.model_copy(update={"rewards": list(rewards) or _rewards(run, source)})
    assert source.rewards is not None
    tokens = max_tokens or (run.last.rollout.max_tokens if run else MAX_TOKENS)
    turns, chunks = _turns(run, source, force_thinking)
    plan = EvaluationConfig(samples=samples, batch_size=batch_size, force_thinking=force_thinking)
    settings = ModelConfig(path=folder)
    with output.doing(f"loading model {folder}"):
        policy = Policy(*load_model(settings), settings)
    reading = reading_of(run.data) if run else None
    sources = with_audio([open_source(source, _access(run, source), reading)], policy.family)
    quarantine = Quarantine()
    with ExitStack() as stack:
        with output.doing(f"starting engine {engine.name}"):
            generator = _start(engine, source, turns, chunks, sources[0].access, policy, stack)
        scoring = run.scoring if run else ScoringConfig(combine="mean")
        scorer = stack.enter_context(Scorer({source.label: source.rewards}, scoring))
        make = _prompt_maker(policy, source)
        batches = eval_batches(sources, make, plan.batch_size, quarantine=quarantine)
        with output.doing(f"evaluating {data}, {source.split}", len(sources[0].rows)) as activity:
            evaluation = evaluate(
                batches, generator, scorer, plan, tokens, policy=policy, told=activity.done
            )
    asked = {"model": model, "data": data, "engine": engine.model_dump(mode="json")}
    asked |= _circumstances(source, policy, tokens, turns, chunks, evaluation)
    manifest = hide_secrets(asked | {"fault_limit": scoring.fault_limit})
    dropped = dict(quarantine.counts)
    result = {**evaluation.result, "dropped": dropped, "manifest": manifest}
    if out is not None:
        run_folder.write_benchmark(out, result, evaluation.rows(out / "media"))
    return result


def require_verdicts(result: Mapping[str, Any]) -> None:
    """Raise UserError if a verifier failed on a larger share of completions than its run allows."""
    limit = result["manifest"]["fault_limit"]
    for name, faults in result.get("faults", {}).items():
        if faults > limit * result["num_asked"]:
            raise UserError(
                f"verifier {name!r} failed on {faults} of {result['num_asked']} completions; "
                f"scoring.fault_limit allows a share of {limit:g}: mend the verifier"
            )


def _circumstances(
    source: SourceConfig,
    policy: Policy,
    max_tokens: int,
    turns: TurnsConfig,
    chunks: ChunksConfig | None,
    evaluation: Evaluation,
) -> dict[str, Any]:
    """Return what a number must come with to be compared: data, space, pixels, prompts, versions."""
    limits = turns.model_dump(mode="json", exclude={"branching"})
    digest = hashlib.sha256()
    for drawn, rollouts, _ in evaluation.scored:
        for prompt in rollouts.batch.prompts if drawn == "greedy" else ():
            digest.update(prompt.text.encode() + b"\0")
    return {
        "source": source.model_dump(mode="json"),
        "space": policy.family.space,
        "pixels": pixels_of(policy.processor),
        "max_tokens": max_tokens,
        **({"turns": limits} if source.acts else {}),
        **({"chunks": chunks.model_dump(mode="json")} if chunks else {}),
        "prompts_sha256": digest.hexdigest(),
        "versions": run_folder.versions(),
        "git": run_folder.revision(),
    }


def _prompt_maker(policy: Policy, source: SourceConfig) -> Any:
    forms = {source.label: form_of(source.rewards or ())}
    offered = schemas_of(source, policy.family.space) if source.instruct else ()
    tools = {source.label: offered} if offered else {}
    return build_prompt_maker(policy, {source.label: source.instruct}, forms, tools=tools)


def _turns(
    run: Config | None, source: SourceConfig, force_thinking: bool
) -> tuple[TurnsConfig, ChunksConfig | None]:
    """Return what a rollout of several turns may take, and how others are in chunks: as the run's."""
    if source.acts and force_thinking:
        raise UserError(
            f"{source.card}: --force-thinking: expected a source without tools and environment"
        )
    if run is None:
        return TurnsConfig(), None
    return run.last.rollout.turns, None if source.acts else run.last.rollout.chunks


def _start(
    chosen: PluginRef,
    source: SourceConfig,
    turns: TurnsConfig,
    chunks: ChunksConfig | None,
    access: Access,
    policy: Policy,
    stack: ExitStack,
) -> RunningEngine:
    """Start the engine, with a driver around it for tools of the source and chunks; the stack closes it."""
    engine: Engine = plugins.build("engine", chosen.name, chosen.options)
    if source.acts or chunks:
        engine = drive(engine, [source], turns, {source.label: access}, chunks)
    running = engine.start(policy)
    stack.callback(running.close)
    return running


def _source(
    run: Config | None, data: str, options: dict[str, Any] | None, limit: int | None
) -> SourceConfig:
    card, split = target(data)
    for known in run.data.train if run else []:
        if card in (known.card, known.label):
            update: dict[str, Any] = {"limit": limit}
            if options:
                update["options"] = {**known.options, **options}
            return _with_split(known.whole(split).model_copy(update=update))
    return _with_split(SourceConfig(card=card, split=split, options=options or {}, limit=limit))


def _with_split(source: SourceConfig) -> SourceConfig:
    """Return a source with a split: its own, the only one of its data, or the one that is held out."""
    if source.split:
        return source
    card = open_card(source.card, source.options)
    known = card.splits_there()
    return source.model_copy(
        update={"split": known[0] if len(known) == 1 else held_out_split(card)}
    )


def _access(run: Config | None, source: SourceConfig) -> Access | None:
    """Return what the run's data may be read from; its media root is only for data that it knows."""
    if run is None:
        return None
    access = access_of(run.data)
    known = any(source.card == each.card for each in run.data.train)
    return access if known else replace(access, root=None)


def _rewards(run: Config | None, source: SourceConfig) -> list[RewardConfig]:
    if run is not None and any(known.label == source.label for known in run.data.train):
        return run.rewards_of(source)
    opened = open_source(source, _access(run, source))
    first = opened.sample(0)
    named = [RewardConfig(verifier=name) for name in opened.card.fitting_verifiers()]
    for rewards in (named, run.rewards if run else []):
        fitting = [r for r in rewards if resolve(r, 1.0).verifier.applies_to(first)]
        if fitting:
            return fitting
    raise UserError(
        f"{source.card}: the card and the run name no verifier that fits; add --verifier NAME"
    )
