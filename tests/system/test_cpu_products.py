"""oneDNN's products are torch's, forward and backward, and only while it is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from helpers.runs import metric_lines
from vlmrl.assemble import lifecycle
from vlmrl.config import load
from vlmrl.system import cpu_products


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def operators(product: Callable[[], object]) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        product()
    return {event.key for event in profile.key_averages()}


@pytest.mark.parametrize(
    "product",
    [
        lambda: draw(160, 128) @ draw(160, 128).t(),
        lambda: draw(128, 160).t() @ draw(128, 160),
        lambda: draw(160, 300)[:, 7:135] @ draw(128, 160),
        lambda: draw(160, 1).expand(160, 128) @ draw(128, 160),
        lambda: functional.linear(draw(2, 80, 128), draw(160, 128), draw(160)),
        lambda: functional.linear(draw(2, 80, 128), draw(160, 128), draw(320)[::2]),
        lambda: torch.addmm(draw(160), draw(160, 128), draw(128, 160), beta=0.5, alpha=2),
        lambda: torch.addmm(draw(160, 1), draw(160, 128), draw(128, 160)),
        lambda: draw(8, 16) @ draw(16, 8),
        lambda: draw(0, 128) @ draw(128, 160),
        lambda: draw(160, 128).double() @ draw(128, 160).double(),
        lambda: draw(160, 128).bfloat16() @ draw(128, 160).bfloat16(),
    ],
)
def test_a_product_is_that_of_torch(product: Callable[[], Tensor]) -> None:
    expected = product()
    with cpu_products.by_onednn():
        measured = product()
    assert measured.dtype == expected.dtype
    torch.testing.assert_close(measured, expected, rtol=1e-5, atol=1e-4)


def test_gradients_are_those_of_torch() -> None:
    def gradients() -> list[Tensor]:
        rows, weight, bias = (draw(*s).requires_grad_() for s in ((2, 80, 128), (160, 128), (160,)))
        functional.linear(rows, weight, bias).square().sum().backward()
        return [leaf.grad for leaf in (rows, weight, bias) if leaf.grad is not None]

    expected = gradients()
    with cpu_products.by_onednn():
        for measured, known in zip(gradients(), expected, strict=True):
            torch.testing.assert_close(measured, known, rtol=1e-4, atol=1e-3)


def test_it_takes_large_products_only_and_only_inside() -> None:
    def large() -> Tensor:
        return draw(160, 128) @ draw(128, 160)

    taken = "mkldnn::_linear_pointwise"
    with cpu_products.by_onednn():
        assert taken in operators(large)
        assert taken not in operators(lambda: draw(8, 16) @ draw(16, 8))
    assert taken not in operators(large)


MANY_SHAPES = """
import resource, torch
from vlmrl.system import cpu_products
torch.set_num_threads(1)
with cpu_products.by_onednn():
    for rows in range(300, 600):
        if rows == 400:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        torch.ones(rows, 256) @ torch.ones(256, 512)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def kibibytes_of_many_shapes(**variables: str) -> int:
    """What a process holds more after 200 further shapes."""
    call = [sys.executable, "-c", MANY_SHAPES]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_code_of_many_shapes_is_not_kept() -> None:
    kept = kibibytes_of_many_shapes(**dict.fromkeys(cpu_products.CACHES, "1024"))
    assert kibibytes_of_many_shapes() < max(kept / 2, 20 * 1024)


@pytest.mark.slow
def test_a_run_repeats_itself_to_the_bit(tmp_path: Path) -> None:
    """Its first loss is also that of torch's products, but for rounding."""
    settings = ["sft=null", "evaluation=null", "run.steps=2", "run.threads=1", "run.report=false"]
    losses = []
    for number, products in enumerate(["onednn", "onednn", "torch"]):
        folder = tmp_path / str(number)
        lifecycle.train(
            load("quickstart", [*settings, f"run.dir={folder}", f"run.cpu_products={products}"])
        )
        losses.append([line["update/grad_norm"] for line in metric_lines(folder)])
    assert losses[0] == losses[1]
    assert losses[0][0] == pytest.approx(losses[2][0], rel=1e-3)
