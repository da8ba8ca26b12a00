"""Times of a step against arithmetic by hand, and laws that hold whatever the rates are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.features.plan.layouts import GpuLayout
from vlmrl.features.plan.published import Assumptions, gpu
from vlmrl.features.plan.sketch import ModelCounts, StepCounts
from vlmrl.features.plan.times import Times, times

B = 10**9
MODEL = ModelCounts(
    parameters=8 * B,
    trained=7 * B,
    gathered_bytes=14 * B,
    active=7 * B,
    head=B // 2,
    vision=0,
    language_trains=True,
    vision_trains=False,
    attention=0,
    num_layers=28,
    sequence_parts=(1, 2, 4),
    kv_bytes=57344,
    state_bytes=0,
    sync_bytes=16 * B,
)
STEP = StepCounts(
    prompts=64,
    completions=512,
    prompt_tokens=1000,
    media_patches=0,
    mean_length=500.0,
    max_length=1000,
    update_tokens=1e6,
    plain_tokens=2e6,
    scored_tokens=512 * 500.0,
    forwards=1,
    epochs=1,
    minibatches=1,
)
EXACT = replace(
    Assumptions.of(), train_mfu=1.0, hbm_share=1.0, link_share=1.0, decode_overhead_ms=0.0
)
ALONE = GpuLayout(trainers=1, servers=0, strategy="ddp")


def timed(
    layout: GpuLayout, model: ModelCounts = MODEL, step: StepCounts = STEP, **changed: float
) -> Times:
    given = {"useful_share": 1.0, "cache_share": 0.9, "checkpoint": 1.0, **changed}
    return times(
        layout,
        model,
        step,
        gpu("h100"),
        EXACT,
        max_num_seqs=256,
        transfer="tcp",
        **given,  # type: ignore[arg-type]
    )


def test_an_update_takes_six_operations_a_weight_and_token() -> None:
    expected = (6 * 7 * B * 1e6 + 8 * 0.5 * B * 256_000) / 989.4e12  # the head's forward runs twice
    assert timed(ALONE).update == pytest.approx(expected)
    again = timed(replace(ALONE, checkpointing=True))
    assert again.update - expected == pytest.approx(2 * 7 * B * 1e6 / 989.4e12)
    assert timed(ALONE).passes == pytest.approx((2 * 7 * B * 1e6 + B * 256_000) / 989.4e12)


def test_decoding_reads_all_weights_for_each_token_of_a_single_completion() -> None:
    one = replace(STEP, prompts=1, completions=1, mean_length=1000.0)
    found = timed(ALONE, step=one).generation
    assert found.batch == 1 and found.used == 1
    context = 1500 * MODEL.kv_bytes
    assert found.seconds - found.prefill == pytest.approx(1000 * (16 * B + context) / 3.35e12)


def test_ranks_that_wait_take_longer() -> None:
    whole, half = timed(ALONE), timed(ALONE, useful_share=0.5)
    assert half.update == pytest.approx(2 * whole.update)


def test_between_machines_the_gathering_of_weights_may_take_longer_than_the_update() -> None:
    fits = GpuLayout(trainers=16, servers=0, strategy="fsdp2", micro_batch_tokens=16384)
    short = replace(fits, micro_batch_tokens=4096)
    assert timed(fits).waiting == 0 < timed(short).waiting
    # Two gatherings of 14 GB and 28 GB of gradients in each of ceil(2e6 / 16 / 4096) micro-batches, through
    # the eight ports of each machine.
    moved = 31 * (2 * 14 * B + 4 * 7 * B) * 15 / 16 / (8 * 50e9)
    assert timed(short).update == pytest.approx(moved)


def test_replicas_gather_within_a_machine_and_sum_slices_between_machines_once_an_update() -> None:
    whole, copies = (
        timed(GpuLayout(trainers=512, servers=0, strategy="fsdp2", replicas=r)) for r in (1, 64)
    )
    summed = 2 * 4 * 7 * B / 8 * 63 / 64 / 50e9
    gathered = (2 * 14 * B + 4 * 7 * B) * 7 / 8 / 450e9  # one micro-batch
    assert whole.update == pytest.approx((2 * 14 * B + 4 * 7 * B) * 511 / 512 / 400e9)
    assert copies.update == pytest.approx(gathered + summed)
    twice = timed(
        GpuLayout(trainers=512, servers=0, strategy="fsdp2", replicas=64),
        step=replace(STEP, minibatches=2),
    )
    assert twice.update == pytest.approx(2 * copies.update)


def test_ahead_of_the_trainer_the_longer_of_the_two_counts() -> None:
    apart = GpuLayout(trainers=4, servers=4, strategy="fsdp2")
    after, ahead = timed(apart), timed(replace(apart, staleness=1))
    assert after.step == pytest.approx(after.generation.seconds + after.training + after.sync)
    assert ahead.step == pytest.approx(max(ahead.generation.seconds, ahead.training) + ahead.sync)
    assert 0 <= ahead.idle(apart) < after.idle(apart) < 1


def test_a_sync_leaves_the_trainers_once_by_tcp_and_for_each_server_by_nccl() -> None:
    apart = GpuLayout(trainers=4, servers=4, strategy="ddp")
    assert timed(apart).sync_bytes == MODEL.sync_bytes
    assert timed(apart).sync == pytest.approx(16 / 3)
    assert timed(GpuLayout(trainers=8, servers=0)).sync_bytes == 0


def test_a_server_without_room_for_its_weights_holds_no_completion() -> None:
    large = replace(MODEL, parameters=73 * B)
    assert timed(GpuLayout(trainers=4, servers=4), large).generation.fits == 0
    assert timed(GpuLayout(trainers=4, servers=1, tensor_parallel=4), large).generation.fits > 0


@given(
    trainers=st.integers(1, 512),
    servers=st.integers(0, 64),
    parallel=st.sampled_from([1, 2, 4, 8]),
    prompts=st.integers(1, 4096),
    staleness=st.integers(0, 1),
)
def test_idle_is_a_share_and_times_are_positive(
    trainers: int, servers: int, parallel: int, prompts: int, staleness: int
) -> None:
    parallel = parallel if servers else 1
    layout = GpuLayout(trainers, servers, parallel, staleness=staleness if servers else 0)
    found = timed(layout, step=replace(STEP, prompts=prompts, completions=8 * prompts))
    assert -1e-9 <= found.idle(layout) < 1
    assert min(found.step, found.update, found.sync, found.generation.seconds) > 0
    assert 0 < found.generation.batch <= 256
