"""From sources to batches of prompts: for training, for evaluation, and for the checks of a run."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vlmrl.assemble.sources import forms_by_source, instruct_by_source, with_audio
from vlmrl.config import Config, EvaluationConfig
from vlmrl.data.loader import Loader, eval_batches
from vlmrl.data.prompt import make_prompt, without_tensors
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.sampler import Sampler
from vlmrl.data.source import Source
from vlmrl.policy.policy import Policy
from vlmrl.schema import AnswerForm, Prompt, PromptBatch, Sample
from vlmrl.schema.media import Decoded
from vlmrl.system import distributed
from vlmrl.truths import prompting

if TYPE_CHECKING:
    from vlmrl.interaction.tools import Runner


def build_prompt_maker(
    policy: Policy,
    instruct: Mapping[str, bool],
    forms: Mapping[str, AnswerForm],
    processor: object = None,
    tools: Mapping[str, tuple[Mapping[str, object], ...]] = MappingProxyType({}),
) -> Callable[[Sample, list[Decoded]], Prompt]:
    """Return the function that turns a sample and its media into a prompt.

    By source name, `instruct` says whether the template's instruction is appended (default: yes),
    `forms` how its verifiers read an answer, and `tools` the functions that its prompts offer.
    `processor` replaces the policy's own.
    """
    processor = policy.processor if processor is None else processor

    def make(sample: Sample, media: list[Decoded]) -> Prompt:
        form, offered = forms.get(sample.source, prompting.ANY), tools.get(sample.source, ())
        sample = replace(sample, form=form, tools=offered)
        text = ""
        if instruct.get(sample.source, True):
            space, shown = policy.family.space, sample.num_images
            text = prompting.instruct(sample.template, sample.truth, space, sample.form, shown)
        return make_prompt(sample, media, policy.family, processor, text)

    return make


def prompt_maker_of(
    config: Config, policy: Policy, processor: object = None
) -> Callable[[Sample, list[Decoded]], Prompt]:
    """Return the function that makes prompts as a config says."""
    tools: Mapping[str, tuple[Mapping[str, Any], ...]] = {}
    if any(source.acts for source in config.named_sources):
        from vlmrl.assemble.turns import tools_by_source  # a plain run has no tools

        tools = tools_by_source(config, policy.family.space)
    return build_prompt_maker(
        policy, instruct_by_source(config), forms_by_source(config), processor, tools
    )


def pair_maker_of(
    config: Config, policy: Policy, processor: object = None
) -> Callable[[Sample, list[Decoded]], Prompt]:
    """Return the function that makes prompts of which a reward model scores two answers."""
    from vlmrl.training.preferences import make_prompt  # few runs train one

    processor = policy.processor if processor is None else processor
    return functools.partial(make_prompt, policy.family, processor)


PromptMakerOf = Callable[..., Callable[[Sample, list[Decoded]], Prompt]]
"""`prompt_maker_of` or `pair_maker_of`."""


def may_differ(allow: Sequence[str]) -> list[str]:
    """Return what of the loader's state need not be the same at a resume that allows these keys."""
    if not allow:
        return []
    from vlmrl.config.changes import is_allowed  # only where a run goes on

    keys = {"data.train": "sources", "run.seed": "seed"}
    return [
        name
        for key, name in keys.items()
        if is_allowed(key, allow) or any(below.startswith(f"{key}.") for below in allow)
    ]


def build_loader(
    config: Config,
    sources: Sequence[Source],
    policy: Policy,
    size: int,
    quarantine: Quarantine,
    sampler: Sampler | None = None,
    weights: Callable[[float], Sequence[float]] | None = None,
    tools: Mapping[str, Runner] | None = None,
    maker: PromptMakerOf = prompt_maker_of,
) -> Loader:
    """Build the loader of this rank: batches of `size` prompts, of the rows that `sampler` draws.

    `weights` are those of the sources by progress, where they change over training. With `tools`, by
    source, the turns of demonstrations are played as prompts are made.
    """
    sources = with_audio(sources, policy.family)
    # The loader's thread needs a processor of its own: two threads may not share one tokenizer.
    processor = copy.deepcopy(policy.processor) if config.data.workers else None
    make = maker(config, policy, processor)
    if tools is not None:
        # A plain run loads half of the package: not what writes the turns of demonstrations.
        from vlmrl.training.sft import Writer, demonstrating

        writer = Writer(policy.family, processor or policy.processor)
        make = demonstrating(make, writer, tools, sources)
    return Loader(
        sources,
        make,
        size,
        sampler=sampler,
        lag=config.sampler_lag,
        seed=config.run.seed,
        rank=distributed.rank(),
        world=distributed.world(),
        quarantine=quarantine,
        quarantine_limit=config.data.quarantine_limit,
        max_prompt_tokens=config.data.max_prompt_tokens,
        workers=config.data.workers,
        prefetch_mb=config.data.prefetch_mb,
        weights=weights,
        may_differ=may_differ(config.resume.allow),
    )


def build_eval_batches(
    config: Config,
    sources: Sequence[Source],
    policy: Policy,
    plan: EvaluationConfig | None,
    quarantine: Quarantine,
    shared: bool = False,
    maker: PromptMakerOf = prompt_maker_of,
) -> Callable[[], Iterable[PromptBatch]]:
    """Return a function that gives fresh batches of held-out prompts; if `shared`, this rank's share."""
    sources = with_audio(sources, policy.family)
    make = maker(config, policy)
    size = plan.batch_size if plan else 1
    share = {"rank": distributed.rank(), "world": distributed.world()} if shared else {}
    return lambda: eval_batches(
        sources,
        make,
        size,
        **share,
        quarantine=quarantine,
        quarantine_limit=config.data.quarantine_limit,
        max_prompt_tokens=config.data.max_prompt_tokens,
    )


def collect_media_prompts(
    config: Config, sources: Sequence[Source], policy: Policy, quarantine: Quarantine
) -> list[Prompt]:
    """Return the first prompts with media of each source, which `monitoring.run_checks` asks repeatedly.

    They are without tensors, which would be held for the whole run.
    """
    prompts: list[Prompt] = []
    for number, source in enumerate(sources, start=1):
        wanted = config.checks.media_ablation_prompts * number // len(sources) - len(prompts)
        first = replace(source, rows=source.rows[: 4 * config.checks.media_ablation_prompts])
        batches = build_eval_batches(config, [first], policy, None, quarantine)()
        shown = (without_tensors(p) for batch in batches for p in batch.prompts if p.media)
        prompts += itertools.islice(shown, wanted)
    return prompts
