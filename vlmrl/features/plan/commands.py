"""`vlmrl plan`: forecast a config on many GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from vlmrl.arguments import ConfigName, Overrides
from vlmrl.errors import FAILED


def plan(
    config: ConfigName,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the whole job.")] = 8,
    gpu: Annotated[
        str,
        typer.Option(
            help="Their kind: rtx4080, l4, rtx4090, a100_40gb, l40s, a100, h100, rtx_pro_6000, h200, b200."
        ),
    ] = "h100",
    memory: Annotated[
        float | None, typer.Option(min=1, help="GB of each, for a kind that is not listed.")
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(help="An assumption, `NAME=VALUE`, e.g. `train_mfu=0.3`; repeatable."),
    ] = None,
    images: Annotated[int, typer.Option(min=0, help="Images of a prompt.")] = 1,
    pixels: Annotated[int, typer.Option(min=1, help="Pixels of an image.")] = 1_003_520,
    text_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt beside them.")] = 200,
    show: Annotated[int, typer.Option(min=0, help="Layouts of the sweep to print.")] = 5,
) -> None:
    """Forecast a config on many GPUs: memory, seconds of a step, what breaks first, the best layouts.

    Needs neither GPUs nor weights: published sizes and rates, and assumptions that `--assume` changes. Exit
    code 1 if the config cannot run as it is.

    - `vlmrl plan recipes/vlm_r1 --gpus 64 --gpu h100`
    - `vlmrl plan recipes/vlm_r1 machines/8x80gb --gpus 8`
    - `vlmrl plan my.yaml --gpus 1 --gpu rtx4090 --memory 32` for a card that is not listed
    - `vlmrl plan my.yaml model.path=Qwen/Qwen2.5-VL-72B-Instruct --gpus 256 --assume train_mfu=0.3`
    """
    from vlmrl.config import load

    settings = load(config, overrides or ())  # its data may be elsewhere
    from vlmrl.features.plan.layouts import as_overrides, layout_of
    from vlmrl.features.plan.planner import (
        HONEST,
        Planner,
        PromptContent,
        describe,
        describe_sweep,
        find_verdicts,
    )
    from vlmrl.features.plan.published import Assumptions
    from vlmrl.features.plan.published import gpu as rates_of

    shown = PromptContent(images, pixels, text_tokens)
    planner = Planner(settings, rates_of(gpu, memory), Assumptions.of(assume or ()), shown)
    judged = planner.rate(layout_of(planner.config, gpus))
    verdicts = find_verdicts(planner, judged)
    print("As configured", *describe(planner, judged, verdicts), sep="\n", flush=True)
    if show:
        layouts = planner.sweep(gpus)
        print("\nLayouts that fit, the fastest first", *describe_sweep(layouts, show), sep="\n")
        if layouts:
            print("the first, as keys:", as_overrides(layouts[0].layout.changes(settings)))
    print(f"\n{HONEST}")
    fails = any(verdict.level == "FAIL" for verdict in verdicts)
    raise typer.Exit(FAILED if fails else 0)
