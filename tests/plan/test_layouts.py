"""Layouts as keys of a config: what is written is read back as the same layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vlmrl.config import load
from vlmrl.features.plan.layouts import GpuLayout, as_overrides, enumerate_layouts, layout_of

OWN = ("sft=null", "engine.name=vllm_server")


@pytest.mark.parametrize(
    "own",
    [
        ("sft=null",),
        (*OWN, 'engine.options.devices=["1","2,3"]'),
        (*OWN, 'engine.options={urls: ["http://one:1", "http://two:1"]}'),
        (*OWN, "cluster.serve={replicas: 3, gpus: 2}"),
    ],
    ids=["none", "devices", "urls", "kept"],
)
def test_the_keys_of_a_layout_make_it(own: tuple[str, ...]) -> None:
    config = load("quickstart", own)
    seen = 0
    for layout in enumerate_layouts(config, 8, 8, (1, 2, 4)):
        keys = as_overrides(layout.changes(config)).split()
        again = layout_of(load("quickstart", (*own, *keys)), 8)
        assert replace(again, utilization=layout.utilization) == layout
        seen += 1
    assert seen > 10


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (("engine.name=vllm",), (8, 0, 1)),
        ((*OWN, 'engine.options.devices=["0","1"]'), (6, 2, 1)),
        ((*OWN, 'engine.options.devices=["0,1","2,3"]'), (4, 2, 2)),
        ((*OWN, "cluster.serve={replicas: 1, gpus: 4}"), (4, 1, 4)),
    ],
)
def test_servers_take_their_gpus_from_those_that_train(
    own: tuple[str, ...], expected: tuple[int, int, int]
) -> None:
    found: GpuLayout = layout_of(load("quickstart", own), 8)
    assert (found.trainers, found.servers, found.tensor_parallel) == expected


def test_replicas_shard_over_fewer_ranks() -> None:
    config = load("quickstart", ("sft=null", "rollout.prompts=256", "distributed.strategy=fsdp2"))
    found = {(each.replicas, each.shards) for each in enumerate_layouts(config, 256, 8, (1, 2, 4))}
    assert {(1, 256), (32, 8), (4, 64)} <= found
    assert all(replicas == 1 or shards in (8, 64) for replicas, shards in found)
