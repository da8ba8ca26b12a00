"""Programs of the policy: what comes back, what they cannot reach, and that nothing runs unisolated."""

from __future__ import annotations

import shutil
import sys

import pytest
from PIL import Image

from helpers.driving import run_turn
from vlmrl.errors import UserError
from vlmrl.interaction.tool import Refused, Shown, View
from vlmrl.interaction.tools import AskedCall, Toolbox
from vlmrl.parts.tools.python import Python

isolated = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
VIEW = View((Shown(Image.new("RGB", (40, 30), (200, 0, 0))),))


def run(code: str, **options: float) -> list:
    return Python("bwrap", **options)(VIEW, code)


# ---------------------------------------------------------------------------- without a sandbox


@pytest.mark.parametrize("command", ["no-such-program run", "", "no-such-program"])
def test_without_isolation_nothing_starts(command: str) -> None:
    with pytest.raises(UserError, match="is not installed here, so nothing runs: install") as e:
        Toolbox([Python(command)])
    assert "\n" not in str(e.value)


def test_a_sandbox_that_does_not_work_is_one_line() -> None:
    for command in ("false", "echo 42"):
        with pytest.raises(UserError, match="it does not work here: the sandbox ended with"):
            Python(command).schemas()


def test_a_sandbox_that_ends_later_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="the sandbox ended with 1: it says nothing"):
        Python("false")(VIEW, "print(1)")


def test_a_command_gets_the_program_by_standard_input() -> None:
    """The command of a container; here one that does not isolate, with a program of ours."""
    tool = Python(f"{sys.executable} -I -")
    (schema,) = tool.schemas()
    assert [*schema["function"]["parameters"]["properties"]] == ["code"]
    assert tool(VIEW, "print('é', 6 * 7)") == ["é 42"]
    with pytest.raises(Refused, match="the program ended itself, with exit code 3"):
        tool(VIEW, "import os; os._exit(3)")
    with pytest.raises(Refused, match="more than 1 seconds"):
        Python(f"{sys.executable} -I -", timeout_s=1.0)(VIEW, "while True: pass")


def test_a_program_may_put_the_names_of_images_together() -> None:
    tool, two = Python(f"{sys.executable} -I -"), View(VIEW.shown * 2)
    for name in ("f'image_{n}.png'", "'image_%d.png' % n", "'image_' + str(n) + '.png'"):
        said = tool(two, f"for n in (1, 2): print(len(open({name}, 'rb').read()) > 60)")
        assert said == ["True\nTrue"]
    look = "import glob; print(*sorted(glob.glob('*.png')))"
    assert tool(two, look) == ["image_1.png image_2.png"]
    look = look.replace(".png", "")
    assert tool(two, look + "; open('image_2.png')") == ["image_2.png program.py"]


# ------------------------------------------------------------------------------- with a sandbox


@isolated
def test_text_errors_and_images_come_back() -> None:
    assert run("print(6 * 7)") == ["42"]
    assert run("x = 1") == ["The program printed nothing."]
    (text,) = run("x = 1\n1 / 0")
    assert text.startswith("Traceback") and "line 2" in text and text.endswith("by zero")
    text, image = run(
        "from PIL import Image\nim = Image.open('image_1.png')\nprint(im.size)\n"
        "im.rotate(90, expand=True).save('turned.png')"
    )
    assert text == "(40, 30)" and image.size == (30, 40)
    assert image.getpixel((5, 5)) == (200, 0, 0)


@isolated
@pytest.mark.slow
def test_open_figures_come_back() -> None:
    code = (
        "import matplotlib.pyplot as p\np.figure(figsize=(2, 1), dpi=50)\np.plot([1, 2])\np.show()"
    )
    *_, image = run(code, timeout_s=60)
    assert image.size == (100, 50)


FORBIDDEN = {
    "import socket; socket.create_connection(('1.1.1.1', 80), 2)": "unreachable",
    "open('/usr/x', 'w')": "Read-only file system",
    "open('image_2.png')": "No such file",
    f"open({__file__!r})": "No such file",
    "import os; print([*os.environ])": "PATH",
    "bytearray(3 * 2**30)": "MemoryError",
    "import os, resource as r; r.setrlimit(r.RLIMIT_NPROC, (1, 1)); os.fork()": "unavailable",
    "import os; print(os.getuid()); os.setuid(0)": "not permitted",
}


@isolated
@pytest.mark.parametrize("code", FORBIDDEN)
def test_a_program_reaches_nothing(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (text,) = run(code)
    assert FORBIDDEN[code] in text and "OPENAI_API_KEY" not in text


TOO_MUCH = {
    "while True: pass": "more than 3 seconds",
    # Never an endless fork here: it froze a whole machine before the watch could end it.
    "import os, time\nfor _ in range(7): os.fork()\ntime.sleep(9)": "more than",
    "import os; os.kill(os.getpid(), 11)": "ended itself, with exit code",
    "import os; [os.close(n) for n in range(3, 20)]": "ended itself",
    "open('x.png', 'wb').write(b'none')": "cannot be shown",
    "open('x', 'wb').write(bytes(2**27))": "",
}  # fmt: skip


@isolated
@pytest.mark.parametrize("code", TOO_MUCH)
def test_what_a_program_does_wrong_is_told_to_the_policy(code: str) -> None:
    if not TOO_MUCH[code]:
        assert "File too large" in run(code)[0]
        return
    with pytest.raises(Refused, match=TOO_MUCH[code]):
        run(code, timeout_s=3)


@isolated
def test_it_runs_in_a_worker() -> None:
    with Toolbox([Python("bwrap")]) as toolbox:
        outcome = run_turn(toolbox, [AskedCall("python", {"code": "print(6 * 7)"})], VIEW)
    assert outcome.calls[0].outcome == "ok", outcome.fault
    assert outcome.parts == ("42",)
