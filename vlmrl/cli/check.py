"""`vlmrl data check`, `explain`, `fetch` and `list`: rows as training would see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.cli.arguments import Data, MediaRoot, Options, Overrides
from vlmrl.cli.exit_codes import FAILED
from vlmrl.errors import UserError

if TYPE_CHECKING:
    from vlmrl.data.source import Source
    from vlmrl.schema import Sample, Space


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
    - `vlmrl data check my.jsonl --out report.jsonl --images rows.html`
    - `vlmrl data check shapes:val -o task=counting`
    """
    from vlmrl.data.check import check_and_print

    sources = _open_sources(data, overrides, option, media_root)
    make = None
    if model:
        from vlmrl.assemble.prompts import build_prompt_maker
        from vlmrl.assemble.sources import with_audio
        from vlmrl.config import ModelConfig
        from vlmrl.models.loading import load_model
        from vlmrl.policy.policy import Policy

        settings = ModelConfig(path=model)
        policy = Policy(*load_model(settings), settings)
        make, sources = build_prompt_maker(policy, {}, {}), with_audio(sources, policy.family)
    see, lines, sheet = None, [], None
    if images:
        from vlmrl.report.contact_sheet import ContactSheet

        sheet = ContactSheet()
        see = sheet.add

    def say(line: str) -> None:
        print(line)
        lines.append(line)

    bad = check_and_print(sources, out, make, see, say)
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
    from vlmrl.data.check import explain

    source = _open_sources(data, overrides, option, media_root)[0]
    ask, render = _asking(data, overrides), None
    if model:
        from vlmrl.models.loading import load_processor

        processor, family = load_processor(model)

        def render(sample: Sample) -> str:
            return family.render(processor, sample, ask(sample, family.space))

    print(explain(source, row, ask, render))
    if image:
        from vlmrl.report.truth_image import write_truth_image

        print(write_truth_image(source, row, image))


def fetch(
    name: Annotated[str, typer.Argument(help="Name of a folder of examples/data.")],
    archive: Annotated[
        str | None,
        typer.Option(help="Path or URL of a .tar.gz of the repository, instead of its release."),
    ] = None,
) -> None:
    """Get example data that shipped configs read, unless it is here, as it is in a checkout.

    - `vlmrl data fetch bccd`, then `vlmrl train bccd_grounding`
    """
    from vlmrl.data import example_data

    print(example_data.fetch(name, archive))


def list_cards() -> None:
    """List the shipped cards: origin, licence, splits, verifiers that fit."""
    from vlmrl.data.check import list_cards

    print(list_cards())


def _asking(data: str, overrides: list[str] | None) -> Callable[[Sample, Space], str]:
    """Return what writes the end of a question: as the config says, or as training does without one."""
    from vlmrl.data.check import ask

    if not data.endswith((".yaml", ".yml")):
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
    from vlmrl.config import tree
    from vlmrl.data.source import open_config, open_target

    if data.endswith((".yaml", ".yml")):
        if option or media_root:
            raise UserError(
                "--option and --media-root are for cards; give a config its keys instead"
            )
        return open_config(config.load(data, overrides or ()))
    if overrides:
        raise UserError(f"{overrides[0]!r}: only a config has keys; a card takes -o {overrides[0]}")
    return [open_target(data, tree.pairs(option or ()), media_root)]
