"""The loss of a rank is told with the name of the rank, also where each rank has a launcher of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runs import ROOT

pytestmark = pytest.mark.slow

RANK = """
import os
import signal

from vlmrl.errors import LostRank
from vlmrl.assemble.lifecycle import naming_lost_ranks
from vlmrl.system import distributed

with distributed.session(60):
    try:
        with naming_lost_ranks():
            distributed.barrier()
            if distributed.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            distributed.barrier()
    except LostRank as error:
        print(error, flush=True)
        os._exit(1)
"""


def test_ranks_of_one_machine_know_each_other_whoever_started_them(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    ranks = [
        subprocess.Popen(
            # A shell for each: as under Ray, the ranks have different parents.
            ["sh", "-c", f"{sys.executable} {script}; true"],
            env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert said[0].startswith("rank 1 (process "), said
    assert "ended while rank 0 waited for it" in said[0]
