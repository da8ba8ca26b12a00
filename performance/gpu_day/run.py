"""Run checks one after the other within the minutes of a day; whatever one of them does, the next begins."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from gpu_day.checks import Check
from gpu_day.day import Day
from gpu_day.device import release
from gpu_day.report import Report


class OutOfTime(BaseException):
    """A check took all of its minutes; no handler of `Exception` stops it."""


def run_checks(checks: Sequence[Check], day: Day, report: Report, minutes: float) -> list[str]:
    """Run the checks that can run and for which there is time; return the names of those that failed."""
    end = time.monotonic() + 60 * minutes
    failed = []
    for check in checks:
        left = (end - time.monotonic()) / 60
        print(f"{check.name}: {check.question}", flush=True)
        start = time.monotonic()
        if check.missing:
            how = f"skipped: {check.missing}."
        elif left < check.minutes and not day.tiny:
            how = (
                f"skipped: it may take {check.minutes:g} minutes, and {max(left, 0):.1f} are left."
            )
        else:
            how = run(check, day, report, left if day.tiny else check.minutes)
        release()
        if how.startswith("failed"):
            failed.append(check.name)
        report.ends(check.name, check.question, how, time.monotonic() - start)
    return failed


def run(check: Check, day: Day, report: Report, minutes: float) -> str:
    """Run a check, write its rows as they come, and say how it ended."""
    try:
        with deadline(60 * minutes):
            for row in check.run(day):
                report.row(check.name, row)
    except OutOfTime:
        return f"stopped: it took more than {minutes:.1g} minutes."
    except Exception as error:  # the rest of the day is worth more than this check
        traceback.print_exc()
        traceback.clear_frames(error.__traceback__)  # they hold its memory
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "done."


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise OutOfTime inside once these seconds are over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
