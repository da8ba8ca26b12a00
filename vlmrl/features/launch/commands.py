"""`vlmrl launch`: run a config on many machines."""

from __future__ import annotations

from typing import Annotated

import typer

from vlmrl.arguments import ConfigName, Json, Overrides, Quiet
from vlmrl.errors import INTERRUPTED


def launch(
    config: ConfigName,
    overrides: Overrides = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes to train on.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each node, one a process.")
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run a config on the nodes of a Ray cluster, and begin it again from its last checkpoint if one is lost.

    - `vlmrl launch my.yaml --gpus-per-node 8` on this machine
    - `vlmrl launch my.yaml --nodes 4 --gpus-per-node 8 cluster.address=10.0.0.1:6379 resume=auto`

    All nodes need vlmrl, this folder, the data and the run folder at the same paths. Ctrl-C finishes the
    step and saves. What the first rank says is passed on, `--quiet` and `--json` are its own.
    """
    from vlmrl.runs.output.terminal import choose

    counts = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    places = [f"cluster.train.{key}={value}" for key, value in counts.items() if value is not None]
    keys = [*(overrides or ()), *places]
    saying = [*(["--quiet"] if quiet else []), *(["--json"] if json else [])]
    with choose(quiet, json) as output:
        from vlmrl.assemble.validate import load_valid

        settings = load_valid(config, keys)
        from vlmrl.features.launch import driver

        finished = driver.launch(settings, [*saying, config, *keys], output, json)
    if not finished:
        raise typer.Exit(INTERRUPTED)
