"""What ranks counted of graders and decoders becomes the metrics of a step, each call once."""

from __future__ import annotations

import threading

from vlmrl.cluster.step_counts import PoolCounts, StepCounts, pool_metrics


def test_the_numbers_of_a_pool_are_those_of_all_ranks() -> None:
    shares = [
        {
            "calls": 30.0,
            "chunks": 2.0,
            "seconds": 3.0,
            "repeated": 4.0,
            "lost": 1.0,
            "answering": 1,
        },
        {
            "calls": 10.0,
            "chunks": 1.0,
            "seconds": 0.6,
            "repeated": 2.0,
            "lost": 2.0,
            "answering": 2,
        },
        {"answering": 2},
    ]
    assert pool_metrics("graders", shares) == {
        "pool/graders/calls": 40.0,
        "pool/graders/chunks": 3.0,
        "pool/graders/seconds": 1.2,
        "pool/graders/repeated": 6.0,
        "pool/graders/lost": 2.0,  # both ranks may have seen the same one
        "pool/graders/answering": 1.0,
    }


def test_a_step_without_a_chunk_has_no_mean_of_seconds() -> None:
    counts = PoolCounts()
    found = StepCounts({"decoders": counts}).metrics()
    names = ("calls", "chunks", "repeated", "lost", "answering")
    assert found == {f"pool/decoders/{name}": 0.0 for name in names}


def test_what_threads_count_is_taken_once() -> None:
    counts = PoolCounts()
    counts.answering = 3

    def work() -> None:
        for _ in range(1000):
            counts.add(calls=1, seconds=0.25)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    taken = [counts.take() for _ in range(50)]
    for thread in threads:
        thread.join()
    taken.append(counts.take())
    assert sum(found.get("calls", 0.0) for found in taken) == 8000
    assert sum(found.get("seconds", 0.0) for found in taken) == 2000
    assert counts.take() == {"answering": 3}
