"""Log-probs against plain slow versions."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.small import FAMILIES, advantages, mixed_batch, policy
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.forward import logprobs
from vlmrl.forward.packing import pack


@pytest.mark.parametrize("chunk", [3, 100])
def test_head_logprobs_equal_a_full_log_softmax_with_its_gradients(monkeypatch, chunk):
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50, bias=False)
    hidden = torch.randn(10, 8, requires_grad=True)
    targets, weights = torch.randint(50, (10,)), torch.randn(10)

    logprob, entropy = logprobs.head_logprobs(hidden, head, targets, temperature=0.7)
    ours = torch.autograd.grad((logprob * weights).sum(), [hidden, head.weight])
    full = (head(hidden) / 0.7).log_softmax(-1)
    theirs = torch.autograd.grad(
        (full.gather(1, targets[:, None])[:, 0] * weights).sum(), [hidden, head.weight]
    )

    torch.testing.assert_close(logprob, full.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(full.exp() * full).sum(-1))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("chunk", [3, 100])
def test_the_entropy_has_the_gradient_of_a_full_softmax_where_it_is_asked_for(monkeypatch, chunk):
    monkeypatch.setattr(logprobs, "CHUNK", chunk)
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50, bias=False)
    hidden = torch.randn(10, 8, requires_grad=True)
    targets, weights, bonus = torch.randint(50, (10,)), torch.randn(10), torch.randn(10)

    ours = logprobs.head_logprobs(hidden, head, targets, 0.7, entropy_gradient=True)
    full = (head(hidden) / 0.7).log_softmax(-1)
    theirs = full.gather(1, targets[:, None])[:, 0], -(full.exp() * full).sum(-1)

    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    gradients = [
        torch.autograd.grad((p * weights + h * bonus).sum(), [hidden, head.weight])
        for p, h in (ours, theirs)
    ]
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)
    assert not logprobs.head_logprobs(hidden, head, targets, 0.7)[1].requires_grad


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_a_mixed_batch_equal_one_plain_hf_forward_per_completion(family):
    made = policy(family)
    engine = Hf().start(made)
    rollouts = engine.generate(mixed_batch(made), Sampling(n=2, max_tokens=6, seed=3))
    (batch,) = pack(rollouts, advantages(rollouts), updates=1, micro_tokens=10**6, max_tokens=6)
    (micro,) = batch.micro
    with torch.no_grad():
        ours, _ = made.logprobs(micro)
    for row, which in enumerate(micro.group.tolist()):
        prompt, tokens = micro.prompts[which], micro.token_ids[row][micro.mask[row]]
        ids = torch.tensor([[*prompt.encoded.ids, *tokens.tolist()]])
        is_image = (ids == made.processor.image_token_id).int()
        with torch.no_grad():
            logits = made.base(
                input_ids=ids, mm_token_type_ids=is_image, **prompt.encoded.tensors
            ).logits[0]
        start = len(prompt.encoded.ids) - 1
        plain = logits[start : start + len(tokens)].log_softmax(-1)
        expected = plain.gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(ours[row][micro.mask[row]], expected, atol=2e-5, rtol=0)


def test_a_head_kept_in_float32_computes_so_under_autocast():
    torch.manual_seed(0)
    head, targets = torch.nn.Linear(16, 40, bias=False), torch.randint(0, 40, (12,))
    hidden = torch.randn(12, 16).bfloat16()

    def numbers(given):
        with torch.autocast("cpu", torch.bfloat16):
            logits = head(given)
            found, _ = logprobs.head_logprobs(given, head, targets, temperature=1.0)
        return logits, found, *torch.autograd.grad(found.sum(), [given, head.weight])

    rounded = numbers(hidden.clone().requires_grad_())
    logprobs.keep_float32(head)
    logits, found, of_hidden, of_weight = numbers(hidden.clone().requires_grad_())
    exact = hidden.float().requires_grad_()
    full = exact @ head.weight.T
    scored = full.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    slopes = torch.autograd.grad(scored.sum(), [exact, head.weight])
    assert torch.equal(logits, full) and rounded[0].dtype == torch.bfloat16
    torch.testing.assert_close(found, scored)
    torch.testing.assert_close(of_weight, slopes[1])
    torch.testing.assert_close(of_hidden, slopes[0].bfloat16())
    assert (rounded[1] - scored).abs().max() > 1e-3


@pytest.mark.parametrize("rows", [7, 2**14])
def test_under_autocast_the_backward_multiplies_in_its_dtype_and_gradients_are_whole(
    monkeypatch, rows
):
    monkeypatch.setattr(logprobs, "ROWS", rows)
    monkeypatch.setattr(logprobs, "CHUNK", 5)
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 40, bias=False)
    hidden, targets = torch.randn(12, 16), torch.randint(0, 40, (12,))

    def gradients(low):
        given = hidden.clone().requires_grad_()
        head.weight.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            found, _ = logprobs.head_logprobs(given, head, targets, temperature=0.7)
        with _Products() as products:
            found.sum().backward()
        return given.grad, head.weight.grad, products.dtypes

    *exact, before = gradients(low=False)
    *found, dtypes = gradients(low=True)
    assert before == {torch.float32} and dtypes == {torch.bfloat16}
    for ours, reference in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - reference).norm() < 0.02 * reference.norm()


class _Products(TorchDispatchMode):
    """Collects the dtypes of what is multiplied as matrices."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.dtypes |= {x.dtype for x in args[-2:]}
        return func(*args, **(kwargs or {}))
