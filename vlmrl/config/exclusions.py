"""Keys and parts of a config that exclude each other: the one place that refuses combinations.

`refuse_keys` looks at keys alone, as they are read; `refuse_parts` at what the named parts state as class
variables, too. Each problem is of an exclusion that says why, and the table of the documentation is that of
all of them. A section refuses by itself what only its own keys say. Nothing here reads a file, and a part is
imported only where one of its class variables decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmrl import plugins
from vlmrl.errors import UserError

if TYPE_CHECKING:
    from vlmrl.config.whole import Config

_ACTING = "data.train: a source has tools or an environment, which excludes"


class Exclusion(NamedTuple):
    """What excludes what, in Markdown, and why."""

    key: str
    excludes: str
    why: str


Problem = tuple[Exclusion, str]
"""An exclusion that a config is of, and the line for its user."""

_TOOLS = "`tools` or `environment` of a source"
TOOLS_STRATEGIES = Exclusion(
    _TOOLS,
    "`strategies` but `corrections`, e.g. `rehearsal`",
    "they store, repeat or rewrite a completion as the tokens of one turn, without its calls and what "
    "these showed",
)
TOOLS_STAGES = Exclusion(
    _TOOLS,
    "`stages`",
    "what acts is opened once, for the sources and limits of turns that the run starts with, and a stage "
    "has its own",
)
TOOLS_FORCING = Exclusion(
    _TOOLS,
    "`evaluation.force_thinking`",
    "it writes the beginning of one answer, and every turn has a beginning",
)
TOOLS_MASKED = Exclusion(
    _TOOLS,
    "an algorithm that masks media: `papo`, `vppo`",
    "it masks the media of the prompt, not those of observations",
)
CHUNKS_TOOLS = Exclusion(
    "`rollout.chunks`",
    _TOOLS,
    "what tools show would be dropped with the chunk that it is in",
)
CHUNKS_STRATEGIES = Exclusion(
    "`rollout.chunks`",
    "`strategies` but `corrections`",
    "they store, repeat or rewrite a completion as tokens behind one prompt",
)
CHUNKS_WHOLE = Exclusion(
    "`rollout.chunks`",
    "algorithms and options that weigh whole completions: `gspo`, `luspo`, `gmpo`, `kimi`, `rloo`, `vespo`, "
    "`vppo`, `fipo`; `kl_in_reward`, `correction_level: sequence`, `off_policy_threshold`",
    "each chunk is a row of its own in the loss",
)
CHUNKS_STAGES = Exclusion(
    "`rollout.chunks`",
    "`stages` with other ones",
    "what writes in chunks is started once",
)
CHUNKS_FORCING = Exclusion(
    "`rollout.chunks`",
    "`evaluation.force_thinking`",
    "it writes the beginning of an answer, and every chunk has a beginning",
)
TURNS_SHORT = Exclusion(
    "`rollout.turns.max_turns` above 1",
    "`rollout.turns.max_tokens` up to `rollout.max_tokens`",
    "the first turn could take all tokens, so that no second turn would ever begin",
)
BRANCHING = Exclusion(
    "`rollout.turns.branching`",
    "environments in a server",
    "two rollouts cannot go on from one state there",
)
GATES = Exclusion(
    "`gate: true` of a reward",
    "`scoring.combine` other than `gate`",
    "no other way of combining asks the gate",
)
STALE_STRATEGIES = Exclusion(
    "`strategies`",
    "`rollout.max_staleness` above 0",
    "they ask the policy that wrote the batch, and it has changed by then",
)
MINIBATCHES = Exclusion(
    "`optimizer.minibatches`",
    "`rollout.prompts` that is no multiple of it",
    "groups are never split",
)
LAG = Exclusion(
    "`data.sampler.lag`",
    "more batches ahead than it, by `data.workers` and `rollout.max_staleness`",
    "rewards of those batches would have to be known before they are sampled",
)
PROCESSES = Exclusion(
    "several processes",
    "fewer `rollout.prompts` than processes",
    "each process samples at least one prompt",
)
STALE_ENGINE = Exclusion(
    "`rollout.max_staleness` above 0",
    "engines other than `vllm_server`",
    "they cannot generate while the policy trains",
)
ROUTES = Exclusion(
    "`model.router_replay`",
    "engines that do not return which experts they chose",
    "there is nothing to replay",
)
ENGINE_ALONE = Exclusion(
    "several processes",
    "engines that work in one process only",
    "no other process could ask them",
)
STALE_TEMPERATURE = Exclusion(
    "`rollout.max_staleness` above 0",
    "a `rollout.temperature` that changes",
    "an engine that generates ahead has one temperature at a time",
)
SAMPLER_SIZES = Exclusion(
    "samplers that learn",
    "`rollout.prompts` that changes",
    "they learn by batches of one size",
)
SAMPLER_WEIGHTS = Exclusion(
    "samplers other than `mixture`",
    "sources or weights that change over training",
    "they do not follow them",
)
LONE_COMPLETION = Exclusion(
    "`rollout.group_size` 1",
    "algorithms that compare the completions of a group",
    "there is nothing to compare with",
)
LED_WEIGHT = Exclusion(
    "`kl_target`, `entropy_target` of an algorithm",
    "a `kl`, an `entropy_bonus` that changes over training",
    "it adapts them by itself",
)
REGROUPED = Exclusion(
    "`rollout.group_size` that changes, with `rollout.max_staleness`",
    "dynamic sampling",
    "groups of two sizes would meet in one step",
)
STREAMED_SIZES = Exclusion(
    "`rollout.streaming`",
    "`rollout.prompts`, `rollout.group_size` that change",
    "groups of batches of two sizes would meet in one step",
)
STREAMED_REWARDS = Exclusion(
    "`rollout.streaming`",
    "samplers that learn",
    "they learn from the rewards of whole batches, in the order of the draws",
)
SCORES = Exclusion(
    "`sft.objective: preferences`",
    "`run.steps` above 0, `optimizer.shared_forward: low_memory`",
    "its head scores and does not write, and the loss needs both scores of a pair at once; a run of its own "
    "names the folder in `models`",
)
SHARDED = Exclusion(
    "`distributed.strategy: fsdp2`",
    "`model.quantization`, optimizers of bitsandbytes",
    "the scales of bitsandbytes are outside of the tensor that is sharded, and its optimizers' state is "
    "quantized in blocks of a rank's own slices, which another number of ranks could not read",
)
LOW_MEMORY = Exclusion(
    "`optimizer.shared_forward: low_memory`",
    "`model.gradient_checkpointing`, `fsdp2`, `distributed.sequence_parallel` above 1",
    "it runs one completion at a time behind the whole prompt, and keeps the prompt's graph for them all",
)


def exclusions() -> list[Exclusion]:
    """Return all of them, in the order above."""
    return [value for value in globals().values() if isinstance(value, Exclusion)]


def refuse_keys(config: Config) -> None:
    """Raise UserError for the first keys of different sections that exclude each other."""
    for _, line in _problems_of_keys(config):
        raise UserError(line)


def refuse_parts(config: Config, world: int = 1) -> None:
    """Raise UserError for the first combination that cannot run in `world` processes."""
    problems = (
        _problems_of_engine(config, world),
        _problems_over_training(config),
        _problems_of_streaming(config),
        _problems_of_algorithms(config),
        _problems_of_turns(config),
        _problems_of_chunks(config),
        problems_of_sharding(config, world),
    )
    for _, line in (problem for group in problems for problem in group):
        raise UserError(line)


def _problems_of_keys(config: Config) -> Iterator[Problem]:
    rollout, data = config.rollout, config.data
    for source in data.train:
        if config.scoring.combine != "gate" and any(r.gate for r in config.rewards_of(source)):
            yield (
                GATES,
                f"a reward has gate: true, but scoring.combine is {config.scoring.combine!r}",
            )
    if config.strategies and rollout.max_staleness:
        yield (
            STALE_STRATEGIES,
            (
                "strategies ask the policy that wrote the batch: expected rollout.max_staleness 0, got "
                f"{rollout.max_staleness}"
            ),
        )
    if rollout.prompts % config.optimizer.minibatches:
        yield (
            MINIBATCHES,
            (
                f"rollout.prompts ({rollout.prompts}) must be a multiple of optimizer.minibatches "
                f"({config.optimizer.minibatches}): groups are never split"
            ),
        )
    least = config.least_lag(data.workers)
    if data.sampler.lag is not None and data.sampler.lag < least:
        yield (
            LAG,
            (
                f"data.sampler.lag: expected at least {least} with data.workers {data.workers} and "
                f"rollout.max_staleness {rollout.max_staleness}, got {data.sampler.lag}"
            ),
        )

    if config.trains_scores and (
        config.run.steps or config.optimizer.shared_forward == "low_memory"
    ):
        yield (
            SCORES,
            (
                "sft.objective: preferences trains a reward model: expected run.steps 0 and "
                f"optimizer.shared_forward auto, on or off, got {config.run.steps} and "
                f"{config.optimizer.shared_forward}; a run of its own names the folder in `models`"
            ),
        )


def _problems_of_engine(config: Config, world: int) -> Iterator[Problem]:
    fewest = min(config.at(moment).rollout.prompts for moment in config.moments)
    if fewest < world:
        yield (
            PROCESSES,
            f"rollout.prompts: expected at least {world}, one for each process, got {fewest}",
        )
    name, staleness = config.engine.name, config.rollout.max_staleness
    if not (staleness or config.model.router_replay or world > 1):
        return  # importing an engine imports torch
    able = plugins.load("engine", name).capabilities
    if staleness and not able.concurrent:
        yield (
            STALE_ENGINE,
            (
                f"rollout.max_staleness is {staleness}, but engine {name!r} cannot generate while the "
                "policy trains: use engine vllm_server, or rollout.max_staleness 0"
            ),
        )
    if config.model.router_replay and not able.routes:
        yield (
            ROUTES,
            (
                f"model.router_replay: engine {name!r} does not return which experts it chose: use engine "
                "vllm or hf"
            ),
        )
    if world > 1 and not able.every_rank:
        yield (
            ENGINE_ALONE,
            (
                f"engine {name!r} works in one process only, got {world} processes; use 'hf', 'vllm' or "
                "'vllm_server'"
            ),
        )


def _problems_over_training(config: Config) -> Iterator[Problem]:
    """Yield what excludes values that change during a run."""
    changing = config.changing
    if config.rollout.max_staleness and "rollout.temperature" in changing:
        yield (
            STALE_TEMPERATURE,
            (
                "rollout.temperature: one that changes needs rollout.max_staleness 0: an engine that "
                "generates ahead has one temperature at a time"
            ),
        )
    reweighted = _changes_weights(config)
    if not reweighted and "rollout.prompts" not in changing:
        return
    name = config.data.sampler.name
    sampler = plugins.load("sampler", name)
    if "rollout.prompts" in changing and sampler.learns:
        yield (
            SAMPLER_SIZES,
            (
                f"rollout.prompts: sampler {name!r} learns by batches of one size: expected a number that "
                "does not change"
            ),
        )
    if reweighted and not sampler.follows_weights:
        yield (
            SAMPLER_WEIGHTS,
            (
                f"data.train: sampler {name!r} does not follow sources or weights that change over "
                "training: use sampler mixture"
            ),
        )


def _problems_of_streaming(config: Config) -> Iterator[Problem]:
    """Yield what does not work where groups are trained on in the order in which they are finished."""
    if not config.rollout.streaming:
        return
    for key in sorted({"rollout.prompts", "rollout.group_size"} & config.changing):
        yield (STREAMED_SIZES, f"{key}: one that changes needs rollout.streaming false, got true")
    name = config.data.sampler.name
    if plugins.load("sampler", name).learns:
        yield (
            STREAMED_REWARDS,
            (
                f"rollout.streaming: sampler {name!r} learns from the rewards of whole batches in the order "
                "of their draws: use rollout.streaming false, or sampler mixture"
            ),
        )


def _changes_weights(config: Config) -> bool:
    """Return whether other sources are drawn from at some moments, or the same ones in other shares."""
    weights = [
        {
            (source.model_dump_json(exclude={"weight", "rewards"}), source.weight)
            for source in config.at(moment).data.train
            if source.weight
        }
        for moment in config.moments
    ]
    return any(each != weights[0] for each in weights)


def _problems_of_algorithms(config: Config) -> Iterator[Problem]:
    """Yield what excludes the algorithm as it is at some moment; it is built only where that matters."""
    changing, staleness = config.changing, config.rollout.max_staleness
    adapts = {"kl", "entropy_bonus"} & {key.removeprefix("algorithm.options.") for key in changing}
    regroups = staleness and "rollout.group_size" in changing
    for moment in config.moments:
        now = config.at(moment)
        if not (adapts or regroups or now.rollout.group_size == 1):
            continue
        name = now.algorithm.name
        algorithm = plugins.build("algorithm", name, now.algorithm.options)
        if now.rollout.group_size == 1 < algorithm.smallest_group:
            yield (
                LONE_COMPLETION,
                (
                    f"rollout.group_size: expected at least 2, because algorithm {name!r} compares the "
                    "completions of a group, got 1"
                ),
            )
        for option in sorted(adapts & algorithm.targets.keys()):
            target = f"{option.removesuffix('_bonus')}_target"
            yield (
                LED_WEIGHT,
                (
                    f"algorithm.options.{option}: with {target} it adapts: expected a number that does not "
                    "change"
                ),
            )
        if regroups and algorithm.dynamic_sampling_batches:
            yield (
                REGROUPED,
                (
                    "rollout.group_size: one that changes, with rollout.max_staleness, excludes dynamic "
                    "sampling (dynamic_sampling_batches 0): groups of two sizes would meet in one step"
                ),
            )


def _problems_of_turns(config: Config) -> Iterator[Problem]:
    """Yield what does not work with completions of several turns."""
    if not any(source.acts for each in (config, *config.by_stage) for source in each.named_sources):
        return
    for strategy in config.strategies:
        if not plugins.load("strategy", strategy.name).of_turns:
            line = f"{_ACTING} strategy {strategy.name!r}: {TOOLS_STRATEGIES.why}"
            yield TOOLS_STRATEGIES, line
    if config.evaluation and config.evaluation.force_thinking:
        yield TOOLS_FORCING, f"{_ACTING} evaluation.force_thinking: {TOOLS_FORCING.why}"
    if config.stages:
        yield TOOLS_STAGES, f"{_ACTING} stages: {TOOLS_STAGES.why}"
    now = config.at(0)
    rollout = now.rollout
    if rollout.turns.max_turns > 1 and rollout.turns.max_tokens <= rollout.max_tokens:
        yield (
            TURNS_SHORT,
            (
                f"rollout.turns.max_tokens: expected more than one turn's rollout.max_tokens "
                f"({rollout.max_tokens}), got {rollout.turns.max_tokens}: no second turn would ever begin"
            ),
        )
    algorithm = plugins.build("algorithm", now.algorithm.name, now.algorithm.options)
    if "masked_media" in algorithm.passes:
        yield (
            TOOLS_MASKED,
            (f"{_ACTING} algorithm {now.algorithm.name!r}: {TOOLS_MASKED.why}"),
        )
    for source in config.named_sources if rollout.turns.branching else ():
        world = source.environment.name if source.environment else None
        if world is not None and not plugins.load("environment", world).restartable:
            yield (
                BRANCHING,
                (
                    f"rollout.turns.branching: environment {world!r} of source {source.label!r} lives in a "
                    "server, where two rollouts cannot go on from one state"
                ),
            )


def _problems_of_chunks(config: Config) -> Iterator[Problem]:
    """Yield what does not work with completions in chunks."""
    known = [each.rollout.chunks for each in (config, *config.by_stage)]
    if not any(known):
        return
    named = {
        source.label
        for each in (config, *config.by_stage)
        for source in each.named_sources
        if source.acts
    }
    for label in sorted(named):
        line = (
            f"rollout.chunks: source {label!r} has tools or an environment, and {CHUNKS_TOOLS.why}"
        )
        yield CHUNKS_TOOLS, line
    for strategy in config.strategies:
        if not plugins.load("strategy", strategy.name).of_turns:
            yield (
                CHUNKS_STRATEGIES,
                f"rollout.chunks: strategy {strategy.name!r}: {CHUNKS_STRATEGIES.why}",
            )
    for moment in config.moments:
        now = config.at(moment).algorithm
        if not plugins.build("algorithm", now.name, now.options).takes_parts:
            line = f"algorithm {now.name!r} with these options weighs whole completions"
            yield CHUNKS_WHOLE, f"rollout.chunks: {line}, and {CHUNKS_WHOLE.why}"
    if any(chunks != config.rollout.chunks for chunks in known):
        yield CHUNKS_STAGES, f"rollout.chunks: stages have other ones, and {CHUNKS_STAGES.why}"
    if config.evaluation and config.evaluation.force_thinking:
        yield CHUNKS_FORCING, f"rollout.chunks: evaluation.force_thinking: {CHUNKS_FORCING.why}"


def problems_of_sharding(config: Config, world: int) -> Iterator[Problem]:
    """Yield what `world` processes that share a model cannot do, whatever their engine."""
    shards = world > 1 and config.distributed.strategy == "fsdp2"
    if shards and (config.model.quantization or config.optimizer.name != "adamw"):
        yield (
            SHARDED,
            (
                "distributed.strategy: fsdp2 shards neither quantized weights nor the optimizers of "
                f"bitsandbytes ({SHARDED.why}); use ddp"
            ),
        )
    lone: dict[str, Any] = {
        "model.gradient_checkpointing": config.model.gradient_checkpointing,
        "distributed.strategy: fsdp2": shards,
        "distributed.sequence_parallel: its completions run behind the whole prompt": (
            world > 1 and config.distributed.sequence_parallel > 1
        ),
    }
    if config.optimizer.shared_forward == "low_memory":
        yield from (
            (LOW_MEMORY, f"optimizer.shared_forward: low_memory excludes {key}")
            for key in lone
            if lone[key]
        )
