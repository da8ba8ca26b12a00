"""A folder in an object store, or on any other file system that fsspec knows.

Object stores have whole objects only: none is renamed or appended to, and nothing depends on either. What
goes wrong is one line with neither credentials nor more than the store said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmrl.config.sections.tracking import without_secrets
from vlmrl.errors import UserError

__all__ = ["Missing", "Store", "StoreFailed", "open_store"]

POSIX = ("file", "local", "ftp", "sftp", "ssh", "smb", "hdfs", "webhdfs")
"""Protocols whose folders must exist before there are files in them."""
RENAMES = ("file", "local")
"""Those on which a file that is being written can be seen half, and can be renamed when it is whole."""
MAX_REASON = 300
"""Characters of what a store said that a line shows."""


class StoreFailed(UserError):
    """The store could not be reached, is full, or refused."""


class Missing(UserError):
    """There is no such object."""


class Store:
    """The objects below one URL, by their names relative to it."""

    def __init__(self, url: str, files: Any, root: str) -> None:
        self.url = url
        self._files, self._root = files, root.rstrip("/")
        protocol = url.partition("://")[0]
        self._posix, self._renames = protocol in POSIX, protocol in RENAMES

    def write(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all where the store can do so; object stores can.

        Raises:
            StoreFailed: it could not be written.
        """
        with self._told(name, "written"):
            target = self._prepare(name)
            if not self._renames:
                return self._files.pipe_file(target, data)
            self._files.pipe_file(f"{target}.part", data)
            self._files.mv(f"{target}.part", target)

    def put(self, path: Path, name: str, moved: Callable[[int], None]) -> None:
        """Write a file as an object; `moved` is told how many of its bytes are there so far.

        Raises:
            StoreFailed: it could not be written, or the store has another size.
        """
        from fsspec.callbacks import Callback

        hook = Callback(hooks={"moved": lambda size, value, **_: moved(value)})
        with self._told(name, "written"):
            target = self._prepare(name)
            self._files.put_file(str(path), target, callback=hook)
            size, expected = self._files.info(target)["size"], path.stat().st_size
        if size != expected:
            raise StoreFailed(f"{self.url}/{name}: expected {expected} bytes, got {size}")

    def read(self, name: str) -> bytes:
        """Return an object.

        Raises:
            Missing: there is none.
            StoreFailed: it could not be read.
        """
        with self._told(name, "read"):
            data = self._files.cat_file(self._path(name))
        assert isinstance(data, bytes)
        return data

    def get(self, name: str, path: Path) -> None:
        """Write an object to a file.

        Raises:
            Missing, StoreFailed: as `read`.
            OSError: the file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with self._told(name, "read"):
            self._files.get_file(self._path(name), str(path))

    def children(self, name: str = "") -> list[str]:
        """Return the names directly below `name`, folders and objects; none if nothing is there.

        Raises:
            StoreFailed: the store cannot be listed.
        """
        with self._told(name, "listed"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(name), detail=False)
            except FileNotFoundError:
                return []
        return sorted({str(path).rstrip("/").rsplit("/", 1)[-1] for path in found})

    def objects(self, name: str) -> list[str]:
        """Return the names, relative to the store, of all objects below `name`.

        Raises:
            StoreFailed: the store cannot be listed.
        """
        with self._told(name, "listed"):
            self._files.invalidate_cache()
            found = self._files.find(self._path(name))
        return [str(path)[len(self._root) + 1 :] for path in found]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; one that is not there is no mistake.

        Raises:
            StoreFailed: one could not be deleted.
        """
        for name in names:
            with self._told(name, "deleted"):
                try:
                    self._files.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _prepare(self, name: str) -> str:
        path = self._path(name)
        if self._posix:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        return path

    @contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        """Turn what the store raises, for which there is no common class, into one line."""
        try:
            yield
        except FileNotFoundError as error:
            if what == "read":
                raise Missing(f"{self.url}/{name} is missing") from error
            raise StoreFailed(f"{self.url}/{name}: cannot be {what}: {_reason(error)}") from error
        except Exception as error:
            raise StoreFailed(f"{self.url}/{name}: cannot be {what}: {_reason(error)}") from error


def open_store(url: str) -> Store:
    """Return the store below a URL; nothing is written or asked yet.

    Raises:
        UserError: fsspec does not know the protocol, or the package for it is not installed.
    """
    from fsspec.core import url_to_fs

    protocol = url.partition("://")[0]
    try:
        files, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ValueError as error:
        raise UserError(f"run.mirror: {url}: fsspec does not know {protocol}://") from error
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or protocol
        raise UserError(
            f"run.mirror: {url}: the package {missing!r} is not installed: pip install {missing}"
        ) from error
    return Store(url, files, root)


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return str(without_secrets(said))[:MAX_REASON]
