"""`vlmrl list`: the parts that a config can name."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

KINDS = {
    "verifiers": "verifier",
    "cards": "card",
    "layouts": "layout",
    "benchmarks": "benchmark",
    "truths": "truth",
    "families": "family",
    "algorithms": "algorithm",
    "engines": "engine",
    "trackers": "tracker",
    "samplers": "sampler",
    "strategies": "strategy",
    "tools": "tool",
    "environments": "environment",
}
"""What one writes after `vlmrl list` -> the kind of part."""

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
    "configs",
]


def list_(what: Annotated[Listed, typer.Argument(help="The kind of part.")]) -> None:
    """List what a config can name, with options, their types and their defaults.

    A truth is a kind of ground truth, such as boxes: how a row states it. It is a key of a row's
    `truth`, and a verifier names the kinds that it needs.

    - `vlmrl list verifiers`
    - `vlmrl list truths`
    - `vlmrl list configs`
    """
    from vlmrl.commands import list_parts

    if what == "configs":
        print("\n".join(list_parts.describe_configs()))
    else:
        print("\n".join(list_parts.describe(KINDS[what])))
