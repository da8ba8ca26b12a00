"""What runs inside the sandbox of the tool `python`: plain Python of any version, without vlmrl.

It gets a program with the images that it reads, as JSON, and writes what the program printed and the
images that it made, as JSON. A line before says that the sandbox works.
"""

from __future__ import annotations

import base64
import io
import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any

READY = b"vlmrl ready\n"
PROGRAM = "program.py"


def main(given: dict[str, Any]) -> None:
    """Run a program; `given` has its `code`, its `images` by name, and the limits."""
    out = os.fdopen(os.dup(1), "wb")
    _limit(given)
    out.write(READY)
    out.flush()
    os.chdir(tempfile.mkdtemp())
    for name, data in given["images"].items():
        with open(name, "wb") as file:
            file.write(base64.b64decode(data))
    with open(PROGRAM, "w", encoding="utf-8", errors="replace") as file:
        file.write(given["code"])
    for key, value in {
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": os.getcwd(),
        "HOME": os.getcwd(),
    }.items():
        os.environ[key] = value
    before = {*os.listdir(".")}
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            runpy.run_path(PROGRAM, run_name="__main__")
        except SystemExit:
            pass
        except BaseException as error:
            print(_explain(error))
        images = _saved(before) or _drawn()
        sys.stdout.flush()
        output.seek(0)
        text = output.read(given["chars"]).decode("utf-8", "replace")
    out.write(json.dumps({"text": text, "images": images[: given["parts"]]}).encode())
    out.flush()


def _limit(given: dict[str, Any]) -> None:
    """Limit memory, files and processes; root, whom the last does not bind, becomes somebody else."""
    try:
        import resource
    except ImportError:
        return
    kinds = {"memory": resource.RLIMIT_DATA, "file": resource.RLIMIT_FSIZE}
    kinds["processes"] = resource.RLIMIT_NPROC
    for name, kind in kinds.items():
        hard = resource.getrlimit(kind)[1]
        least = given[name] if hard == resource.RLIM_INFINITY else min(given[name], hard)
        resource.setrlimit(kind, (least, least))
    if given["user"] is not None:
        os.setgroups([])
        os.setgid(given["user"])
        os.setuid(given["user"])


def _explain(error: BaseException) -> str:
    """Return the traceback from the program's own lines on."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != PROGRAM:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).strip()


def _saved(before: set[str]) -> list[str]:
    """Return the image files that the program left in its folder."""
    images = []
    for name in sorted({*os.listdir(".")} - before):
        if name.lower().endswith((".png", ".jpg", ".jpeg")):
            with open(name, "rb") as file:
                images.append(base64.b64encode(file.read()).decode())
    return images


def _drawn() -> list[str]:
    """Return the figures of matplotlib that are still open."""
    plot: Any = sys.modules.get("matplotlib.pyplot")
    images = []
    for number in plot.get_fignums() if plot else ():
        data = io.BytesIO()
        plot.figure(number).savefig(data, format="png")
        images.append(base64.b64encode(data.getvalue()).decode())
    return images
