"""Ranks that hold copies of a sharded model do what one does, and gather within their copy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import ranks, replica_ranks
from helpers.ranks import require_shares
from helpers.runs import TINY, metric_lines, torchrun
from vlmrl.config import load
from vlmrl.errors import UserError
from vlmrl.system import distributed


@pytest.fixture(scope="module")
def by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one rank."""
    folder = tmp_path_factory.mktemp("one")
    ranks.continued(folder, None, "step-1")
    return folder


def found_by_four(folder: Path, parts: int, by_one: Path) -> list[dict[str, Any]]:
    """What every case came to on two replicas of two ranks, by rank."""
    script = str(Path(replica_ranks.__file__))
    done = torchrun(script, str(folder), str(parts), str(by_one), processes=4)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank-{n}.pt", weights_only=True) for n in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where four ranks wrote a checkpoint."""
    return tmp_path_factory.mktemp("four")


@pytest.fixture(scope="module")
def by_four(folder: Path, by_one: Path) -> list[dict[str, Any]]:
    return found_by_four(folder, 1, by_one)


@pytest.fixture(scope="module")
def by_teams(tmp_path_factory: pytest.TempPathFactory, by_one: Path) -> list[dict[str, Any]]:
    return found_by_four(tmp_path_factory.mktemp("teams"), 2, by_one)


def require_the_update_of_one(name: str, found: list[dict[str, Any]], folder: Path) -> None:
    case = replica_ranks.CASES[name]
    alone = ranks.outcome_of(case, folder, shard=False)
    exact = case.model.get("dtype") != "bfloat16"
    close, relative = (1e-6, 1e-4) if exact else (1e-3, 2e-2)
    for of_rank in (of_rank["cases"][name] for of_rank in found):
        assert of_rank["weights"].keys() == alone["weights"].keys()
        for key, value in alone["weights"].items():
            assert (of_rank["weights"][key] - value).abs().max() <= close, key
            assert torch.equal(of_rank["weights"][key], found[0]["cases"][name]["weights"][key])
        for key, value in alone["metrics"].items():
            assert of_rank["metrics"][key] == pytest.approx(value, rel=relative, abs=1e-5), key


@pytest.mark.nightly
@pytest.mark.parametrize("name", replica_ranks.CASES)
def test_two_replicas_of_two_ranks_give_the_update_of_one(name, by_four, tmp_path):
    require_the_update_of_one(name, by_four, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", replica_ranks.OF_TEAMS)
def test_so_do_replicas_whose_ranks_share_tokens(name, by_teams, tmp_path):
    require_the_update_of_one(name, by_teams, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["even", "adapter"])
def test_weights_are_gathered_within_a_replica_and_only_that_of_the_sender_takes_part(
    name, by_four
):
    for rank, found in enumerate(of_rank["counted"][name] for of_rank in by_four):
        most = 2 * found["largest"] + found["adapters"] + 4096
        assert found["given"] == found["whole"] > 4 * found["largest"]
        assert found["largest"] <= found["held"] <= most
        assert found["taken"]["held"] <= most and found["taken"]["given"] == found["whole"]
        assert found["sync"]["held"] <= (most if rank < 2 else 0) and found["sync"]["left"] == 0
        assert (found["sync"]["files"] > found["whole"]) == (rank == 0)
    require_shares([of_rank["counted"][name]["parts"] for of_rank in by_four], found)


@pytest.mark.nightly
def test_gradients_are_summed_over_the_replicas_once_an_update(by_four):
    for found in (of_rank["sums"] for of_rank in by_four):
        several, one = found[1], found[10**6]
        scatter = next(operation for operation in one if "reduce_scatter" in operation)
        assert several[scatter] > one[scatter]
        all_reduce = {o: n for o, n in one.items() if "reduce" in o and o != scatter}
        assert all_reduce and {o: several[o] for o in all_reduce} == all_reduce


@pytest.mark.nightly
def test_a_checkpoint_goes_to_replicas_and_from_them(by_one, by_four, folder):
    expected = ranks.continued(by_one, "step-1", "step-2")
    for found in (*(of_rank["from one"] for of_rank in by_four), again(folder)):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert (found[key] - value).abs().max() <= 1e-6, key


def again(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of one rank that goes on from the checkpoint of four."""
    return ranks.continued(folder, "step-1", "step-2")


@pytest.mark.nightly
def test_a_run_of_two_replicas_is_the_run_of_one(tmp_path):
    more = [*TINY, "run.steps=2", "evaluation=null", "distributed.strategy=fsdp2"]
    for name, replicas in (("one", 1), ("two", 2)):
        arguments = [f"run.dir={tmp_path / name}", *more, f"distributed.replicas={replicas}"]
        done = torchrun("-m", "vlmrl", "train", "quickstart", *arguments, processes=4)
        assert done.returncode == 0, done.stderr
    for one, two in zip(
        metric_lines(tmp_path / "one"), metric_lines(tmp_path / "two"), strict=True
    ):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-5)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("processes", "replicas"), [(3, 2), (4, 3), (4, 4), (6, 4)])
def test_a_number_that_leaves_replicas_unequal_or_whole_is_refused(
    processes, replicas, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    said = rf"distributed\.replicas: expected a divisor .* \({processes}\) .* got {replicas}"
    with pytest.raises(UserError, match=said), distributed.session(1, replicas=replicas):
        pass


def test_one_process_ignores_the_number_of_replicas(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with distributed.session(1, replicas=2):
        assert distributed.sharding_ranks() == range(1)


def test_the_config_has_the_key_and_refuses_it_with_ddp():
    assert load("quickstart").distributed.replicas == 1
    more = ["distributed.replicas=2"]
    assert load("quickstart", ["distributed.strategy=fsdp2", *more]).distributed.replicas == 2
    with pytest.raises(UserError, match=r"distributed.*replicas: expected 1 with strategy ddp"):
        load("quickstart", more)
