"""Ranks that share the tokens of their rows do what one does, and keep their share of the bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import exchange, ranks, sequence_ranks
from helpers.daily import due, marked
from helpers.rollouts_ahead import HELPERS
from helpers.runs import TINY, final_state, final_values, metric_lines, torchrun
from helpers.small import policy
from vlmrl.assemble import lifecycle
from vlmrl.config import OptimizerConfig, load
from vlmrl.errors import UserError
from vlmrl.forward.sequence_parallel import Slice, find_split
from vlmrl.monitoring.memory_forecast import measure_activations
from vlmrl.policy.optimizers import adamw
from vlmrl.system import distributed

LENGTHS, PARTS = st.integers(1, 40), st.integers(1, 9)


def slices(length: int, parts: int) -> list[Slice]:
    return [Slice(length, parts, number) for number in range(parts)]


@given(length=LENGTHS, parts=PARTS, dim=st.integers(0, 2))
def test_slices_are_equally_wide_and_together_the_whole(length, parts, dim):
    shape = [2, 3, 2]
    shape[dim] = length
    x = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    cut = [own.cut(x, dim) for own in slices(length, parts)]
    assert {part.shape[dim] for part in cut} == {-(-length // parts)}
    joined = torch.cat(cut, dim)
    assert torch.equal(joined.narrow(dim, 0, length), x)
    assert not joined.narrow(dim, length, joined.shape[dim] - length).any()
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in cut)


@given(length=LENGTHS, parts=PARTS)
def test_each_place_is_in_one_slice_where_its_start_says(length, parts):
    places = torch.arange(length)
    for own in slices(length, parts):
        inside = places[own.holds(places)]
        assert torch.equal(own.cut(places, 0)[inside - own.start], inside)
    assert torch.equal(sum(own.holds(places).int() for own in slices(length, parts)), places**0)


@given(length=LENGTHS, parts=PARTS, seed=st.integers(0, 99))
def test_a_slice_has_the_features_of_its_own_places(length, parts, seed):
    marked = torch.rand(3, length, generator=torch.Generator().manual_seed(seed)) < 0.4
    rows = torch.arange(3.0)[:, None] * 100 + torch.arange(length)
    inputs = {
        "inputs_embeds": rows[..., None],
        "per_layer_inputs": rows[..., None, None],
        "position_ids": rows.long()[None].expand(3, -1, -1),
        "attention_mask": torch.ones(3, length),
        "visual_pos_masks": marked,
        "deepstack_visual_embeds": [rows[marked][:, None], -rows[marked][:, None]],
    }
    for own in slices(length, parts):
        cut = own.cut_inputs(inputs)
        seen = cut["inputs_embeds"][cut["visual_pos_masks"]]
        assert torch.equal(cut["deepstack_visual_embeds"][0], seen)
        assert torch.equal(cut["deepstack_visual_embeds"][1], -seen)
        shown = cut["inputs_embeds"][..., 0]
        padding = torch.arange(own.width) >= length - own.start
        assert (shown[:, padding] == 1).all()
        shown = shown.masked_fill(padding, 0)
        assert torch.equal(cut["position_ids"][1], shown.long())
        assert torch.equal(cut["per_layer_inputs"][..., 0, 0], shown)
        assert cut["attention_mask"] is inputs["attention_mask"]


# ---------------------------------------------------------------------------------------- ranks


def found_by(
    number: int, kind: str, folder: Path, cases: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """What each case of a set, or of these, came to on this number of ranks, by rank."""
    script = str(Path(sequence_ranks.__file__))
    named = cases or sequence_ranks.SETS[kind]
    done = torchrun(script, str(folder), kind, *named, processes=number)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank-{n}.pt", weights_only=True) for n in range(number)]


@pytest.fixture(scope="module")
def by_two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    cases = due(request, sequence_ranks.CASES, sequence_ranks.DAILY)
    return found_by(2, "cases", tmp_path_factory.mktemp("two"), cases)


@pytest.fixture(scope="module")
def by_four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by(4, "of four", tmp_path_factory.mktemp("four"))


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by(2, "families", tmp_path_factory.mktemp("families"))


def require_the_update_of_one(case: ranks.Case, found: list[dict[str, Any]], folder: Path) -> None:
    alone = ranks.outcome_of(case, folder, shard=False)
    exact = case.model.get("dtype") != "bfloat16"
    close, relative = (1e-6, 1e-4) if exact else (1e-3, 2e-2)
    for of_rank in found:
        assert of_rank["weights"].keys() == alone["weights"].keys()
        for key, value in alone["weights"].items():
            assert (of_rank["weights"][key] - value).abs().max() <= close, key
        for key, value in alone["metrics"].items():
            assert of_rank["metrics"][key] == pytest.approx(value, rel=relative, abs=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(sequence_ranks.CASES, sequence_ranks.DAILY))
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_that_share_all_tokens_give_the_update_of_one(strategy, name, by_two, tmp_path):
    found = [of_rank[strategy][name] for of_rank in by_two]
    require_the_update_of_one(sequence_ranks.CASES[name], found, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sequence_ranks.OF_FOUR)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_teams_of_two_ranks_give_the_update_of_one(strategy, name, by_four, tmp_path):
    found = [of_rank[strategy][name] for of_rank in by_four]
    require_the_update_of_one(sequence_ranks.OF_FOUR[name], found, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sequence_ranks.FAMILIES)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_give_the_update_of_one_to_every_family(strategy, name, families, tmp_path):
    found = [of_rank[strategy][name] for of_rank in families]
    require_the_update_of_one(sequence_ranks.FAMILIES[name], found, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, (_, _, frozen) in sequence_ranks.LONG.items() if frozen])
def test_each_of_two_ranks_keeps_half_of_the_bytes_of_a_long_video(name, by_two):
    whole = sequence_ranks.kept(name)
    for found in (of_rank["kept"][name] for of_rank in by_two):
        assert 0.5 * whole < found < 0.54 * whole


@pytest.mark.slow
@pytest.mark.parametrize("name", sequence_ranks.LONG)
def test_the_forecast_knows_what_each_of_two_ranks_keeps(name, by_two):
    policy, prompt, rows = sequence_ranks.long_prompt(name)
    more = ["distributed.sequence_parallel=2", "rollout.max_tokens=9"]
    more += [f"optimizer.shared_forward={'on' if rows > 1 else 'off'}"]
    found, _ = measure_activations(load("quickstart", more), policy, prompt, rows)
    for kept in (of_rank["kept"][name] for of_rank in by_two):
        assert found == pytest.approx(kept, rel=0.1)


@pytest.mark.nightly
def test_a_run_of_two_ranks_that_share_tokens_is_the_run_of_two_that_do_not(tmp_path):
    more = [*TINY, "run.steps=2", "evaluation=null", "model.build.text.num_attention_heads=2"]
    for name, parts in (("apart", 1), ("together", 2)):
        arguments = [f"run.dir={tmp_path / name}", *more, f"distributed.sequence_parallel={parts}"]
        done = torchrun("-m", "vlmrl", "train", "quickstart", *arguments)
        assert done.returncode == 0, done.stderr
    apart, together = (metric_lines(tmp_path / name) for name in ("apart", "together"))
    for one, other in zip(apart, together, strict=True):
        assert other.pop("update/useful_share") == 1.0
        del one["update/useful_share"]
        assert other == pytest.approx(one, rel=1e-3, abs=1e-5)


TOGETHER = [
    *TINY,
    "run.steps=4",
    "run.save_every=1",
    "run.keep_checkpoints=9",
    "sft=null",
    "evaluation=null",
    "checks.media_ablation_every=0",
    "model.build.text.num_attention_heads=2",
    "distributed.sequence_parallel=2",
    # Rounding alone moves a weight without gradient (the bias of keys) by the whole rate otherwise.
    "optimizer.eps=1e-4",
    "optimizer.lr=1e-3",
]


def train_together(folder: Path, *more: str) -> None:
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={folder}", *TOGETHER, *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("form", [[], ["model.lora={rank: 4}"]], ids=["full", "adapter"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_ranks_that_share_tokens_go_on_exactly_and_one_goes_on_as_they(strategy, form, tmp_path):
    more = [*form, f"distributed.strategy={strategy}", f"engine.name={exchange.__file__}:PlacedHf"]
    whole, again, alone = (tmp_path / name for name in ("whole", "again", "alone"))
    train_together(whole, *more)
    start = f"resume={whole / 'checkpoints/step-2'}"
    train_together(again, *more, start)
    assert final_values(again) == final_values(whole)
    assert metric_lines(again) == metric_lines(whole)[2:]
    arguments = [f"run.dir={alone}", *TOGETHER, *more, start, "distributed.sequence_parallel=1"]
    lifecycle.train(load("quickstart", arguments))
    for one, other in zip(metric_lines(alone), metric_lines(whole)[2:], strict=True):
        one["update/useful_share"] = other["update/useful_share"] = 1.0
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


@pytest.mark.nightly
def test_ranks_that_share_tokens_train_ahead_and_go_on_to_the_same_bits(tmp_path):
    more = ["rollout.max_staleness=2", f"engine.name={HELPERS}/copy_engine.py:DrainedEngine"]
    whole, again = tmp_path / "whole", tmp_path / "again"
    train_together(whole, *more)
    train_together(again, *more, f"resume={whole / 'checkpoints/step-2'}")
    assert [line["rollout/staleness"] for line in metric_lines(whole)] == [0, 1, 2, 2]
    assert final_state(again) == final_state(whole)


# ------------------------------------------------------------------------------------- refusals


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the first of two ranks that share all tokens, as far as it can know alone."""
    monkeypatch.setattr(distributed, "_sequence", (2, None))


def test_a_model_that_cannot_be_split_is_refused(of_two):
    made = policy()
    config = made.base.config.get_text_config()
    assert find_split(made.base, supported=True) is not None
    with pytest.raises(UserError, match=r"sequence_parallel: 2, but this model family or its att"):
        find_split(made.base, supported=False)
    config.num_key_value_heads = 3
    with pytest.raises(UserError, match="a divisor of the model's 3 key-value heads, got 2"):
        find_split(made.base, supported=True)


def test_other_attention_is_refused(of_two):
    with pytest.raises(UserError, match=r"attention \(eager\) does not support it; use 1"):
        policy(attention="eager")


def test_low_memory_is_refused(of_two):
    made = policy()
    with pytest.raises(UserError, match=r"low_memory excludes distributed\.sequence_parallel"):
        made.use_optimizer(
            adamw(made.trainable, 1e-3), OptimizerConfig(shared_forward="low_memory")
        )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, r"the number of processes \(1\), got 2"),
        ({"WORLD_SIZE": "3"}, r"the number of processes \(3\), got 2"),
        (
            {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"},
            r"the number of processes on each machine \(3\), got 2",
        ),
    ],
)
def test_a_number_that_does_not_divide_the_processes_is_refused(environment, message, monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message), distributed.session(1, sequence_parallel=2):
        pass


def test_the_config_has_the_key():
    assert load("quickstart").distributed.sequence_parallel == 1
    with pytest.raises(UserError, match="sequence_parallel"):
        load("quickstart", ["distributed.sequence_parallel=0"])
