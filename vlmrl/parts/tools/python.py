"""Python that the policy writes, run in isolation or not at all."""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar

import psutil

from vlmrl.errors import MediaError, UserError
from vlmrl.interaction.tool import Part, Refused, Tool, View
from vlmrl.media.image import decode_image
from vlmrl.parts.tools.sandboxed_run import READY
from vlmrl.schema import Space

INSIDE = Path(__file__).with_name("sandboxed_run.py")
USED = re.compile(r"image_([1-9][0-9]*)\.png")
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
"""What a sandbox shows of the machine, besides the Python that runs."""
MAX_BYTES = 48 * 2**20
"""Bytes that a program may give back, and of the largest file that it may write."""
MAX_CHARS, MAX_IMAGES, MAX_PROCESSES = 100_000, 8, 64
NO_MORE_PROCESSES = 256
"""Processes of all programs together that the system starts; the watch ends a program long before."""
NOBODY = 65534
"""Who runs a program where the trainer is root, whom no limit of processes binds."""
LOOK_S = 0.1
"""Seconds between two looks at what a program takes."""


@dataclass(frozen=True)
class Python(Tool):
    """Run a Python program. What it prints comes back, and so do PNG files and matplotlib figures.

    The images of the conversation are files: image_1.png is the first. The program has no network, sees
    neither data nor home folders, and nothing of it stays. Where it cannot be isolated the run is
    refused; there is no way to run it without.

    Raises:
        UserError: `isolation` does not work on this machine.
    """

    owns_time: ClassVar[bool] = True
    pure: ClassVar[bool] = False
    waits: ClassVar[bool] = True

    isolation: str
    """`bwrap`, if bubblewrap is installed; or a command whose Python reads its program from standard
    input: `docker run -i --rm --network=none --read-only --tmpfs=/tmp --memory=1g python:3.12 timeout 20
    python -`."""
    timeout_s: float = 20.0
    """Seconds that a program may take."""
    memory_mb: int = 1024
    """MiB that it may take, all its processes together; of a container its own command says that."""

    @property
    def time_limit_s(self) -> float:
        """Return the seconds after which a call that does not end by itself is ended."""
        return self.timeout_s + 10

    def schemas(self, space: Space = "norm1") -> list[dict[str, Any]]:
        """Try whether programs can be isolated, and return the function."""
        _check(self)
        return super().schemas(space)

    def __call__(
        self, view: View, code: Annotated[str, "the whole program; print what you want to see"]
    ) -> list[Part]:
        """Return what the program printed and drew."""
        images = {f"image_{n}.png": _png(view, n) for n in _used(code, view.num_images)}
        result = _run(self, code, images)
        parts: list[Part] = [result["text"].strip()] if result["text"].strip() else []
        for data in result["images"]:
            try:
                parts.append(decode_image(io.BytesIO(base64.b64decode(data)), "an image"))
            except (MediaError, ValueError) as error:
                raise Refused(f"the program made an image that cannot be shown: {error}") from error
        return parts or ["The program printed nothing."]


def _used(code: str, count: int) -> list[int]:
    """Return the numbers of the images that a program may read: those it spells out, else all `count`."""
    spelled = {int(number) for number in USED.findall(code)}
    puts_together = any(word in USED.sub("", code) for word in ("image_", ".png"))
    return [n for n in range(1, count + 1) if puts_together or n in spelled]


def _png(view: View, number: int) -> str:
    stream = io.BytesIO()
    view.image(number).save(stream, "PNG", compress_level=1)
    return base64.b64encode(stream.getvalue()).decode()


@functools.cache
def _check(tool: Python) -> None:
    """Refuse to start where programs cannot be isolated."""
    way = "install bubblewrap, or let `isolation` be the command of a container"
    command = shlex.split(tool.isolation)
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else "an empty command"
        raise UserError(f"python: isolation: {name} is not installed here, so nothing runs: {way}")
    try:
        text = _run(tool, "print(6 * 7)", {})["text"].strip()
    except (RuntimeError, Refused) as error:
        raise UserError(f"python: isolation: it does not work here: {error}; {way}") from error
    if text != "42":
        raise UserError(
            f"python: isolation: expected 42 of a first program, got {text!r:.60}; {way}"
        )


def _run(tool: Python, code: str, images: dict[str, str]) -> dict[str, Any]:
    """Run a program in the sandbox and return its `text` and `images`, as base64.

    Raises:
        Refused: the program took too much, or ended itself.
        RuntimeError: the sandbox did not start, which is a fault.
    """
    limits = {"memory": tool.memory_mb * 2**20, "file": MAX_BYTES, "chars": MAX_CHARS}
    user = NOBODY if tool.isolation == "bwrap" and os.geteuid() == 0 else None
    limits |= {"processes": NO_MORE_PROCESSES, "parts": MAX_IMAGES}
    task = {"code": code, "images": images, "user": user, **limits}
    program = f"{INSIDE.read_text(encoding='utf-8')}\nmain(json.loads({json.dumps(task)!r}))\n"
    command = _bwrap() if tool.isolation == "bwrap" else shlex.split(tool.isolation)
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(program.encode("utf-8", "replace"))
        stdin.seek(0)
        code_of_exit = _wait(tool, command, (stdin, stdout, stderr))
        stdout.seek(0)
        output = stdout.read(MAX_BYTES + 1)
        stderr.seek(0)
        error = " ".join(stderr.read(2000).decode("utf-8", "replace").split())[-200:]
    if not output.startswith(READY):
        raise RuntimeError(f"the sandbox ended with {code_of_exit}: {error or 'it says nothing'}")
    try:
        result = json.loads(output[len(READY) :])
        return {"text": str(result["text"]), "images": [str(data) for data in result["images"]]}
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise Refused(f"the program ended itself, with exit code {code_of_exit}") from wrong


def _bwrap() -> list[str]:
    """Return the command of a sandbox: own namespaces, no network, read-only system, empty rest."""
    command = ["bwrap", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if os.geteuid() == 0:  # without a user namespace, so that it can become somebody else
        command += [f"--unshare-{what}" for what in ("ipc", "pid", "net", "uts", "cgroup-try")]
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command.append("--unshare-all")
    command += ["--proc", "/proc", "--dev", "/dev"]
    command += ["--perms", "1777", "--size", str(256 * 2**20), "--tmpfs", "/tmp"]
    for path in SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind-try", path, path]
    executable = os.path.realpath(sys.executable)
    for home in dict.fromkeys((sys.base_prefix, sys.prefix, str(Path(executable).parents[1]))):
        if not Path(home).is_relative_to("/usr"):
            for parent in [*Path(home).parents][-2::-1]:  # else only root could pass them
                command += ["--perms", "0755", "--dir", str(parent)]
            command += ["--ro-bind", home, home]
    for key, value in {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}.items():
        command += ["--setenv", key, value]
    return [*command, "--chdir", "/tmp", sys.executable, "-I", "-"]


def _wait(tool: Python, command: Sequence[str], files: tuple[BinaryIO, ...]) -> int:
    """Run the command until it ends, and end it when it takes too much.

    Raises:
        Refused: it took too much time, memory, or too many processes.
    """
    stdin, stdout, stderr = files
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )
    try:
        while True:
            try:
                return process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() - began > tool.timeout_s:
                raise Refused(f"the program took more than {tool.timeout_s:g} seconds")
            memory, count = _usage(process.pid)
            if memory > tool.memory_mb * 2**20:
                raise Refused(f"the program took more than {tool.memory_mb} MiB of memory")
            if count > MAX_PROCESSES:
                raise Refused(f"the program started more than {MAX_PROCESSES} processes")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _usage(pid: int) -> tuple[int, int]:
    """Return the bytes that a process and those below it take, and how many they are."""
    memory, count = 0, 0
    try:
        for child in psutil.Process(pid).children(recursive=True):
            memory, count = memory + child.memory_info().rss, count + 1
    except psutil.NoSuchProcess:  # it ended between two looks
        pass
    return memory, count
