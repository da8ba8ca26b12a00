"""Memory that is freed is kept for the next step if asked for: pages are not faulted in again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
import numpy as np
from vlmrl.system.processes import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.zeros(2**22, np.uint8) for _ in range(16)]
    for block in blocks:
        block.fill(1)
    del blocks, block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_freed_memory()
print([faults() for _ in range(4)][-1])
"""
PAGES = 2**26 // 4096
"""Of the blocks of a round."""


def faults_of_a_later_round(way: str) -> int:
    run = [sys.executable, "-c", ROUNDS, way]
    return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
def test_memory_that_is_freed_is_used_again_without_page_faults() -> None:
    assert faults_of_a_later_round("return") > PAGES // 4
    assert faults_of_a_later_round("keep") < PAGES // 50
