"""What bits of floats depend on: the outcome of a small fixed piece of work, and versions of libraries."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform

import numpy as np
import torch


def probe() -> dict[str, str]:
    """Return the hash of the work, and the versions, by name."""
    names = ("torch", "transformers", "peft", "tokenizers", "numpy", "pillow")
    versions = {name: importlib.metadata.version(name) for name in names}
    return {"work": _hash_work(), "cpu": platform.machine(), **versions}


def _hash_work() -> str:
    noise = torch.Generator().manual_seed(0)
    a, b = (torch.randn(96, 96, generator=noise, requires_grad=True) for _ in range(2))
    image = torch.randn(2, 3, 14, 14, 2, generator=noise)
    kernel = torch.randn(8, 3, 7, 7, 2, generator=noise)
    hidden = torch.nn.functional.gelu(a @ b) + torch.exp(a / 3) * torch.sin(b) + torch.log1p(b * b)
    attention = torch.nn.functional.scaled_dot_product_attention(*([hidden.view(1, 4, 24, 96)] * 3))
    made = torch.nn.functional.layer_norm(attention.view(96, 96), (96,)).softmax(-1)
    (made.pow(2).sum() + hidden.logsumexp(-1).mean()).backward()
    patches = torch.nn.functional.conv3d(image, kernel, stride=(7, 7, 2))
    found = [made, a.grad, b.grad, patches, made.flatten().sort().values, hidden.cumsum(0)]
    digest = hashlib.sha256()
    for value in found:
        digest.update(value.detach().numpy().tobytes())
    digest.update(np.exp(np.linspace(-3, 3, 999)).tobytes())
    return digest.hexdigest()[:16]
