"""Two ranks of which one is killed at random moments end, say so, and go on to the same bytes."""

from __future__ import annotations

import os
import re

import pytest
from filelock import FileLock

from helpers import rank_kills
from helpers.runs import final_values, metric_lines, rows, torchrun

KILLS = max(1, int(os.environ.get("VLMRL_KILLS", "12")) // len(rank_kills.KINDS))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", rank_kills.KINDS)
def test_two_ranks_killed_at_random_moments_end_with_the_same_bytes(kind, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert rank_kills.run(whole, kind, kills=0) == []
    hits = rank_kills.run(folder, kind, KILLS, seed=list(rank_kills.KINDS).index(kind))
    assert len(hits) == KILLS
    for hit in hits:  # a rank that was still starting is ended by the launcher, and says nothing
        who = f"rank {hit['rank']} (process {hit['pid']}) ended while rank {1 - hit['rank']} waited"
        assert not hit["said"] or hit["said"].startswith(who)
    for found in (folder, folder.with_name("run.done")):
        if found.exists():
            assert metric_lines(found) == metric_lines(whole)
            assert rows(found) == rows(whole)
            assert final_values(found) == final_values(whole)


DIES = '''
import os
import signal

from vlmrl.parts.algorithms.grpo import Grpo


class Dies(Grpo):
    """GRPO of which one rank is killed."""

    def advantages(self, rewards, rollouts, progress):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return Grpo.advantages(self, rewards, rollouts, progress)
'''


@pytest.mark.slow
def test_the_line_of_the_rank_that_is_left_names_the_one_that_was_killed(tmp_path):
    (tmp_path / "dies.py").write_text(DIES)
    folder = tmp_path / "run"
    more = [*rank_kills.TINY, *rank_kills.PLAIN, f"algorithm={tmp_path / 'dies.py'}:Dies"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={folder}", *more)
    assert done.returncode != 0
    (line,) = re.findall("failed: LostRank: (.*)", done.stderr)
    assert re.match(r"rank 1 \(process \d+\) ended while rank 0 waited for it", line)
    assert "Connection closed by peer" not in done.stderr
    FileLock(tmp_path / ".run.lock", timeout=0).acquire().lock.release()  # nobody holds it
