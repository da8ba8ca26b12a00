"""What a cluster lacks is said by node and resource."""

from __future__ import annotations

from typing import Any

from vlmrl.features.launch.ray_host import bundle_of, describe_missing


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    """A node as Ray lists it."""
    return {"NodeID": name, "NodeManagerAddress": name, "Alive": alive, "Resources": resources}


def test_a_cluster_with_gpus_is_used_by_gpu_and_one_without_by_cpu() -> None:
    assert bundle_of([node("a", CPU=8), node("b", CPU=8, GPU=4)], 4) == {"CPU": 4, "GPU": 4}
    assert bundle_of([node("a", CPU=8)], 4) == {"CPU": 4}
    assert bundle_of([node("a", CPU=8), node("b", alive=False, GPU=4)], 4) == {"CPU": 4}


def test_missing_places_are_named() -> None:
    nodes = [node("a", CPU=8, GPU=4), node("b", CPU=8, GPU=2), node("c", alive=False, GPU=8)]
    assert describe_missing(nodes, {"CPU": 4, "GPU": 4}, 2) == (
        "expected 2 nodes with CPU 4, GPU 4, got 1 (b has CPU 8, GPU 2)"
    )
    assert describe_missing(nodes, {"CPU": 4}, 2) == (
        "expected 2 nodes with CPU 4, got 2, but other work holds some of that"
    )
    assert (
        describe_missing(nodes, {"CPU": 4}, 2, avoid={"a"}) == "expected 2 nodes with CPU 4, got 1"
    )


def test_of_many_nodes_some_are_named() -> None:
    many = [node(f"n{i}", CPU=1) for i in range(20)]
    text = describe_missing(many, {"CPU": 2}, 1)
    assert text.startswith("expected 1 node with CPU 2, got 0 (n0 has CPU 1; n1 has CPU 1;")
    assert text.endswith("n7 has CPU 1; 12 more)")
