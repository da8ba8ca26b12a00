"""`vlmrl data check`, `explain`, `fetch` and `list`: rows as training would see them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from vlmrl.arguments import ConfigName, Data, MediaRoot, Options, Overrides
from vlmrl.errors import FAILED, UserError

if TYPE_CHECKING:
    from vlmrl.data.source import Source
    from vlmrl.schema import Sample, Space


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Leave garbage alone, inside: imports make none, and looking for it is a tenth of a short command."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --------------------------------------------------------------------------------------------------
# `vlmrl list`: the parts that a config can name.


Listed = Literal[
    "verifiers",
    "cards",
    "layouts",
    "benchmarks",
    "truths",
    "families",
    "algorithms",
    "engines",
    "trackers",
    "samplers",
    "strategies",
    "tools",
    "environments",
    "weights",
    "configs",
]
KINDS = {
    what: what.removesuffix("ies") + "y" if what.endswith("ies") else what.removesuffix("s")
    for what in get_args(Listed)
    if what != "configs"
}
"""What one writes after `vlmrl list` -> the kind of part."""


def list_(
    what: Annotated[Listed, typer.Argument(help="The kind of part.")],
    name: Annotated[
        str | None, typer.Argument(help="One of them, with all that it declares.")
    ] = None,
) -> None:
    """List what a config can name, with options, their types and their defaults.

    A truth is a kind of ground truth, such as boxes: how a row states it. It is a key of a row's
    `truth`, and a verifier names the kinds that it needs.

    - `vlmrl list verifiers`
    - `vlmrl list benchmarks mmstar`: hub id, splits, rows, protocols with their prompts, licence
    - `vlmrl list truths`
    - `vlmrl list configs`
    """
    with _collecting_nothing():
        from vlmrl.features.check import list_parts

        if what == "configs":
            lines = list_parts.describe_configs(name)
        elif what == "benchmarks":
            lines = list_parts.describe_benchmarks(name)
        else:
            lines = list_parts.describe(KINDS[what], name)
    print("\n".join(lines))


# --------------------------------------------------------------------------------------------------
# `vlmrl doctor`: examine a config before running it.


def doctor(config: ConfigName, overrides: Overrides = None) -> None:
    """Examine a config before running it: data, processor, verifiers, model, engine, memory.

    Sends a real batch through everything and prints a verdict for each check; exit code 1 if one
    fails. Writes nothing.

    - `vlmrl doctor quickstart`
    - `vlmrl doctor my.yaml engine=vllm`
    """
    from vlmrl.features.check.doctor import examine

    failed = False
    for finding in examine(config, overrides or ()):
        print(finding, flush=True)
        failed |= finding.verdict == "FAIL"
    raise typer.Exit(FAILED if failed else 0)


# --------------------------------------------------------------------------------------------------
# `vlmrl config`: show, check and describe configs.


def show(config: ConfigName, overrides: Overrides = None) -> None:
    """Print the whole config as it will run, defaults included, as JSON.

    - `vlmrl config show quickstart rollout.group_size=16`
    """
    from vlmrl.config import load

    print(load(config, overrides or ()).model_dump_json(indent=2))


def validate(config: ConfigName, overrides: Overrides = None) -> None:
    """Check every key, value, name, option and path of a config, without loading data or a model.

    Says how many questions a batch of rollouts asks of each of `models` at most.

    - `vlmrl config validate my.yaml`
    """
    with _collecting_nothing():
        from vlmrl.assemble.validate import describe_questions, load_valid

        lines = [*describe_questions(load_valid(config, overrides or ()))]
    print(f"{config}: valid", *lines, sep="\n")


def schema() -> None:
    """Print the JSON schema of configs, for editors.

    - `vlmrl config schema > schema.json`, then `# yaml-language-server: $schema=schema.json` as the
      first line of your YAML file
    """
    from vlmrl.config import schema

    print(schema())


# --------------------------------------------------------------------------------------------------


def check(
    data: Data,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file with a line for every row.")] = None,
    model: Annotated[str | None, typer.Option(help="Count prompt tokens for this model.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Offline page of rows, the truth drawn, bad ones first.")
    ] = None,
    media_root: MediaRoot = None,
    option: Options = None,
) -> None:
    """Load and decode every row as training would; exit code 1 if any is bad.

    - `vlmrl data check my.yaml data.train.0.split=val` checks all sources of a config
    - `vlmrl data check recipes/vlm_r1`
    - `vlmrl data check my.jsonl --out report.jsonl --images rows.html`
    - `vlmrl data check photos` takes all splits of a folder and prints a source for a config
    - `vlmrl data check shapes:val -o task=counting`
    """
    from vlmrl.config import tree
    from vlmrl.features.check import path_check
    from vlmrl.features.check.data_check import check_and_print

    after: list[str] = []
    if not _is_config(data) and not overrides and path_check.is_path(data):
        checked = path_check.open_path(data, tree.pairs(option or ()), media_root)
        sources, before, after = checked.sources, checked.before, checked.after
    else:
        sources = _open_sources(data, overrides, option, media_root)
        before = _about_config(data, overrides) if _is_config(data) else []
    make = None
    if model:
        from vlmrl.assemble.prompts import build_prompt_maker
        from vlmrl.assemble.sources import with_audio
        from vlmrl.config import ModelConfig
        from vlmrl.models.loading import load_model
        from vlmrl.policy.policy import Policy

        checkpoint = ModelConfig(path=model)
        policy = Policy(*load_model(checkpoint), checkpoint)
        make, sources = build_prompt_maker(policy, {}, {}), with_audio(sources, policy.family)
    see, lines, sheet = None, [], None
    if images:
        from vlmrl.features.check.contact_sheet import ContactSheet

        sheet = ContactSheet()
        see = sheet.add

    def say(line: str) -> None:
        print(line)
        lines.append(line)

    for line in before:
        say(line)
    bad = check_and_print(sources, out, make, see, say)
    for line in after:
        say(line)
    if sheet and images:
        print(sheet.write(images, lines))
    raise typer.Exit(FAILED if bad else 0)


def explain(
    data: Data,
    overrides: Overrides = None,
    row: Annotated[int, typer.Option(min=0, help="Which row, from 0.")] = 0,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint whose chat template writes the whole prompt.")
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="File for the row's image with the truth drawn on it.")
    ] = None,
    media_root: MediaRoot = None,
    option: Options = None,
) -> None:
    """Show what data are taken for, and one row as training sees it: prompt, truth, every box in every space.

    - `vlmrl data explain my.jsonl --row 7 --image row7.png`
    - `vlmrl data explain annotations.json --model Qwen/Qwen2.5-VL-3B-Instruct`
    """
    from vlmrl.features.check.data_check import explain

    source = _open_sources(data, overrides, option, media_root)[0]
    ask, render = _asking(data, overrides), None
    if model:
        from vlmrl.models.loading import load_processor

        processor, family = load_processor(model)

        def render(sample: Sample) -> str:
            return family.render(processor, sample, ask(sample, family.space))

    print(explain(source, row, ask, render))
    if image:
        from vlmrl.features.check.contact_sheet import write_truth_image

        print(write_truth_image(source, row, image))


def fetch(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Benchmarks, configs such as a recipe, or a folder of examples/data.",
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            help="Folder in which each benchmark has a folder: `--data-root` of `vlmrl eval`. A config says "
            "its own."
        ),
    ] = Path("data"),
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Address of a mirror of the hub, or a folder of downloads, instead of the hub.",
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the data set on the hub.")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(help="Path or URL of a .tar.gz of the repository, instead of its release."),
    ] = None,
) -> None:
    """Get the published data of benchmarks and of configs, or example data that shipped configs read.

    - `vlmrl data fetch mmstar chartqa`, then `vlmrl eval runs/mine --benchmark mmstar,chartqa`
    - `vlmrl data fetch recipes/vlm_r1`, then `vlmrl train recipes/vlm_r1`
    - `vlmrl data fetch bccd`, then `vlmrl train bccd_grounding`

    Says licence and size first, goes on if it was interrupted, unpacks archives, and writes the revision to
    `fetched.json`. A data set that asks for consent needs `hf auth login` first.
    """
    from vlmrl import config, plugins
    from vlmrl.benchmarking.fetching import fetch_benchmark, fetch_config
    from vlmrl.data import example_data

    known = sorted([*plugins.names("benchmark"), *example_data.EXAMPLES])
    configs = {
        name: config.load(name) for name in names if "/" in name or name.endswith((".yaml", ".yml"))
    }
    for name in names:
        if name not in configs and name.partition(":")[0] not in known:
            raise UserError(
                f"no benchmark or example data is named {name!r}{plugins.nearest(name, known)}"
            )
    for name in names:
        if name in configs:
            for home in fetch_config(name, configs[name], origin=origin, revision=revision):
                print(f"{name}: in {home}")
        elif name in example_data.EXAMPLES:
            print(example_data.fetch(name, archive))
        else:
            print(f"{name}: in {fetch_benchmark(name, to, origin=origin, revision=revision)}")


def list_cards() -> None:
    """List the shipped cards: origin, licence, splits, verifiers that fit."""
    from vlmrl.features.check.data_check import list_cards

    print(list_cards())


def _about_config(data: str, overrides: list[str] | None) -> list[str]:
    """Return what a config says of its sources that a user should know before their check."""
    from vlmrl import config
    from vlmrl.assemble.first_look import unpaid
    from vlmrl.data.source import other_splits

    settings = config.load(data, overrides or ())
    return [*(f"warning: {line}" for line in unpaid(settings)), *other_splits(settings)]


def _is_config(data: str) -> bool:
    """Return whether data are those of a config: a file of YAML, or a shipped one in a folder."""
    from vlmrl.config import tree

    return data.endswith((".yaml", ".yml")) or ("/" in data and data in tree.shipped())


def _asking(data: str, overrides: list[str] | None) -> Callable[[Sample, Space], str]:
    """Return what writes the end of a question: as the config says, or as training does without one."""
    from vlmrl.features.check.data_check import ask

    if not _is_config(data):
        return ask
    from vlmrl import config
    from vlmrl.assemble.sources import forms_by_source, instruct_by_source
    from vlmrl.truths import prompting

    settings = config.load(data, overrides or ())
    forms, instruct = forms_by_source(settings), instruct_by_source(settings)

    def as_configured(sample: Sample, space: Space) -> str:
        if not instruct.get(sample.source, True):
            return ""
        form = forms.get(sample.source, prompting.ANY)
        return prompting.instruct(sample.template, sample.truth, space, form, sample.num_images)

    return as_configured


def _open_sources(
    data: str, overrides: list[str] | None, option: list[str] | None, media_root: str | None
) -> list[Source]:
    """Open the sources of a config file, or the one that `CARD_OR_FILE[:split]` names."""
    from vlmrl import config
    from vlmrl.data.source import open_config, open_target

    if _is_config(data):
        if option or media_root:
            raise UserError(
                "--option and --media-root are for cards; give a config its keys instead"
            )
        return open_config(config.load(data, overrides or ()))
    if overrides:
        raise UserError(f"{overrides[0]!r}: only a config has keys; a card takes -o {overrides[0]}")
    from vlmrl.config import tree

    return [open_target(data, tree.pairs(option or ()), media_root)]
