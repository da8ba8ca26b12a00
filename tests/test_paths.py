"""No path of a config, a page, a test, a card or a script leaves the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = "configs docs tests datasets rewards performance vlmrl benchmarks".split()
SUFFIXES = (".py", ".md", ".yaml", ".yml", ".toml", ".jsonl", ".cff", ".in", "")
OUTSIDE = re.compile(
    r"\.\./shared|shared/data|(?<![\w.:/])/(?:work|root)/|[\"']shared[\"'] */|ROOT\.parent\b"
)
UP = re.compile(r"Path\(__file__\)(?:\.resolve\(\))?\.parents\[(\d+)\]")


def leaves(path: Path, line: str) -> bool:
    """Return whether a line of a file names a place outside of the repository."""
    depth = len(path.relative_to(ROOT).parts)
    climbs = any(int(up) >= depth for up in UP.findall(line))
    relative = path.suffix in (".yaml", ".yml") and re.search(r"(?<![\w/])\.\./\w", line)
    return climbs or bool(relative) or bool(OUTSIDE.search(line))


def test_no_path_leaves_the_repository() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*")]
    files += [file for file in ROOT.glob("[!.]*") if file.is_file()]
    texts = [
        file
        for file in files
        if file.is_file()
        and file.suffix in SUFFIXES
        and file != Path(__file__)
        and not file.is_relative_to(ROOT / "tests" / "data" / "hard")
    ]
    assert len(texts) > 300
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in texts
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if leaves(file, line)
    ]
    assert found == []


def test_a_path_that_leaves_the_repository_is_seen() -> None:
    test, config = ROOT / "tests" / "data" / "test_x.py", ROOT / "configs" / "x.yaml"
    for path, line in [
        (test, "Path(__file__).parents[3]"),
        (test, 'ROOT.parent / "data"'),
        (test, "open('/work/data')"),
        (config, "path: ../data/x"),
        (config, "# see ../shared"),
    ]:
        assert leaves(path, line), line
    for path, line in [
        (test, "Path(__file__).parents[2]"),
        (test, '"../../secret.png"'),
        (config, "path: example:bccd"),
    ]:
        assert not leaves(path, line), line
