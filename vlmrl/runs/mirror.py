"""A mirror: finished checkpoints, and the other files of their run, in any store that fsspec knows.

    step-40.0007/checkpoints/step-40/...    a copy of a checkpoint
    run.0006/metrics.jsonl ...              a copy of the run folder without its checkpoints and exports
    step-40.0007.json                       the manifest of a copy: bytes and SHA-256 of each file

Each copy is whole, has objects of its own, and gets its manifest last: without one it does not exist, so a
process that is killed at any moment spoils nothing. Nothing keeps two machines from writing one mirror: each
would delete what the other has not finished, and the manifests would tell which copies are damaged by it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from vlmrl.config import Config
from vlmrl.config.sections.run import without_secrets
from vlmrl.errors import FULL_DISK, UserError
from vlmrl.runs import run_folder
from vlmrl.runs.run_lock import Superseded, this_process
from vlmrl.system import distributed
from vlmrl.system.files import NAME as CHECKSUMS
from vlmrl.system.files import (
    Stated,
    describe,
    describe_free,
    free_bytes,
    leads_outside,
    require_may_write,
    writing,
)

TRIES = 3
"""Rounds at the end of a run after which a store that fails is given up."""
AGAIN_S = 10.0
"""Seconds between two of them, and between two lines while the end of the run waits."""
FOLDERS = ("file", "local", "ftp", "sftp", "ssh", "smb", "hdfs", "webhdfs")
"""Protocols whose folders must exist before there are files in them."""
REST = "run"
"""Name of the copies of what is no checkpoint."""
COPY = re.compile(r"(run|(?:step|sft)-\d+)\.(\d+)")

Manifest = dict[str, Stated]
"""What a copy consists of, by path in the run folder."""


class StoreFailed(UserError):
    """The store could not be reached, is full, or refused."""


class DamagedCopy(Exception):
    """A manifest, or an object that it names, is not what was written."""


class Store:
    """The objects below a URL, by their names; what fails is one line without credentials.

    All methods raise StoreFailed, and those that read `DamagedCopy` where an object is missing.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url, protocol = url, url.partition("://")[0]
        try:
            files, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ValueError as error:
            raise UserError(f"run.mirror: {url}: fsspec does not know {protocol}://") from error
        except ImportError as error:
            name = getattr(error.__cause__, "name", None) or protocol
            raise UserError(
                f"run.mirror: {url}: the package {name!r} is not installed: pip install {name}"
            ) from error
        self._files, self._root, self._makes_folders = files, root.rstrip("/"), protocol in FOLDERS

    def names(self) -> list[str]:
        """Return the names directly below the URL, of objects and folders."""
        with self._doing("", "listed"):
            self._files.invalidate_cache()
            try:
                paths = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]

    def write(self, name: str, source: BinaryIO) -> Stated:
        """Write an object, and return what was read of `source`, which may grow meanwhile."""
        digest, size, path = sha256(), 0, f"{self._root}/{name}"
        with self._doing(name, "written"):
            if self._makes_folders:
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._files.open(path, "wb") as target:
                while block := source.read(2**22):
                    target.write(block)
                    digest.update(block)
                    size += len(block)
            if (there := self._files.info(path)["size"]) != size:
                raise OSError(f"expected {size} bytes, got {there}")
        return {"bytes": size, "sha256": digest.hexdigest()}

    def write_json(self, name: str, tree: object) -> None:
        """Write an object with JSON text, whole or not at all."""
        working = f"{name}.part" if self._makes_folders else name  # object stores show no half
        self.write(working, io.BytesIO(json.dumps(tree, indent=1).encode()))
        if working != name:
            with self._doing(name, "written"):
                self._files.mv(f"{self._root}/{working}", f"{self._root}/{name}")

    def read(self, name: str) -> bytes:
        """Return an object."""
        with self._doing(name, "read"):
            return bytes(self._files.cat_file(f"{self._root}/{name}"))

    def download(self, name: str, path: Path) -> None:
        """Write an object to a file."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        with self._doing(name, "read"):
            try:
                self._files.get_file(f"{self._root}/{name}", str(path))
            except OSError as error:
                if error.errno not in FULL_DISK:
                    raise
                with writing(path):  # the store can be read: it is this disk that is full
                    raise

    def delete(self, name: str) -> None:
        """Delete an object or a folder; one that is not there is no mistake."""
        with self._doing(name, "deleted"), contextlib.suppress(FileNotFoundError):
            self._files.rm(f"{self._root}/{name}", recursive=True)

    @contextmanager
    def _doing(self, name: str, what: str) -> Iterator[None]:
        """Turn what the store raises, for which there is no common class, into one line."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if what == "read" and isinstance(error, FileNotFoundError):
                raise DamagedCopy(f"{self.url}/{name} is missing") from error
            reason = str(without_secrets(" ".join(str(error).split()) or type(error).__name__))
            raise StoreFailed(f"{self.url}/{name}: cannot be {what}: {reason[:300]}") from error


class Mirror:
    """The mirror of a run folder: a thread copies to it beside training, and a run goes on from it.

    Training never waits for a copy, and a store that fails never ends it: each failure is told, the next
    checkpoint tries again, and so does the end of the run.
    """

    def __init__(self, url: str, folder: Path, keep: int, tell: Callable[[str], None]) -> None:
        self._store, self._folder, self._keep, self._tell = Store(url), folder, keep, tell
        self.ended = False
        self._best: int | None = None
        self._copied: set[str] = set()
        self._copying: str | None = None
        self._failure: Exception | None = None
        self._wanted = self._done = 0
        self._change = threading.Condition()

    def begin(self) -> None:
        """Begin to copy; a store that cannot be written raises here (StoreFailed)."""
        self._store.write_json("writer.json", asdict(this_process()))
        threading.Thread(target=self._work, daemon=True).start()

    def newest(self) -> str | None:
        """Return the name of the furthest checkpoint in the store; None if there is none."""
        names = [copy.partition(".")[0] for copy in self._complete()]
        return names[-1] if names and names[-1] != REST else None

    @property
    def begun(self) -> bool:
        """Return whether this process had anything to copy."""
        return self._wanted > 0

    def follow(self, best: int | None) -> None:
        """Take note that a checkpoint is whole; it is copied when the one under way is. `best` is a step."""
        with self._change:
            self._best = best
            self._wanted += 1
            self._change.notify_all()

    @contextmanager
    def sparing(self) -> Iterator[str | None]:
        """Yield the name of the checkpoint that is being copied; inside, no other copy begins."""
        with self._change:
            yield self._copying

    def finish(self) -> bool:
        """Copy the newest checkpoint and what the run has written since, and wait for it; Ctrl-C gives up.

        Returns whether anything was to be copied.

        Raises:
            UserError: it is not there; the line has the last failure.
        """
        self.ended = True
        if not self.begun and self.newest() == _newest_in(self._folder):
            return False
        for again in range(TRIES):
            time.sleep(AGAIN_S if again else 0.0)
            self.follow(self._best)
            try:
                self._wait()
            except KeyboardInterrupt:
                self._tell(
                    f"mirror: given up; {self._copying or 'the end of the run'} is not there"
                )
                raise
            if self._failure is None:
                self._tell(f"the run is in its mirror, {self._store.url}")
                return True
        there = max(self._copied, key=run_folder.checkpoint_order, default="none")
        raise UserError(
            f"run.mirror: the run in {self._folder} is not copied to its end (newest there by this process: "
            f"{there}): {_words(self._failure)}; the same command with resume=auto copies the rest"
        ) from self._failure

    def _wait(self) -> None:
        with self._change:
            while self._done < self._wanted:
                if not self._change.wait(AGAIN_S):
                    self._tell(f"mirror: copying {self._copying or 'the run'} (Ctrl-C gives up)")

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._done < self._wanted)
                wanted = self._wanted
            failure = None
            try:
                self._copy_missing()
            except Exception as error:
                failure = error
                then = "trying again" if self.ended else "the next checkpoint tries again"
                what = self._copying or "the run"
                self._tell(f"mirror: copying {what} failed: {_words(error)}; {then}")
            with self._change:
                self._copying, self._failure, self._done = None, failure, wanted
                self._change.notify_all()

    def _copy_missing(self) -> None:
        """Copy what is no checkpoint, the newest checkpoint, and the best; then delete what is to go."""
        self._copy(REST, _other_files(self._folder))
        for best in (False, True):
            with self._change:
                name = f"step-{self._best}" if best else _newest_in(self._folder)
                home = self._folder / "checkpoints" / str(name)
                if name is None or name in self._copied or not home.is_dir():
                    continue
                self._copying = name
            stated = json.loads((home / "trainer" / CHECKSUMS).read_bytes())
            expected = {f"checkpoints/{name}/{path}": file for path, file in stated.items()}
            self._copy(name, [path for path in home.rglob("*") if path.is_file()], expected)
            self._copied.add(name)
        self._prune()

    def _copy(self, name: str, files: list[Path], expected: Manifest | None = None) -> None:
        numbers = [int(match[2]) for match in map(COPY.match, self._store.names()) if match]
        copy = f"{name}.{max(numbers, default=0) + 1:04}"
        try:
            self._write_copy(copy, files, expected or {})
        except UserError:  # half a copy counts for nothing, and takes the room of the next one
            for left in (copy, f"{copy}.json.part"):
                with contextlib.suppress(StoreFailed):
                    self._store.delete(left)
            raise

    def _write_copy(self, copy: str, files: list[Path], expected: Manifest) -> None:
        manifest: Manifest = {}
        for path in sorted(files):
            require_may_write()
            inner = path.relative_to(self._folder).as_posix()
            with contextlib.suppress(FileNotFoundError), path.open("rb") as source:
                manifest[inner] = self._store.write(f"{copy}/{inner}", source)
        for inner, stated in expected.items():
            if manifest.get(inner) != stated:
                raise UserError(f"{self._folder / inner} was changed after it was written")
        require_may_write()
        self._store.write_json(f"{copy}.json", manifest)

    def _prune(self) -> None:
        """Delete checkpoints that a run folder would not keep, and replaced or unfinished copies."""
        newest: dict[str, str] = {}
        for copy in self._complete():
            with contextlib.suppress(DamagedCopy):  # it counts for nothing, and goes
                self._manifest(copy)
                newest[copy.partition(".")[0]] = copy
        kept = run_folder.kept_checkpoints(newest.keys() - {REST}, self._keep, self._best)
        spared = {newest[name] for name in newest.keys() & {REST, *kept}}
        require_may_write()
        for name in sorted(self._store.names(), reverse=True):  # a manifest before its objects
            match = COPY.match(name)
            if match and match[0] not in spared:
                self._store.delete(name)

    # ----------------------------------------------------------------------------------- going on

    def restore(self, local: Path | None) -> Path | None:
        """Return the checkpoint to go on from: `local`, or the store's newest whole one if that is further.

        That is downloaded into the run folder with the run's other files, which replace those of the same
        name. A damaged one is told of, and the next older one taken.

        Raises:
            UserError: the disk is too small or cannot be written, or all checkpoints of the mirror are
                damaged and there is no local one.
            StoreFailed: the store could not be read.
        """
        damage, working, order = "", self._folder / ".mirror.part", run_folder.checkpoint_order
        for copy in reversed(self._complete()):
            name = copy.partition(".")[0]
            if name == REST or (local is not None and order(name) <= order(local.name)):
                break
            try:
                paths = [*self._download(copy, working), *self._download_rest(working)]
                path = _move(working, self._folder, paths, name)
            except DamagedCopy as error:
                damage = str(error)
                self._pass_over(name, error)
            else:
                self._tell(f"going on from {name} of the mirror {self._store.url}")
                return path
            finally:
                shutil.rmtree(working, ignore_errors=True)
        if damage and local is None:
            raise UserError(
                f"run.mirror: {self._store.url}: all checkpoints are damaged (last: {damage}); delete it, "
                "or choose another run.name, to start anew"
            )
        return local

    def _complete(self) -> list[str]:
        """Return the copies that have a manifest: the others first, then checkpoints in their order."""
        names = [
            name.removesuffix(".json") for name in self._store.names() if name.endswith(".json")
        ]
        return sorted(filter(COPY.fullmatch, names), key=_order)

    def _manifest(self, copy: str) -> Manifest:
        try:
            manifest: Manifest = {
                str(path): {"bytes": int(file["bytes"]), "sha256": str(file["sha256"])}
                for path, file in json.loads(self._store.read(f"{copy}.json")).items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCopy(f"{copy}.json cannot be read") from error
        name = copy.partition(".")[0]
        for path in manifest:
            if leads_outside(path):
                raise DamagedCopy(f"{copy}.json names {path!r}, which is outside of the run")
        if not any(path.startswith(f"checkpoints/{name}/") for path in manifest) and name != REST:
            raise DamagedCopy(f"{copy}.json names no file of {name}")
        return manifest

    def _download(self, copy: str, working: Path) -> list[str]:
        manifest = self._manifest(copy)
        size, free = sum(stated["bytes"] for stated in manifest.values()), free_bytes(self._folder)
        if free is not None and free < size:
            raise UserError(
                f"{self._folder}: cannot download {copy} of the mirror: it needs {size / 2**20:.0f} MiB"
                f"{describe_free(self._folder)}"
            )
        for path, stated in manifest.items():
            self._store.download(f"{copy}/{path}", working / path)
            there = describe(working / path)
            if there["bytes"] != stated["bytes"]:
                raise DamagedCopy(
                    f"{copy}/{path} has {there['bytes']} bytes, expected {stated['bytes']}"
                )
            if there != stated:
                raise DamagedCopy(f"{copy}/{path} was changed after it was written")
        return list(manifest)

    def _download_rest(self, working: Path) -> list[str]:
        """Download the newest whole copy of what is no checkpoint; a run goes on without it, too."""
        for copy in reversed([copy for copy in self._complete() if copy.startswith(f"{REST}.")]):
            try:
                return self._download(copy, working)
            except DamagedCopy as error:
                self._pass_over(copy, error)
        return []

    def _pass_over(self, name: str, error: DamagedCopy) -> None:
        self._tell(f"mirror {self._store.url}: {name} is damaged and passed over: {error}")


@contextmanager
def opened(config: Config, tell: Callable[[str], None]) -> Iterator[Mirror | None]:
    """Open the mirror of a run; None if it has none, and on ranks but the main one.

    An error of the run still waits for what is to be copied.

    Raises:
        UserError: its store cannot be used, or it has checkpoints and the config asks for a new run.
    """
    if config.run.mirror is None or not distributed.is_main():
        yield None
        return
    url = f"{config.run.mirror.rstrip('/')}/{config.folder.name}"
    mirror = Mirror(url, config.folder, config.run.keep_checkpoints, tell)
    if config.resume.start == "never" and (newest := mirror.newest()):
        raise UserError(
            f"run.mirror: {url} has a run with {newest}: go on with it (resume=auto), choose another "
            "run.name, or delete it"
        )
    mirror.begin()
    try:
        yield mirror
    except Exception as error:
        if mirror.begun and not mirror.ended and not isinstance(error, Superseded):
            with contextlib.suppress(UserError):  # told already, and the run's own error counts
                mirror.finish()
        raise


def _order(copy: str) -> tuple[bool, int, int]:
    name, _, number = copy.partition(".")
    return (*run_folder.checkpoint_order(name), int(number))


def _newest_in(folder: Path) -> str | None:
    names = (path.name for path in run_folder.checkpoints(folder))
    return max(names, key=run_folder.checkpoint_order, default=None)


def _other_files(folder: Path) -> list[Path]:
    """Return the files of a run folder that belong to no checkpoint, and cannot be made again from one."""
    files: list[Path] = []
    for top, folders, names in os.walk(folder):
        left_out = ("checkpoints", "exports") if Path(top) == folder else ()
        folders[:] = [name for name in folders if name[0] != "." and name not in left_out]
        files += [Path(top, name) for name in names if name[0] != "."]
    return files


def _move(working: Path, folder: Path, paths: list[str], name: str) -> Path:
    """Give verified files their names in the run folder, the checkpoint, which makes it a run, last."""
    require_may_write()
    final = folder / "checkpoints" / name
    with writing(folder):
        for path in paths:
            target = folder / path
            if path.startswith("checkpoints/") or (path.startswith("logs/") and target.exists()):
                continue  # `vlmrl launch` counts its attempts anew, and writes logs of its own by now
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(working / path, target)
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(working / "checkpoints" / name, final)
    return final


def _words(error: Exception | None) -> str:
    return str(error) if isinstance(error, (UserError, Superseded)) else repr(error)
