"""`vlmrl test-part`: the contract tests of parts, shipped or the user's own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from vlmrl.errors import FAILED, UserError

TESTS = {
    "strategy": "test_strategies.py",
    "family": "test_families.py",
}
"""File of tests of a kind whose plural is not its name and an s."""
OPTIONS = (
    *("-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-m", "not nightly"),
    *("--hypothesis-profile=contract", "-W", "ignore"),
)


def test_part(
    parts: Annotated[
        list[str],
        typer.Argument(
            metavar="PART...", help="path/to/file.py:Name, package.module:Name or names."
        ),
    ],
) -> None:
    """Hold parts to the contract of their kind: the tests that every shipped part passes.

    - `vlmrl test-part my/area_ratio.py:AreaRatio`
    - `vlmrl test-part area_ratio clock_time`: parts of an installed package, by name

    Any kind that `vlmrl list` knows, but weights. Exit code 1 if a test fails. A verifier is also to pass
    `vlmrl verify`.
    """
    packages = [
        p for p in ("pytest", "hypothesis", "jsonschema") if not importlib.util.find_spec(p)
    ]
    if packages:
        raise UserError(
            f"vlmrl test-part needs {', '.join(packages)}: pip install 'vlmrl-perception[testing]'"
        )
    raise SystemExit(FAILED if _run_tests(parts) else 0)


def _run_tests(parts: Sequence[str]) -> int:
    """Run the tests of the kinds of some parts on these parts alone, and return pytest's exit code."""
    from vlmrl import plugins
    from vlmrl.features.parts.kinds import BY_NAME, kinds_of

    spec = importlib.util.find_spec("vlmrl.tests.contracts")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations)))
    variable = [*filter(None, [os.environ.get(plugins.VARIABLE)])]
    files: list[Path] = []
    chosen: list[str] = []
    for part in parts:
        kinds = kinds_of(part)
        name = part
        if ":" in part and kinds[0] in BY_NAME:
            name = plugins.label_of(part)
            variable.append(f"{kinds[0]}.{name}={part}")
        files += [folder / TESTS.get(kind, f"test_{kind}s.py") for kind in kinds]
        chosen += ["--part", name]
    root = (f"--rootdir={folder.parent}", "-c", os.devnull, "-o", f"pythonpath={folder.parent}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        *OPTIONS,
        *root,
        *dict.fromkeys(map(str, files)),
        *chosen,
    ]
    return subprocess.run(
        command, env=_environment({plugins.VARIABLE: ",".join(variable)})
    ).returncode


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the tests: no network, and one thread, so that numbers are the same."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
