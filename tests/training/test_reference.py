"""The reference of a whole run is the policy as RL began, or of its last refresh, after a resume too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.interrupts import stop_after
from helpers.runs import TINY, final_state, metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.errors import UserError

LORA = ["model.lora={rank: 2}", "algorithm.options.kl=0.1"]


def config(folder: Path, *more: str) -> Any:
    shorter = ["sft.lr=1e-2", "run.keep_checkpoints=9", "evaluation=null", "run.steps=3"]
    return load("quickstart", [f"run.dir={folder}", *TINY, *shorter, "run.save_every=1", *more])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    lifecycle.train(config(folder, *LORA))
    return folder


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """The run as if it had been killed after its second step."""
    folder = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints/step-3")
    (folder / "summary.json").unlink()
    return folder


def is_of_the_policy_as_rl_began(run: Path) -> bool:
    """Return whether it is so at the first step and no longer at the last."""
    first, *_, last = (line["loss/kl"] for line in metric_lines(run))
    return abs(first) < 1e-7 and last > 1e-6


@pytest.mark.slow
def test_with_an_adapter_it_is_the_policy_after_the_cold_start(whole: Path) -> None:
    assert is_of_the_policy_as_rl_began(whole)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_one(whole: Path, cut: Path) -> None:
    lifecycle.train(config(cut, *LORA, "resume=auto"))
    assert final_state(cut) == final_state(whole)
    assert metric_lines(cut) == metric_lines(whole)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "weights", [["algorithm.options.kl=0.1"], [*LORA, "model.quantization=nf4"]], ids=str
)
def test_it_is_so_with_full_and_with_quantized_weights(weights: list[str], tmp_path: Path) -> None:
    if "model.quantization=nf4" in weights:
        pytest.importorskip("bitsandbytes")
    one, two = tmp_path / "one", tmp_path / "two"
    lifecycle.train(config(one, *weights))
    assert is_of_the_policy_as_rl_began(one)
    shutil.copytree(one, two)
    shutil.rmtree(two / "checkpoints/step-3")
    (two / "summary.json").unlink()
    lifecycle.train(config(two, *weights, "resume=auto"))
    assert final_state(one) == final_state(two)
    assert metric_lines(one) == metric_lines(two)


@pytest.mark.slow
def test_a_run_that_goes_on_elsewhere_takes_it_along(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lifecycle.train(config(folder, *LORA, f"resume={whole}/checkpoints/step-2"))
    assert final_state(folder) == final_state(whole)
    for name in ("reference.safetensors", "checksums.json"):
        copied = (folder / "reference" / name).read_bytes()
        assert copied == (whole / "reference" / name).read_bytes()


@pytest.mark.slow
def test_without_it_a_run_is_not_resumed(cut: Path) -> None:
    shutil.rmtree(cut / "reference")
    with pytest.raises(UserError, match="kept no reference; use kl=0 or start anew"):
        lifecycle.train(config(cut, *LORA, "resume=auto"))


@pytest.mark.slow
def test_rl_goes_on_from_the_adapter_of_a_cold_start_in_another_run(
    whole: Path, tmp_path: Path
) -> None:
    """Without a cold start of its own a run begins with that one's adapter, as with full weights."""
    folder = tmp_path / "run"
    other = [f"resume={whole}/checkpoints/sft-4", "sft=null", "run.steps=1"]
    lifecycle.train(config(folder, *LORA, *other))
    written = (run / "reference/reference.safetensors" for run in (folder, whole))
    assert next(written).read_bytes() == next(written).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights", [[LORA[0]], pytest.param([], marks=pytest.mark.nightly)], ids=["lora", "full"]
)
def test_a_reference_that_is_refreshed_and_a_weight_that_adapts_resume_bit_for_bit(
    weights: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entropy = "entropy_bonus: 0.01, entropy_target: 9"
    adaptive = f"algorithm.options={{kl: 0.1, kl_target: 1.0e-4, kl_horizon: 60, {entropy}}}"
    more = [
        *weights,
        adaptive,
        "reference.refresh_every=2",
        "run.steps=5",
        "run.keep_checkpoints=2",
    ]
    one, two = tmp_path / "one", tmp_path / "two"
    lifecycle.train(config(one, *more))
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Interrupt", stop_after(4 + 3))  # four of the cold start
        assert not lifecycle.train(config(two, *more))["finished"]
    assert (two / "reference-2").is_dir()
    lifecycle.train(config(two, *more, "resume=auto"))
    assert final_state(one) == final_state(two)
    lines = metric_lines(one)
    assert lines == metric_lines(two)
    divergences = [abs(line["loss/kl"]) for line in lines]
    assert max(divergences[::2]) < 1e-7 < 1e-6 < min(divergences[1::2])
    bonuses = [line["update/entropy_weight"] for line in lines]
    assert bonuses == pytest.approx([0.01 + 0.005 * step for step in range(5)])
    found = [line["update/kl_weight"] for line in lines]
    assert found[0] == 0.1 and found[1] == pytest.approx(0.1 * (1 - 0.2 * 12 / 60))
    assert {p.name for p in one.glob("reference*")} == {"reference-2", "reference-4"}
