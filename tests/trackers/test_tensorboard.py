"""TensorBoard on a full disk: an error of `log`, and no traceback of its thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from helpers.disk import largest_file
from vlmrl.parts.trackers.tensorboard import Tensorboard
from vlmrl.runs.tracker import TrackedRun

pytest.importorskip("tensorboard")


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker, hook = Tensorboard(), threading.excepthook
    tracker.start(TrackedRun("run", tmp_path, {}))
    with largest_file(1000):
        deadline, step = time.monotonic() + 30, 0
        with pytest.raises(OSError, match="File too large"):
            while time.monotonic() < deadline:
                step += 1
                tracker.log("rl", step, {f"metric/{i}": float(i) for i in range(100)})
        with pytest.raises(OSError, match="File too large"):
            tracker.close()
    assert threading.excepthook is hook
    assert capfd.readouterr().err == ""
