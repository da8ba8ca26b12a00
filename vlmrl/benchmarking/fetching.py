"""The published data of benchmarks and configs, brought into folders: from the hub, a mirror, or downloads.

A benchmark's archives are unpacked in the folder itself, as lmms-eval does, those of a config beside
themselves; what leads outside of the folder is refused. An interrupted fetch goes on, and `fetched.json`
says which revision came.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from vlmrl import plugins
from vlmrl.benchmarking.base import Benchmark, repository_of
from vlmrl.config import Config
from vlmrl.errors import UserError
from vlmrl.system import files

MANIFEST = "fetched.json"
_ROWS = (".parquet", ".arrow")
_SPLIT = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?")
_PART = re.compile(r"(?P<whole>.+\.(?:zip|tar|tar\.gz|tgz))\.?(?:part)?[-_.]?[0-9a-z]{1,3}")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is to fetch: paths in the data set with their sizes in bytes, of one revision of it."""

    repository: str
    revision: str
    sizes: dict[str, int]
    licence: str = "not stated"


def fetch_benchmark(
    name: str,
    to: Path,
    *,
    origin: str | None = None,
    revision: str | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Fetch the data of a benchmark into `to/NAME`, unpack them, and return that folder.

    `origin` is the address of a mirror of the hub, or a folder of downloads; None: the hub. `revision` is a
    branch, tag or commit; None: that of an earlier fetch into this folder, else the newest.

    Raises:
        UserError: no such benchmark; its data are not on the hub, or cannot be fetched; the disk is too
            small; a path leads outside of the folder.
    """
    name = name.partition(":")[0]
    benchmark = plugins.load("benchmark", name)
    repository, home = repository_of(benchmark.hub), to / name
    if repository is None:
        raise UserError(
            f"{name}: its data are not on the hub; get them at {benchmark.hub or benchmark.origin}"
        )
    wants = functools.partial(_is_wanted, benchmark=benchmark)
    data = _Data(name, repository, wants, licence=benchmark.licence)
    _fetch(data, home, origin, revision, say)
    return home


def fetch_config(
    name: str,
    settings: Config,
    *,
    origin: str | None = None,
    revision: str | None = None,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Fetch the data that the sources of a config, called `name`, say to be published; return their folders.

    `origin` and `revision` are those of `fetch_benchmark`.

    Raises:
        UserError: as `fetch_benchmark`; no source says where its data are published.
    """
    sources = [source for stage in settings.by_stage for source in stage.named_sources]
    published = {source.published.to: source.published for source in sources if source.published}
    if not published:
        raise UserError(f"{name}: no source of it says where its data are published (`published`)")
    if len(published) > 1 and origin is not None and "://" not in origin:
        raise UserError(
            f"{origin}: a folder of downloads is of one data set, and {name} names {len(published)}: "
            f"{', '.join(each.hub for each in published.values())}"
        )
    for each in published.values():
        wants = functools.partial(_is_named, patterns=each.files)
        _fetch(_Data(name, each.hub, wants, beside=True), Path(each.to), origin, revision, say)
    return [Path(folder) for folder in published]


@dataclass(frozen=True, slots=True)
class _Data:
    """A data set of the hub, which of its files are wanted, and whether archives unpack beside themselves."""

    name: str
    repository: str
    wants: Callable[[str], bool]
    beside: bool = False
    licence: str = ""


def _fetch(
    data: _Data, home: Path, origin: str | None, revision: str | None, say: Callable[[str], None]
) -> None:
    name, repository = data.name, data.repository
    before = files.read_json(home / MANIFEST) if (home / MANIFEST).is_file() else {}
    folder = Path(origin) if origin is not None and "://" not in origin else None
    if folder is not None:
        listing = _list_folder(repository, folder)
    else:
        listing = _list_hub(repository, revision or before.get("revision"), origin)
    _check_inside(listing.sizes, repository)
    wanted = [path for path in listing.sizes if data.wants(path)]
    if not wanted:
        raise UserError(f"{repository}: it holds no file that {name} wants")
    done: list[str] = before["unpacked"] if before.get("revision") == listing.revision else []
    needed = [path for path in wanted if path not in done]
    total = sum(listing.sizes[path] for path in needed)
    source = {
        "repository": repository,
        "revision": listing.revision,
        "licence": data.licence or listing.licence,
    }
    size = f"{len(needed)} files, {total / 1e6:,.1f} MB"
    say(f"{name}: {size}; {', '.join(f'{key} {value}' for key, value in source.items())}")
    _check_room(home, total)
    with files.writing(home):
        home.mkdir(parents=True, exist_ok=True)
        if folder is not None:
            _copy(folder, home, needed)
        else:
            _download(listing, home, needed, origin)
        manifest = {"data": name, **source, "files": wanted, "unpacked": done}
        files.write_json(home / MANIFEST, manifest)
        for whole, parts in _archives(needed).items():
            say(f"{name}: unpacking {whole}")
            into = (home / whole).parent if data.beside else home
            _unpack(home, whole, parts, into)
            done.extend(parts)  # before they go, so that they are not fetched again
            files.write_json(home / MANIFEST, manifest)
            for part in parts:
                (home / part).unlink()


def _is_named(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a file is one of those that a config names."""
    if not patterns:
        return PurePosixPath(path).name != ".gitattributes"
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _is_wanted(path: str, benchmark: type[Benchmark]) -> bool:
    """Return whether a file is of the benchmark: tables of other splits or configs are not."""
    file = PurePosixPath(path)
    if file.suffix not in _ROWS:
        return file.name != ".gitattributes"
    if any("*" in pattern and fnmatch.fnmatchcase(path, pattern) for pattern in benchmark.files):
        return True
    if benchmark.files and not any(
        path == each or path.startswith(f"{each}/")
        for each in (*benchmark.files, *benchmark.beside[:1])
    ):
        return False
    match = _SPLIT.fullmatch(file.stem)
    return match is None or match["split"] in (benchmark.split, *benchmark.splits)


def _check_inside(paths: Iterable[str], where: str) -> None:
    for path in paths:
        if files.leads_outside(path):
            raise UserError(f"{where}: expected paths inside of its folder, got {path!r:.100}")


def _check_room(home: Path, needed: int) -> None:
    free = files.free_bytes(home)
    if free is not None and needed > free:
        raise UserError(
            f"{home}: expected {needed / 1e9:.1f} GB of free disk, got {free / 1e9:.1f} GB"
        )


# --------------------------------------------------------------------------------------------------
# From the hub or a mirror of it.


def _list_hub(repository: str, revision: str | None, endpoint: str | None) -> Listing:
    from huggingface_hub import HfApi

    with _naming(repository):
        info = HfApi(endpoint=endpoint).dataset_info(
            repository, revision=revision, files_metadata=True
        )
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    licences = [
        tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")
    ]
    licence = ", ".join(licences) or "not stated"
    return Listing(repository, info.sha or revision or "main", sizes, licence)


def _download(listing: Listing, home: Path, needed: Sequence[str], endpoint: str | None) -> None:
    from huggingface_hub import snapshot_download

    with _naming(listing.repository):
        snapshot_download(
            listing.repository,
            repo_type="dataset",
            revision=listing.revision,
            local_dir=home,
            allow_patterns=[re.sub(r"([*?\[])", r"[\1]", path) for path in needed],
            endpoint=endpoint,
        )


@contextmanager
def _naming(repository: str) -> Iterator[None]:
    """Turn what the hub's client raises into one line that names the data set."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    known = (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled)
    try:
        yield
    except Exception as error:
        of_client = type(error).__module__.startswith("httpx")
        if not of_client and not isinstance(error, known):
            raise
        raise UserError(
            f"{repository}: cannot be fetched: {' '.join(str(error).split()):.200}; if it asks for consent, "
            "run `hf auth login` first; the same command goes on"
        ) from error


# --------------------------------------------------------------------------------------------------
# From a folder of downloads.


def _list_folder(repository: str, folder: Path) -> Listing:
    if not folder.is_dir():
        raise UserError(f"{folder}: expected the address of a mirror, or a folder of downloads")
    sizes = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }
    return Listing(repository, f"a folder of downloads, {folder.absolute()}", sizes)


def _copy(folder: Path, home: Path, needed: Sequence[str]) -> None:
    for path in needed:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        if not _is_there(home / path, (folder / path).stat().st_size):
            shutil.copyfile(folder / path, home / path)


# --------------------------------------------------------------------------------------------------
# Archives, whole or in parts that belong behind each other.


def _archives(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the archives among the paths, each with its parts in order: itself, if it is whole."""
    archives: dict[str, list[str]] = {}
    for path in sorted(paths):
        match = _PART.fullmatch(path)
        if path.endswith(_ARCHIVES) or match:
            archives.setdefault(path if match is None else match["whole"], []).append(path)
    return archives


def _unpack(home: Path, whole: str, parts: Sequence[str], into: Path) -> None:
    """Unpack an archive of the folder `home`; files that are there already, in full length, stay."""
    with ExitStack() as stack:
        path = home / whole
        if [whole] != [*parts]:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=home))) / "whole"
            with path.open("wb") as joined:
                for part in parts:
                    with (home / part).open("rb") as piece:
                        shutil.copyfileobj(piece, joined)
        try:
            opened = _zipped if whole.endswith(".zip") else _tarred
            for inside, size, file in opened(path):
                _check_inside([inside], whole)
                if not _is_there(into / inside, size):
                    _check_room(home, size)
                    files.write_whole(into / inside, functools.partial(_copy_to, file))
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
            raise UserError(
                f"{home / whole}: cannot be unpacked: {error}; delete it and fetch again"
            ) from error


def _zipped(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield the plain files of a zip: path, size and content."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if not member.is_dir() and kind in (0, stat.S_IFREG):
                with archive.open(member) as file:
                    yield member.filename, member.file_size, file


def _tarred(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield the plain files of a tar: path, size and content."""
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                yield member.name.removeprefix("./"), member.size, file


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _copy_to(file: IO[bytes], path: Path) -> None:
    file.seek(0)  # a write that fails may be tried again
    with path.open("wb") as target:
        shutil.copyfileobj(file, target)
