"""`vlmrl data demonstrate`: a teacher answers the rows of a config, and what verifies is kept.

The teacher is a checkpoint, or one of the config's `models`. Of its completions of a row the best one that
the verifiers of the row's source pass becomes the row's demonstration, judged as if the policy had
written it: with the policy's template, and in the space in which the policy writes places. Imitating
these is RAFT from a teacher (Dong et al. 2023, arXiv 2304.06767): sequence-level distillation, with
verification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.assemble.prompts import prompt_maker_of
from vlmrl.assemble.sources import (
    instruct_by_source,
    rewards_by_source,
    rewards_by_stage,
    with_audio,
)
from vlmrl.config import Config, EvaluationConfig, NamedModel, SourceConfig
from vlmrl.config.sections.run import hide_secrets
from vlmrl.data.demonstrations import Demonstration, read_demonstrations
from vlmrl.data.source import open_configured
from vlmrl.engines.base import Engine, Sampling
from vlmrl.errors import UserError
from vlmrl.features.curate.row_blocks import (
    MAX_NAMED,
    Read,
    RowBlock,
    begin,
    cut_blocks,
    fault_of,
    judge,
    keep_whole,
    load_asked,
    manifest_of,
    require_metric,
    score_of,
    sources_of,
    write_blocks,
)
from vlmrl.named_models.asked import keeping_replies, media_parts, open_model, text_part
from vlmrl.policy.policy import Policy
from vlmrl.runs.output.events import Demonstrated
from vlmrl.runs.output.outputs import Output
from vlmrl.runs.run_log import SILENT
from vlmrl.schema import Completion, Frame, Media, Prompt, PromptBatch
from vlmrl.schema.media import Decoded
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.system.chat_endpoint import Invalid, Unavailable
from vlmrl.system.seeds import seed_of
from vlmrl.truths import prompting

Teacher = Callable[[Sequence[Prompt], int, int], Sequence[Sequence[Completion]]]
"""Returns completions of each prompt, as many as asked for, by a seed."""


@contextmanager
def generating(config: Config, policy: Policy) -> Iterator[Teacher]:
    """Give the teacher that the policy's weights are, by the config's engine."""
    chosen: Engine = plugins.build("engine", config.engine.name, config.engine.options)
    with closing(chosen.start(policy)) as engine:

        def write(
            prompts: Sequence[Prompt], count: int, seed: int
        ) -> Sequence[Sequence[Completion]]:
            draw = Sampling.of(config.at(0.0).rollout, count, seed)
            return engine.generate(PromptBatch(tuple(prompts)), draw).completions

        yield write


@contextmanager
def asking(
    config: Config, name: str, policy: Policy, instruct: Mapping[str, bool], replies: Path
) -> Iterator[Teacher]:
    """Give the teacher that one of `models` is; its replies are kept in a folder, and recalled from there.

    It sees what the policy would: the text of the question with its instruction, and media in the size
    in which the policy sees them, so that places mean the same. A question without a reply is left out of
    its group. `instruct` says by source whether its prompts have an instruction.

    Raises:
        UserError: no question of a call gets a reply.
    """
    with keeping_replies(replies):
        model = open_model(NamedModel(name=name, **config.models[name].model_dump()))
        rollout = config.at(0.0).rollout

        def write(
            prompts: Sequence[Prompt], count: int, seed: int
        ) -> Sequence[Sequence[Completion]]:
            failures: list[str] = []

            def answer(
                prompt: Prompt, messages: Sequence[object], number: int
            ) -> Completion | None:
                body = {
                    "messages": messages,
                    "max_tokens": rollout.max_tokens,
                    "temperature": rollout.temperature,
                    "top_p": rollout.top_p,
                    "seed": seed_of(seed, number) >> 32,
                }
                try:
                    return model.ask(body, lambda text: _read(prompt, text))
                except (Unavailable, Invalid) as error:
                    failures.append(str(error))
                    return None

            asked = []
            for position, prompt in enumerate(prompts):
                chat = _messages(prompt, policy, instruct.get(prompt.sample.source, True))
                asked += [(prompt, chat, position * count + number) for number in range(count)]
            with ThreadPoolExecutor(config.models[name].concurrency) as pool:
                answers = list(pool.map(answer, *zip(*asked, strict=True)))
            if len(failures) == len(asked):
                raise UserError(f"models.{name} does not answer: {failures[0]}; --resume goes on")
            groups = [answers[at : at + count] for at in range(0, len(answers), count)]
            return [
                [completion for completion in group if completion is not None] for group in groups
            ]

        yield write


def _read(prompt: Prompt, text: str) -> Completion:
    """Return a reply as a completion of the prompt that the policy might have written."""
    if not text.strip():
        raise Invalid("an empty reply")
    return templates.completion(text.strip(), prompt.sample.template, prompt.frame)


def _messages(prompt: Prompt, policy: Policy, instructed: bool) -> list[Mapping[str, Any]]:
    """Return a prompt as messages of OpenAI's chat completions."""
    sample = prompt.sample
    media = iter(zip(prompt.media, prompt.seen.frames, strict=True))
    messages: list[Mapping[str, Any]] = []
    if sample.system:
        messages.append({"role": "system", "content": sample.system})
    for turn in prompt.turns:
        messages.append({"role": turn.role, "content": _content(turn.parts, media)})
    content = _content(sample.parts, media)
    if instructed:
        space, shown = policy.family.space, sample.num_images
        text = prompting.instruct(sample.template, sample.truth, space, sample.form, shown)
        content += [text_part(text)] if text else []
    return [*messages, {"role": "user", "content": content}]


def _content(
    parts: Sequence[str | Media], media: Iterator[tuple[Decoded, Frame]]
) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            content += [text_part(part)] if part.strip() else []
        else:
            medium, frame = next(media)
            content += media_parts([medium], [frame])[1:]  # without its number
    return content


SEED_PURPOSE = 22
"""Part of the seed of a block's completions."""


@dataclass(frozen=True)
class _Choice:
    """What passes: a completion whose `metric` is at least `threshold`."""

    scorer: Scorer
    metric: str
    threshold: float

    def keep(
        self, row: Read, group: Sequence[Completion], judged: Sequence[Judged]
    ) -> Demonstration:
        """Return the best of a row's completions that pass, or why none does."""
        assert row.prompt is not None
        own = row.own or row.prompt.sample.id
        known = [
            (score, verdict.reward, completion)
            for completion, verdict in zip(group, judged, strict=True)
            if (score := score_of(verdict, self.metric)) is not None and verdict.reward is not None
        ]
        passing = [(r, c) for s, r, c in known if s >= self.threshold and not c.truncated]
        if not known:
            reason = fault_of(judged, self.metric) or "the teacher gave no answer"
            return Demonstration(*row.address, own, dropped=reason)
        if not passing:
            return Demonstration(
                *row.address, own, dropped=f"none has {self.metric} of {self.threshold:g}"
            )
        reward, best = max(passing, key=lambda pair: pair[0])
        return Demonstration(
            *row.address,
            own,
            best.text,
            (best.parsed.thought or "").strip(),
            reward,
            len(passing),
            row.prompt.frame if row.prompt.sample.truth.has_places else None,
        )


def demonstrate(
    config: Config,
    model: str,
    out: Path,
    *,
    samples: int = 4,
    limit: int | None = None,
    metric: str | None = None,
    threshold: float | None = None,
    block: int = 32,
    resume: bool = False,
    output: Output = SILENT,
) -> Demonstrated:
    """Let a teacher answer each row of a config's training sources, and write what passes to `out`.

    `model` is the name of one of the config's `models`, or a checkpoint folder, a run folder or a hub name.
    Of `samples` completions the best is kept whose `metric` (`reward` or a verifier's name) is at least
    `threshold`; both are the evaluation's if absent. Choices of rows of the sources (`where`, `ratings`,
    `demonstrations`) are left out; of each source the first `limit` rows are asked about.
    `output` says how far it is.

    Raises:
        UserError: the file exists and `resume` is False, or it was made in another way; the metric is none
            of the rewards of all sources; the teacher does not answer, or a source calls tools.
    """
    plan = config.evaluation or EvaluationConfig()
    metric = require_metric(config, metric or plan.metric.rpartition("/")[2])
    threshold = plan.pass_threshold if threshold is None else threshold
    if out.exists() and not resume:
        raise UserError(f"{out}: exists; --resume goes on with it, --out takes another file")
    chosen = _sources(config)
    with output.doing("opening the data"):
        sources = [open_configured(stage, source) for stage, source in chosen]
    is_named = model in config.models
    with output.doing("loading model"):
        policy = load_asked(config, None if is_named else model, sources)
    asked = {"samples": samples, "metric": metric, "threshold": threshold, "block": block}
    manifest = {
        **manifest_of(config, policy, chosen, sources, {"model": model, **asked}),
        "written_by": "vlmrl data demonstrate",
        "served": config.models[model].model_dump(mode="json") if is_named else None,
    }
    with ExitStack() as stack:
        before = begin(out, hide_secrets(manifest), read_demonstrations)
        scorer = Scorer(rewards_by_source(config), config.scoring, rewards_by_stage(config))
        stack.callback(scorer.close)
        with output.doing("starting the teacher"):
            teacher = stack.enter_context(_teacher(config, model, policy, Path(f"{out}.replies")))
        make = prompt_maker_of(config, policy)
        blocks = cut_blocks(with_audio(sources, policy.family), limit, block)
        kept = keep_whole(out, before, blocks, read_demonstrations)
        choice = _Choice(scorer, metric, threshold)

        def write(block: RowBlock) -> list[Demonstration]:
            read = block.read(make, config.data.max_prompt_tokens)
            seed = seed_of(config.run.seed, SEED_PURPOSE, *block.numbers)
            return _write(read, teacher, choice, samples, seed)

        finished = write_blocks(write, blocks, out, kept, output, "asking the teacher")
    return _sum_up(out, kept, finished)


def _sources(config: Config) -> list[tuple[Config, SourceConfig]]:
    """Return the training sources of all stages; refuse those whose rollouts may have several turns."""
    chosen = sources_of(config)
    for _, source in chosen:
        if source.acts:
            raise UserError(
                f"source {source.label!r} calls tools: a teacher answers in a single turn"
            )
    return chosen


def _teacher(
    config: Config, model: str, policy: Policy, replies: Path
) -> AbstractContextManager[Teacher]:
    if model in config.models:
        return asking(config, model, policy, instruct_by_source(config), replies)
    return generating(config, policy)


def _write(
    read: Sequence[Read], teacher: Teacher, choice: _Choice, samples: int, seed: int
) -> list[Demonstration]:
    prompts = [row.prompt for row in read if row.prompt is not None]
    groups = teacher(prompts, samples, seed) if prompts else []
    made = iter(zip(groups, judge(choice.scorer, prompts, groups), strict=True))
    return [
        Demonstration(*row.address, row.own, dropped=row.reason)
        if row.prompt is None
        else choice.keep(row, *next(made))
        for row in read
    ]


def _sum_up(out: Path, lines: Sequence[Demonstration], finished: bool) -> Demonstrated:
    without = [line for line in lines if line.text is None]
    named = [f"{line.source} {line.split} row {line.row}: {line.dropped}" for line in without]
    return Demonstrated(
        file=out,
        finished=finished,
        rows=len(lines),
        kept=len(lines) - len(without),
        dropped=dict(Counter(line.dropped for line in without).most_common(MAX_NAMED)),
        named=named[:MAX_NAMED],
    )
