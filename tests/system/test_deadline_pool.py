"""The pool of worker processes: deadlines, memory limits, and no worker left behind."""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Frame, Parsed, Sample, Truth
from vlmrl.scoring import calls, reward_components
from vlmrl.scoring.reward_components import resolve
from vlmrl.scoring.scorer import Judged, Scorer
from vlmrl.system import deadline_pool
from vlmrl.system.deadline_pool import CallFailed, DeadlinePool, result, was_killed

HOSTILE = """
import ctypes, os, sys, time

def judge(answer):
    if answer == "hang":
        while True:
            pass
    if answer == "tower":
        return 9 ** (9 ** (9 ** 9))
    if answer == "crash":
        ctypes.string_at(0)
    if answer == "exit":
        sys.exit(1)
    if answer == "quit":
        os._exit(1)
    return float(answer)
"""


def double(x: int) -> int:
    return 2 * x


def hang() -> None:
    while True:
        pass


def crash() -> None:
    ctypes.string_at(0)


def leave(code: int) -> None:
    os._exit(code)


def refuse() -> None:
    raise ValueError("no\nnumber")


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (hang, (), r"killed: no result within 0\.5 s"),
        (crash, (), "its process died: SIGSEGV"),
        (leave, (7,), "its process died: exit code 7"),
        (leave, (0,), r"its process died: exit code 0"),
        (sys.exit, (1,), "SystemExit: 1"),
        (refuse, (), "ValueError: no"),
    ],
)
def test_a_failing_call_costs_its_own_result_and_nothing_else(
    function: object, arguments: tuple[int, ...], reason: str
) -> None:
    with DeadlinePool(1) as pool:
        failing = pool.submit(function, *arguments, deadline=0.5)  # type: ignore[arg-type]
        following = pool.submit(double, 21, deadline=10.0)
        with pytest.raises(CallFailed, match=reason):
            result(failing)
        assert result(following) == 42


def test_calls_run_in_as_many_processes_as_workers() -> None:
    with DeadlinePool(2) as pool:
        futures = [pool.submit(_pid_after, 0.2, deadline=10.0) for _ in range(4)]
        pids = {result(future) for future in futures}
    assert len(pids) == 2 and os.getpid() not in pids


def _pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_a_clock_that_is_set_back_spares_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time
    with DeadlinePool(2) as pool:
        slow = pool.submit(_pid_after, 1.0, deadline=20.0)
        hanging = pool.submit(hang, deadline=1.0)
        time.sleep(0.5)
        monkeypatch.setattr(time, "time", lambda: clock() - 3600.0)
        assert isinstance(result(slow), int)
        assert hanging.exception(timeout=10) is not None and was_killed(hanging)


def test_a_pool_that_breaks_is_built_again_and_its_calls_are_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with DeadlinePool(1) as pool, caplog.at_level("WARNING", "vlmrl"):
        futures = [pool.submit(_pid_after, 0.3, deadline=20.0) for _ in range(6)]
        breaking = pool.submit(_break_the_pool_once, tmp_path / "flag", deadline=20.0)
        futures += [pool.submit(_pid_after, 0.3, deadline=20.0) for _ in range(2)]
        pids = [result(future) for future in futures]
        assert pids[-1] != pids[0] and pool.rebuilt == 1 and result(breaking) == 7
        assert "a pool died; they were started again: " in caplog.text
        monster = pool.submit(_break_the_pool, deadline=20.0)
        with pytest.raises(CallFailed, match="the worker processes died twice"):
            result(monster)
        assert result(pool.submit(double, 4, deadline=20.0)) == 8


def test_a_pool_that_is_given_up_says_so_for_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_pool, "MAX_REBUILT", 0)
    with DeadlinePool(1) as pool:
        first = pool.submit(time.sleep, 30, deadline=60)
        monkeypatch.setattr(deadline_pool, "_is_whole", lambda inner: False)
        second = pool.submit(time.sleep, 0, deadline=60)
        for future in (first, second):
            with pytest.raises(
                CallFailed, match="worker processes end before they have done a call"
            ):
                result(future)
        with pytest.raises(UserError, match="is there memory left"):
            pool.submit(time.sleep, 0, deadline=60)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import math\n"
        "from vlmrl.system.deadline_pool import DeadlinePool\n"
        "pool = DeadlinePool(1)\n"
        "while True:\n"
        "    pool.submit(math.sqrt, 4, deadline=5.0).exception(timeout=20)\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert "UserError: worker processes end before" in ended.stderr
    assert "__name__ == '__main__'" in ended.stderr


def _break_the_pool() -> object:
    return Unreadable()


def _break_the_pool_once(flag: Path) -> object:
    if flag.exists():
        return 7
    flag.touch()
    return Unreadable()


class Unreadable:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return len, ("fits",) * 2


class TwoWords(Exception):
    """Cannot be read again by pickle, as many exceptions of libraries cannot."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def say_two_words() -> None:
    raise TwoWords("not", "portable")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "reason"),
    [(say_two_words, "TwoWords: not portable"), (interrupt, "KeyboardInterrupt: ")],
)
def test_what_a_call_raises_is_its_own_fault_whatever_it_is(function: object, reason: str) -> None:
    with DeadlinePool(1) as pool:
        with pytest.raises(CallFailed, match=reason):
            result(pool.submit(function, deadline=20.0))  # type: ignore[arg-type]
        assert pool.rebuilt == 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory has a limit on Linux only")
def test_a_call_that_takes_too_much_memory_ends_its_worker_and_a_leak_is_bounded() -> None:
    with DeadlinePool(1, max_memory=200 * 2**20) as pool:
        with pytest.raises(CallFailed, match=r"may not take that much memory \(scoring\."):
            result(pool.submit(bytearray, 400 * 2**20, deadline=20.0))
        leaks = [pool.submit(_leak, 52 * 2**20, deadline=20.0) for _ in range(5)]
        found = [future.exception(timeout=20) is None for future in leaks]
        assert found == [True, True, True, False, True]


LEAKED = []


def _leak(size: int) -> int:
    LEAKED.append(b"1" * size)
    return len(LEAKED)


def test_a_worker_is_replaced_after_a_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_pool, "MAX_CALLS", 2)
    with DeadlinePool(1) as pool:
        pids = [result(pool.submit(os.getpid, deadline=20.0)) for _ in range(5)]
    assert len(set(pids)) == 3


def test_a_closed_pool_leaves_no_process_and_starts_again_when_needed() -> None:
    pool = DeadlinePool(1)
    pid = result(pool.submit(os.getpid, deadline=10.0))
    pool.close()
    assert not psutil.pid_exists(pid)
    assert result(pool.submit(double, 1, deadline=10.0)) == 2
    pool.close()


def test_who_waits_for_a_call_is_woken_when_the_pool_is_closed() -> None:
    pool = DeadlinePool(1)
    call = pool.submit(time.sleep, 60, deadline=90.0)
    threading.Timer(1.0, pool.close).start()
    with pytest.raises(CallFailed, match="cancelled"):
        result(call)


def test_a_worker_is_where_its_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DeadlinePool(1) as pool:
        assert result(pool.submit(os.getcwd, deadline=20.0)) == str(Path.cwd())
        monkeypatch.chdir(tmp_path)
        assert result(pool.submit(os.getcwd, deadline=20.0)) == str(Path.cwd())


def test_a_dead_idle_worker_does_not_break_the_scorer() -> None:
    with DeadlinePool(1) as pool:
        os.kill(result(pool.submit(os.getpid, deadline=10.0)), signal.SIGKILL)
        time.sleep(0.3)
        assert result(pool.submit(double, 4, deadline=10.0)) == 8


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_owner(sent: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(
        textwrap.dedent("""
        import os, time
        from vlmrl.system.deadline_pool import DeadlinePool, result

        def hang():
            return 9 ** (9 ** (9 ** 9))

        if __name__ == "__main__":
            pool = DeadlinePool(2)
            futures = [pool.submit(os.getpid, deadline=9.0), pool.submit(hang, deadline=0.5)]
            print(result(futures[0]), flush=True)
            time.sleep(60)
        """)
    )
    # bash and CI start background jobs with SIGINT ignored; a person's terminal does not
    owner = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert owner.stdout is not None
    assert owner.stdout.readline().strip().isdigit()
    family = psutil.Process(owner.pid).children(recursive=True)
    assert len(family) >= 2
    owner.send_signal(sent)
    owner.communicate(timeout=30)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_a_completion_that_ends_its_verifier_scores_zero_and_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    reward = RewardConfig(verifier=f"{tmp_path}/hostile.py:judge", timeout_s=0.7)
    answers = ["0.5", "hang", "1", "tower", "crash", "exit", "0.25", "quit", "0"]
    group = [
        Completion(a, Parsed(a, None, "none", True, 1.0), Frame(), finish_reason="stop")
        for a in answers
    ]
    with Scorer({"s": [reward]}, ScoringConfig(workers=2)) as scorer:
        judged = scorer.judge([group], [Sample("1", "s", ("?",), Truth())])[0]
    assert [j.reward for j in judged] == [0.5, 0.0, 1.0, 0.0, 0.0, None, 0.25, 0.0, 0.0]
    assert scorer.counts["s", "judge"] == {"calls": 9, "faults": 1, "skipped": 0, "kills": 4}
    killed = [v for j in judged for v in j.verdicts.values() if "killed_grader" in v.parts]
    assert [v.score for v in killed] == [0.0] * 4


SICK = """
import os, time
from pathlib import Path

def hangs(answer):
    time.sleep(60)

def hangs_once(answer, flag):
    if not Path(flag).exists():
        Path(flag).touch()
        time.sleep(60)
    return 0.75

def slow_import(answer):
    return 1.0

def impatient(answer):
    raise TimeoutError("the database did not answer")

if os.environ.get("SLOW_IMPORT") == "1":
    time.sleep(3)
"""


def _judge(reward: RewardConfig, *answers: str) -> list[Judged]:
    group = [
        Completion(a, Parsed(a, None, "none", True, 1.0), Frame(), finish_reason="stop")
        for a in answers
    ]
    with Scorer({"s": [reward]}, ScoringConfig(workers=2)) as scorer:
        return scorer.judge([group], [Sample("1", "s", ("?",), Truth())])[0]


def test_a_verifier_that_is_broken_for_all_stays_a_fault(tmp_path: Path) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    reward = RewardConfig(verifier=f"{tmp_path}/sick.py:hangs", timeout_s=0.5)
    assert [j.reward for j in _judge(reward, "a", "b")] == [None, None]


def test_a_call_that_was_killed_by_chance_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    options = {"flag": str(tmp_path / "flag")}
    reward = RewardConfig(verifier=f"{tmp_path}/sick.py:hangs_once", timeout_s=1.0, options=options)
    assert [j.reward for j in _judge(reward, "a")] == [0.75]


def test_every_function_of_a_user_has_a_time_limit_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    monkeypatch.setattr(reward_components, "USER_DEADLINE", 1.5)
    monkeypatch.setattr(calls, "NOTICE_S", 0.5)
    with caplog.at_level("WARNING", "vlmrl"):
        judged = _judge(RewardConfig(verifier=f"{tmp_path}/sick.py:hangs"), "a")
    assert judged[0].reason == "hangs: killed: no result within 1.5 s"
    assert "verifier 'hangs' is slow" in caplog.text


def test_the_time_limit_counts_neither_imports_nor_a_time_out_of_the_functions_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sick.py").write_text(SICK)
    name = f"{tmp_path}/sick.py"
    resolve(RewardConfig(verifier=f"{name}:slow_import"))  # here the import is fast
    monkeypatch.setenv("SLOW_IMPORT", "1")
    reward = RewardConfig(verifier=f"{name}:slow_import", timeout_s=1.0)
    assert [j.reward for j in _judge(reward, "a")] == [1.0]
    found = _judge(RewardConfig(verifier=f"{name}:impatient"), "a")
    assert found[0].reason == "impatient: TimeoutError: the database did not answer"
