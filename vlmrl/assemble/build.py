"""From a config to the parts of a run: this room alone knows all of them."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vlmrl import plugins
from vlmrl.algorithms.base import Algorithm, passes_of
from vlmrl.assemble import resuming
from vlmrl.assemble.beginning import begin_folder
from vlmrl.assemble.prompts import (
    build_eval_batches,
    build_loader,
    collect_media_prompts,
    prompt_maker_of,
)
from vlmrl.assemble.sources import (
    open_benchmarks,
    open_training,
    rewards_by_source,
    rewards_by_stage,
    weights_at,
)
from vlmrl.config import Config, ControlConfig
from vlmrl.config.exclusions import refuse_parts
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.sampler import Sampler
from vlmrl.data.source import Source, open_configured, open_held_out
from vlmrl.engines.base import Engine
from vlmrl.errors import UserError
from vlmrl.models.loading import Loaded, load_model
from vlmrl.monitoring.loopholes import LoopholeWatch
from vlmrl.monitoring.machines import Machines
from vlmrl.monitoring.run_checks import Checks
from vlmrl.policy.checkpoint import Progress
from vlmrl.policy.checkpoint_writer import CheckpointWriter
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.output.outputs import Output
from vlmrl.runs.run_log import SILENT, RunLog
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import distributed
from vlmrl.system.deadline_pool import DeadlinePool, MakePool
from vlmrl.system.timers import PhaseTimers
from vlmrl.training.rollout_queue import RolloutQueue
from vlmrl.training.strategy import RunParts, Strategy
from vlmrl.training.trainer import Trainer

if TYPE_CHECKING:
    from vlmrl.engines.vllm_parts.server import Fleet
    from vlmrl.training.teacher import Teacher


@dataclass(frozen=True)
class Pools:
    """Where a run's verifiers and servers are; `vlmrl launch` may have them on other machines."""

    make_pool: MakePool = DeadlinePool
    """Makes the pool of the verifiers that have a time limit."""
    fleet: Fleet | None = None
    """Servers for the rollouts; None: the engine's own."""


LOCAL = Pools()
"""All on this machine."""


def build_trainer(
    config: Config,
    start: Path | None,
    progress: Progress,
    stack: ExitStack,
    pools: Pools = LOCAL,
    output: Output = SILENT,
) -> Trainer:
    """Build all parts of a run; what must be closed is pushed on the stack, what takes long is said."""
    refuse_parts(config, distributed.world())
    with output.doing("opening the data"):
        train_sources = open_training(config)
        begun = resuming.begin(config, start, progress, train_sources)
        benchmarks = open_benchmarks(config)
        held_out = [*open_held_out(config), *benchmarks]
    rewards, staged = rewards_by_source(config), rewards_by_stage(config)
    scorer = stack.enter_context(Scorer(rewards, config.scoring, staged, pools.make_pool))
    chosen = build_engine(config, pools.fleet)
    algorithms = build_algorithms(config)
    policy = _build_policy(config, start, begun, train_sources, stack, output)
    with output.doing(f"starting engine {config.engine.name}"):
        engine = stack.enter_context(closing(chosen.start(policy)))
    quarantine = Quarantine(config.folder / "quarantine.jsonl")
    size, (sampler, weights) = config.rollout.prompts, build_sampler(config)
    loader = build_loader(config, train_sources, policy, size, quarantine, sampler, weights)
    stack.enter_context(loader)
    done = progress.step if progress.phase == "rl" else 0
    log = stack.enter_context(RunLog(config, config.folder, config.run.steps, done, output))
    plan, every = config.evaluation, config.checks.loopholes_every
    batches = build_eval_batches(config, held_out, policy, plan, quarantine, shared=True)
    shown = collect_media_prompts(config, held_out or train_sources, policy, quarantine)
    most, turns = config.last.rollout.max_tokens, any(s.acts for s in config.named_sources)
    strategies = _build_strategies(config)
    parts: list[Algorithm | Strategy | Sampler] = [*algorithms, *strategies, sampler]
    whole = any(part.reads_completions for part in parts)
    queue = RolloutQueue(loader, engine, policy, config, whole, scorer.begin)
    stack.callback(queue.close)
    timers, make = PhaseTimers(), prompt_maker_of(config, policy)
    run_parts = RunParts(policy, engine, scorer, config, timers, make, loader, log.note, whole)
    return Trainer(
        config=config,
        policy=policy,
        loader=loader,
        queue=queue,
        engine=engine,
        scorer=scorer,
        algorithm=algorithms[0],
        run_parts=run_parts,
        tracker=log,
        checkpoints=stack.enter_context(build_checkpoint_writer(config, policy)),
        held_out=batches if held_out else None,
        held_out_sources=held_out,
        benchmarks=benchmarks,
        strategies=strategies,
        teacher=_build_teacher(config, policy, algorithms),
        checks=Checks(config.checks, policy, engine, scorer, shown, most, size, log.message, turns),
        loopholes=LoopholeWatch(scorer, every, config.folder, log.message),
        timers=timers,
        machines=_build_machines(config, done, log),
    )


def _build_strategies(config: Config) -> list[Strategy]:
    """Build what the config adds to the plain step, in the order in which it acts."""
    named = [plugins.build("strategy", ref.name, ref.options) for ref in config.strategies]
    if config.control == ControlConfig():
        return named
    from vlmrl.training.controls import build_controls

    return [*named, *build_controls(config.control)]


def _build_machines(config: Config, done: int, log: RunLog) -> Machines:
    """Build what compares the ranks; the run folder gets the names of their machines, if several."""
    hosts = distributed.gather(socket.gethostname())
    if distributed.is_main() and len(hosts) > 1:
        run_folder.write_ranks(config.folder, done, hosts)
    return Machines(hosts, log.message)


def _build_policy(
    config: Config,
    start: Path | None,
    begun: Mapping[str, Any],
    sources: Sequence[Source],
    stack: ExitStack,
    output: Output,
) -> Policy:
    """Load the model, build the policy, and begin the run folder."""
    shard = distributed.world() > 1 and config.distributed.strategy == "fsdp2"
    path = start or config.model.path
    with output.doing(f"loading model {path}" if path else "building the model"):
        loaded = load_policy_model(config, start, sources, as_stored=shard)
    if config.model.lora is not None:
        torch.manual_seed(config.run.seed)  # peft draws new adapters from it
    head = None
    if config.trains_scores:
        from vlmrl.models.stored_heads import first_weight  # a plain run has no such head

        size = loaded.model.config.get_text_config().hidden_size
        head = first_weight(None if path is None else str(path), size, config.run.seed)
    policy = Policy(*loaded, config.model, config.at(0).rollout.temperature, shard, head)
    stack.enter_context(begin_folder(config, policy, start, begun, output))
    return policy


def _build_teacher(
    config: Config, policy: Policy, algorithms: Sequence[Algorithm]
) -> Teacher | None:
    asked = any("teacher" in passes_of(algorithm) for algorithm in algorithms)
    if config.teacher is None and not asked:
        return None
    # A plain run loads half of the package: what few configs ask for is imported where it is built.
    from vlmrl.training.teacher import build_teacher

    return build_teacher(config, policy, asked)


def build_engine(config: Config, fleet: Fleet | None) -> Engine:
    """Build the engine with its tools; it takes its servers from the fleet if there is one.

    Raises:
        UserError: there is a fleet, and the engine has no servers.
    """
    engine: Engine = plugins.build("engine", config.engine.name, config.engine.options)
    if fleet is not None:
        from vlmrl.engines.vllm_server import VllmServer

        if not isinstance(engine, VllmServer):
            raise UserError(
                f"cluster.serve.replicas: expected engine vllm_server, got {config.engine.name!r}"
            )
        engine = engine.on(fleet)
    if not any(source.acts for source in config.named_sources) and config.rollout.chunks is None:
        return engine
    from vlmrl.assemble.turns import with_tools  # a plain run has no tools, and whole completions

    return with_tools(config, engine)


def build_checkpoint_writer(config: Config, policy: Policy) -> CheckpointWriter:
    """Build what writes the run's checkpoints."""
    run = config.run
    return CheckpointWriter(config.folder, policy, run.keep_checkpoints, run.save_in_background)


def build_sampler(config: Config) -> tuple[Sampler, Callable[[float], list[float]] | None]:
    """Build the sampler, and the weights of the sources by progress; None where they do not change."""
    named = config.data.sampler
    sampler: Sampler = plugins.build("sampler", named.name, named.options)
    if len({tuple(weights_at(config, moment)) for moment in config.moments}) == 1:
        return sampler, None
    assert sampler.follows_weights, "config.exclusions refuses it"
    return sampler, functools.partial(weights_at, config)


def build_algorithms(config: Config) -> list[Algorithm]:
    """Build the algorithm as it is at each moment of the config's schedules; the first is that of the start.

    Raises:
        UserError: an option is refused at one of them.
    """
    built = []
    for moment in config.moments:
        algorithm = config.at(moment).algorithm
        try:
            built.append(plugins.build("algorithm", algorithm.name, algorithm.options))
        except UserError as error:
            where = f"{100 * moment:g} % into training: " if moment else ""
            raise UserError(f"{where}{error}") from error
    return built


def load_policy_model(
    config: Config, start: Path | None, sources: Sequence[Source], as_stored: bool = False
) -> Loaded:
    """Load the model to train, from the checkpoint `start` if there is one.

    It is float32, or `as_stored`; `Policy` lowers the weights that need not be. With LoRA the base
    model is loaded again, and the checkpoint's adapter is put on it later.

    Raises:
        UserError: the videos are to have audio, and the family does not hear videos.
    """
    update: dict[str, Any] = {"dtype": "float32"}
    if start and config.model.lora is None:
        update |= {"path": str(start), "build": None}
    model = config.model.model_copy(update=update)
    corpus: list[str] = []
    if model.build is not None:
        named = config.sft.named_sources if config.sft else []
        demonstrations = [open_configured(config, s) for s in named]
        corpus = [text for s in [*sources, *demonstrations] for text in s.card.corpus()]
    loaded = load_model(model, corpus, config.run.seed, as_stored)
    if config.data.video.audio and not loaded.family.hears_videos:
        kind = loaded.family.model_types[0]
        raise UserError(
            f"data.video.audio: expected a model that reads the audio of videos, got {kind}"
        )
    return loaded
