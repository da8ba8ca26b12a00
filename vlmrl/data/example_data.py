"""Example data of the shipped configs: `example:NAME` in a config is a folder of it, wherever one runs.

A checkout has the data under `examples/data`. An installed wheel keeps it in the user's cache, where
`vlmrl data fetch NAME` puts it; nothing stays there that is not exactly what this version expects.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import vlmrl
from vlmrl.errors import UserError
from vlmrl.plugins import nearest
from vlmrl.system.files import writing

PREFIX = "example:"
MAX_ARCHIVE_BYTES = 200 << 20
"""Of the archive, and of everything in it when it is unpacked."""
SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Example:
    """One data set: what it may be used for, and what its files must be."""

    licence: str
    bytes: int
    sha256: str
    """Of the names and the SHA-256 of its files, see `digest`."""

    @property
    def size(self) -> str:
        """Return its size for a person."""
        return f"{self.bytes / 1e6:.1f} MB"


EXAMPLES = {
    "bccd": Example(
        "MIT",
        6412517,
        "4ff68c5b705edab473e39132e7f9139edbe3dba55196810700730d23e74a5590",
    ),
    "cards": Example(
        "Apache-2.0",
        5598832,
        "53f7ce7c7defff7063b100a447df90c4dacc346bb54b061c902307de4d35d76f",
    ),
    "charts": Example(
        "CC BY-SA 4.0",
        70709,
        "4692d205dd8432c775e0ec1872ebedefa148e68f7573c822b5dd7c56ed7c2315",
    ),
    "fsdd": Example(
        "CC BY-SA 4.0",
        2101695,
        "d6a4d12be500bfa146b268b5df661869c19e16e5fb9adee849aa070cb32b614b",
    ),
    "gui": Example(
        "MIT",
        104072,
        "9234c335fd8cd13619d813724324ddf213f8e71411cefc090b046efe578106bd",
    ),
    "iqa_livec": Example(
        "LIVE notice (free use)",
        130832,
        "a6dbe25ff1fc696a3a703f2eb0fbdba71bb26a489d01133d192f2c18b054c416",
    ),
    "tables": Example(
        "CC BY-SA 4.0",
        76763,
        "9466f59353991fe4f9643076a091ad552349b5ff1a23b7db0f0ee515b4f231a5",
    ),
    "video": Example(
        "CC BY 4.0",
        481435,
        "e97af5a5689cfe0ba9d745720c8c2d1f0548682792f4bb01c6e1fd4edc46bbf3",
    ),
}


def resolve(value: object) -> Any:
    """Return a card's options with each text `example:NAME/...` replaced by that path on this machine.

    Raises:
        UserError: there is no such example data, or it is not on this machine.
    """
    if isinstance(value, Mapping):
        return {key: resolve(inner) for key, inner in value.items()}
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return value
    name, _, rest = value.removeprefix(PREFIX).partition("/")
    folder = find(name)
    if folder is None:
        example = EXAMPLES[name]
        raise UserError(
            f"{value}: not on this machine; `vlmrl data fetch {name}` downloads it ({example.size}, "
            f"{example.licence}), or copy the folder examples/data/{name} of the project's repository "
            f"to {_cache() / name}"
        )
    return str(folder / rest)


def find(name: str) -> Path | None:
    """Return the folder of an example data set in this checkout or in the cache; None if it is in neither.

    Raises:
        UserError: there is no such example data.
    """
    if name not in EXAMPLES:
        raise UserError(f"no example data is named {name!r}{nearest(name, sorted(EXAMPLES))}")
    folders = (Path(vlmrl.__file__).parents[1] / "examples" / "data" / name, _cache() / name)
    return next((folder for folder in folders if folder.is_dir()), None)


def fetch(name: str, archive: str | None = None) -> str:
    """Put an example data set into the cache unless it is here already; say in one line what was done.

    `archive` is a `.tar.gz` of the project's repository, a path or a URL; None: that of this version,
    from the repository that the installed package names.

    Raises:
        UserError: no such data, no archive, or one that does not hold this very data.
    """
    example, there = EXAMPLES.get(name), find(name)
    if there is not None or example is None:
        return f"{name}: already here, {there}"
    home = _cache() / name
    by_hand = f"or copy the folder examples/data/{name} of the project's repository to {home}"
    archive = archive or _released_archive()
    if archive is None:
        raise UserError(
            f"{name}: this installation names no repository; give --archive with the URL or path of its "
            f".tar.gz, {by_hand}"
        )
    print(f"{name}: {example.size}, licence {example.licence}, from {archive}")
    with writing(home):
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            try:
                files = _unpack(_read(archive, scratch), name)
            except (OSError, EOFError, UserError, tarfile.TarError) as error:
                raise UserError(f"{name}: {error}; give another --archive, {by_hand}") from error
            folder = Path(scratch) / name
            for inside, content in files.items():
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                (folder / inside).write_bytes(content)
            if digest(folder) != example.sha256:
                raise UserError(
                    f"{name}: {archive} holds other files than this version of vlmrl expects "
                    "(SHA-256); give another --archive"
                )
            os.replace(folder, home)
    return f"{name}: in {home}"


def digest(folder: Path) -> str:
    """Return the SHA-256 of a folder: of `NAME SHA-256` for each of its files, one a line, by name."""
    total = hashlib.sha256()
    for name in sorted(f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()):
        content = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        total.update(f"{name} {content}\n".encode())
    return total.hexdigest()


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "vlmrl" / "examples"


def _released_archive() -> str | None:
    """Return the URL of this version's archive, if the package's metadata name a repository."""
    try:
        stated = importlib.metadata.metadata(vlmrl.DISTRIBUTION).get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    urls = dict(tuple(line.split(", ", 1)) for line in stated if ", " in line)
    home = urls.get("Repository")
    return f"{home.rstrip('/')}/archive/refs/tags/v{vlmrl.__version__}.tar.gz" if home else None


def _read(archive: str, scratch: str) -> bytes:
    """Return the bytes of an archive; the user named its URL, so that it may be of this network."""
    if "://" in archive:
        from vlmrl.media.download import download  # a run never downloads it

        return download(archive, SECONDS, MAX_ARCHIVE_BYTES, allow_private=True, cache=scratch)
    path = Path(archive)
    if path.stat().st_size > MAX_ARCHIVE_BYTES:
        raise UserError(f"{archive}: larger than {MAX_ARCHIVE_BYTES >> 20} MiB")
    return path.read_bytes()


def _unpack(data: bytes, name: str) -> dict[PurePosixPath, bytes]:
    files, unpacked = {}, 0
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            unpacked += member.size
            if unpacked > MAX_ARCHIVE_BYTES:
                raise UserError(f"the archive unpacks to more than {MAX_ARCHIVE_BYTES >> 20} MiB")
            parts = PurePosixPath(member.name).parts
            content = archive.extractfile(member) if member.isfile() else None
            if content and parts[1:4] == ("examples", "data", name) and ".." not in parts:
                files[PurePosixPath(*parts[4:])] = content.read()
    if not files:
        raise UserError(f"the archive has no examples/data/{name}")
    return files
