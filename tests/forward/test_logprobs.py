"""Log-probs against plain slow versions."""

import pytest
import torch

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


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_a_mixed_batch_equal_one_plain_hf_forward_per_completion(family):
    made = policy(family)
    engine = Hf()
    engine.start(made)
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
