"""Ranks are numbered by machine and GPU, and told what torchrun tells them."""

from __future__ import annotations

from vlmrl.features.launch.attempt import Place, order, variables

PLACES = [
    Place("10.0.0.10", "1", "b"),
    Place("10.0.0.9", "3", "a"),
    Place("10.0.0.10", "0", "b"),
    Place("10.0.0.9", "10", "a"),
]


def test_ranks_are_in_the_order_of_addresses_and_gpus() -> None:
    assert order(PLACES) == [1, 3, 2, 0]
    assert order([Place("::2", "", "a"), Place("::1", "", "b"), Place("9.0.0.0", "", "c")]) == [
        2,
        1,
        0,
    ]


def test_every_rank_sees_the_gpus_of_its_machine_and_finds_its_own_by_local_rank() -> None:
    told = variables([PLACES[index] for index in order(PLACES)], 4711, attempt=3)
    assert [v["RANK"] for v in told] == ["0", "1", "2", "3"]
    assert [v["LOCAL_RANK"] for v in told] == ["0", "1", "0", "1"]
    assert [v["CUDA_VISIBLE_DEVICES"] for v in told] == ["3,10", "3,10", "0,1", "0,1"]
    for each in told:
        assert each["WORLD_SIZE"] == "4" and each["LOCAL_WORLD_SIZE"] == "2"
        assert (each["MASTER_ADDR"], each["MASTER_PORT"]) == ("10.0.0.9", "4711")
        assert each["VLMRL_ATTEMPT"] == "3"


def test_nodes_at_one_address_are_one_machine() -> None:
    told = variables([Place("127.0.0.1", "", "a"), Place("127.0.0.1", "", "b")], 1, attempt=1)
    assert [v["LOCAL_RANK"] for v in told] == ["0", "1"]
    assert {v["LOCAL_WORLD_SIZE"] for v in told} == {"2"}
    assert not any("CUDA_VISIBLE_DEVICES" in v for v in told)
