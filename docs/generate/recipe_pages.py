"""The gallery: a page for each recipe of `configs/recipes`, and the tables of its index by what is trained.

A page is written from the recipe's head, its config, the parts that this names, the tests that name it, and
the figures of `coverage.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import machines_page
import recipe_evidence
from coverage_page import Figure, System, read_systems, shown_benchmark
from recipe_facts import GROUPS, Recipe, recipes, say, settings, sources_of
from tables import code, escape, header, link_part, row

from vlmrl import plugins
from vlmrl.config import Config, RewardConfig, SourceConfig

WORDS = {"runs": "runs", "partly": "runs in part", "out": "cannot be trained"}
"""State of a system -> what a sentence says of it."""
LONGEST = 100
"""Characters of an option that a table shows."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of every recipe's page."""
    systems = systems_by_recipe()
    for recipe in recipes().values():
        yield f"recipes/{recipe.short}.md", page(recipe, systems[recipe.short])


def nav() -> list[Mapping[str, list[str]]]:
    """Return the sections of the navigation: each group with its pages."""
    return [{group: [f"recipes/{r.short}.md" for r in of_group(group)]} for group in GROUPS]


def index() -> str:
    """Return the tables of the index, one a group."""
    systems = systems_by_recipe()
    lines = []
    for group in GROUPS:
        lines += [
            f"## {group}",
            "",
            *header("recipe", "what is trained", "tasks", "paper", "state"),
        ]
        for recipe in of_group(group):
            lines.append(
                row(
                    f"[`{recipe.short}`]({recipe.short}.md)",
                    escape(f"**{recipe.head.system}**: {recipe.head.what}"),
                    "; ".join(recipe.tasks),
                    _paper(recipe),
                    systems[recipe.short].state,
                )
            )
        lines.append("")
    return "\n".join(lines)


def of_group(group: str) -> Sequence[Recipe]:
    """Return the recipes of a group, by name."""
    return [recipe for recipe in recipes().values() if recipe.group == group]


def systems_by_recipe() -> Mapping[str, System]:
    """Return the system that each recipe belongs to."""
    return {name: system for system in read_systems() for name in system.recipes}


def page(recipe: Recipe, system: System) -> str:
    """Return the page of a recipe."""
    head, config = recipe.head, recipe.config
    stated = f"[{WORDS[system.state]}](coverage.md#{system.anchor})"
    said = [f"**Config** {code(recipe.name)}", f"**{system.name}** {stated}"]
    if head.paper:
        title = f"{escape(head.title)}, " if head.title else ""
        said.insert(0, f"**Paper** {title}{_paper(recipe)}")
    lines = [f"# {recipe.title}", "", " · ".join(said), ""]
    lines += ["```sh", *_commands(recipe, system), "```", "", *_sizes(recipe), ""]
    lines += ["## What it trains", "", _prose(head.sections["Runs"]), ""]
    lines += ["**As published**: " + escape(head.sections["As published"]), ""]
    lines += ["## What differs from the paper", "", _prose(head.sections["Differs"]), ""]
    if system.note:
        lines += [f"Of {system.name} as a whole: {escape(system.note)}", ""]
    lines += ["## Data", "", _prose(head.sections["Data"]), "", *_data(config), ""]
    lines += ["## Rewards", "", *_rewards(config), ""]
    lines += ["## Algorithm", "", *_algorithm(config), ""]
    lines += ["## What was verified here", ""]
    lines += [f"- {said}" for said in recipe_evidence.describe(recipe.name, config)]
    lines += ["", "It was not trained to published figures here.", ""]
    lines += ["## Published figures to compare with", "", *_figures(recipe, system), ""]
    return "\n".join([*lines, "## The config", "", *_config(recipe)])


def _commands(recipe: Recipe, system: System) -> Iterator[str]:
    """Yield the commands from the published data to what the paper reports, one a line."""
    if any(source.published for source in sources_of(recipe.config)):
        yield f"vlmrl data fetch {recipe.name}"
    yield f"vlmrl data check {recipe.name}"
    yield f"vlmrl train {recipe.name}"
    for preset in machines_page.names():
        command = f"vlmrl train {recipe.name} {preset}"
        if preset == "machines/2x8x80gb":
            yield f"vlmrl launch {recipe.name} {preset} cluster.address=HOST:PORT"
        elif preset.startswith("machines/8x"):
            yield f"torchrun --nproc-per-node 8 -m {command}"
        else:
            yield command
    reported = [
        name for one in system.figures if one.recipe == recipe.short for name in one.benchmarks
    ]
    for name in dict.fromkeys(reported):
        yield f"vlmrl data fetch {name.partition('(')[0]}"
        yield f"vlmrl eval runs/{recipe.config.run.name} --benchmark {name}"


ROWS = {"hiyouga/geometry3k": 2101}
"""Data set of the hub -> rows of its split `train`, where they were counted."""


def _sizes(recipe: Recipe) -> Iterator[str]:
    """Yield what a run asks in all, in epochs where the rows are counted, and where it fits."""
    config = recipe.config
    drawn = sum(config.at(n / 100).rollout.prompts for n in range(100)) / 100
    asked = f"Its {config.run.steps} steps ask {config.run.steps * drawn:,.0f} prompts"
    hubs = {source.published.hub for source in sources_of(config) if source.published}
    rows = ROWS.get(*hubs) if len(hubs) == 1 else None
    if rows:
        asked += f", {config.run.steps * drawn / rows:.3g} epochs of its {rows:,} rows"
    if few := config.evaluation.limit:
        width = 98 / few**0.5  # 1.96 standard errors at one half
        asked += (
            f". Evaluations take the first {few} rows of each source, a 95 % interval of at most "
            f"{width:.0f} points each way; `evaluation.limit=null` takes all"
        )
    yield f"{asked}. Choose one line of `train` or `launch`: [where its model fits](../scale/machines.md)."


def _prose(text: str) -> str:
    """Return a section of a head as sentences; a name or a path that it begins with stays as it is."""
    is_word = text.split()[0].strip(",;:").isalpha()
    return escape(text[:1].upper() + text[1:] if is_word else text)


def _paper(recipe: Recipe) -> str:
    paper = recipe.head.paper
    return f"[arXiv {paper}](https://arxiv.org/abs/{paper})" if paper else ""


def _data(config: Config) -> Iterator[str]:
    """Yield a table of the sources: card, licence, what you bring and its columns."""
    yield from header("source", "card", "licence", "you bring", "columns")
    for source in sources_of(config):
        card: Any = plugins.load("card", source.card)
        path = source.options.get("path")
        columns = source.options.get("columns") or {}
        layout = source.options.get("layout")
        told = ", ".join(f"{code(str(theirs))} ({key})" for key, theirs in columns.items())
        form = f"layout {link_part('layouts', layout)}" if layout else ""
        yield row(
            code(source.label),
            link_part("cards", source.card),
            escape(card.licence) or "that of the data you bring",
            code(str(path)) if path else "nothing",
            told or form or "those of the card",
        )


def _rewards(config: Config) -> Iterator[str]:
    """Yield a table of the rewards of each stage and source, alike ones once."""
    yield from header("of", "reward", "verifier", "weight", "how it counts")
    for names, rewards in _by_source(config).items():
        for reward in rewards:
            yield row(
                names,
                code(reward.label),
                link_part("verifiers", reward.verifier),
                say(reward.weight),
                _counts(reward),
            )
    if config.scoring.combine != "sum":
        yield ""
        yield f"Combined by {code(config.scoring.combine)} ([Rewards](../rewards/index.md))."


def _by_source(config: Config) -> Mapping[str, Sequence[RewardConfig]]:
    """Return names of stages and sources -> their rewards; what holds for all is called `all`."""
    found: dict[str, tuple[list[str], Sequence[RewardConfig]]] = {}
    for stage, each in zip(config.stages or [None], config.by_stage, strict=True):
        for source in each.data.train:
            rewards = each.rewards_of(source)
            name = f"{stage.name}: {source.label}" if stage and stage.name else source.label
            found.setdefault(str(rewards), ([], rewards))[0].append(name)
    if len(found) == 1:
        return {"all": next(iter(found.values()))[1]}
    return {", ".join(dict.fromkeys(names)): rewards for names, rewards in found.values()}


def _counts(reward: RewardConfig) -> str:
    """Return what a reward says beside its verifier and weight."""
    said = [f"{key}: {_short(value)}" for key, value in reward.options.items()]
    written = reward.model_dump(exclude_defaults=True)
    skipped = ("verifier", "name", "weight", "options")
    said += [f"{key}: {say(value)}" for key, value in written.items() if key not in skipped]
    return ", ".join(code(text) for text in said)


def _short(value: Any) -> str:
    """Return an option: of a model its name, of a long text its beginning, all else as YAML has it."""
    if isinstance(value, Mapping) and "url" in value and value.get("name"):
        return str(value["name"])
    written = say(value)
    return written if len(written) <= LONGEST else f"{written[:LONGEST]} ..."


def _algorithm(config: Config) -> Iterator[str]:
    """Yield what is not as in plain GRPO: options of each algorithm, then the parts beside it."""
    found: dict[str, tuple[list[str], Config]] = {}
    for number, each in enumerate(config.by_stage):
        name = config.stages[number].name if config.stages else None
        found.setdefault(str(each.algorithm), ([], each))[0].append(name or str(number + 1))
    for stages, each in found.values():
        where = f" in stage {', '.join(map(code, stages))}" if len(found) > 1 else ""
        name = each.algorithm.name
        differing = list(settings(each))
        told = ", where it differs from plain GRPO:" if differing else " with its defaults."
        yield from (f"{link_part('algorithms', name)}{where}{told}", "")
        if differing:
            yield from header("option", "here", "GRPO's default")
            yield from (row(code(key), code(value), plain) for key, value, plain in differing)
            yield ""
    for kind, folder, named in _beside(config):
        links = ", ".join(link_part(folder, one) for one in named)
        yield f"- {kind}: {links}"


def _beside(config: Config) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield kind, folder of pages and names of the other parts that the config names."""
    sources: Sequence[SourceConfig] = sources_of(config)
    if config.data.sampler.name != "mixture":
        yield "sampler", "samplers", [config.data.sampler.name]
    if config.strategies:
        yield "strategies", "strategies", [one.name for one in config.strategies]
    if tools := dict.fromkeys(tool.name for source in sources for tool in source.tools):
        yield "tools", "tools", list(tools)
    if worlds := dict.fromkeys(s.environment.name for s in sources if s.environment):
        yield "environment", "environments", list(worlds)
    if config.engine.name != "hf":
        yield "engine", "engines", [config.engine.name]


def _figures(recipe: Recipe, system: System) -> Iterator[str]:
    """Yield the published figures of a recipe, with source and the benchmarks that ask the same."""
    found: Sequence[Figure] = [one for one in system.figures if one.recipe == recipe.short]
    if not found:
        yield "None given."
    for one in found:
        yield f"- {escape(one.figure)} ({escape(one.source)})"
        for name in one.benchmarks:
            command = f"vlmrl eval runs/{recipe.short} --benchmark {name}"
            yield f"    - {shown_benchmark(name)}: {code(command)}"


def _config(recipe: Recipe) -> Iterator[str]:
    """Yield the file without its head."""
    lines = recipe.file.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    if recipe.extends.startswith("recipes/"):
        base = recipe.extends.removeprefix("recipes/")
        yield f"On top of [`{recipe.extends}`]({base}.md); `vlmrl config show {recipe.name}` prints it whole."
        yield ""
    yield "```yaml"
    yield from lines[start:]
    yield "```"
    yield ""
