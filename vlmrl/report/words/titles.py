"""Titles of charts as sentences of a reader, with units, and what the glossary says of their numbers."""

from __future__ import annotations

from dataclasses import replace

from vlmrl.report.series import CurvePanel
from vlmrl.runs.metric_glossary import find

__all__ = ["with_words"]

TITLES = {
    "all sources": "All sources, greedy",
    "all sources, sampled": "All sources, sampled at temperature 1",
    "loss/total": "Loss",
    "loss/kl": "Divergence from the reference (nats a token)",
    "loss/imitation": "Loss of imitated tokens",
    "loss/ratio": "Ratio of new to old probability",
    "update/grad_norm": "Norm of the gradient",
    "update/lr": "Learning rate",
    "update/kl_weight": "Weight of the divergence",
    "update/tokens": "Loss tokens of a step",
    "update/skipped": "Updates that were not applied",
    "update/useful_share": "Mean over fullest process (tokens)",
    "update/shared": "Share of tokens in the shared forward",
    "rollout/answered": "Readable answers (share)",
    "rollout/entropy": "Entropy of the policy (nats a token)",
    "rollout/logprob_gap": "Engine against trainer: mean |Δ log p| (nats)",
    "rollout/logprob_kl": "Engine against trainer: divergence (nats a token)",
    "rollout/logprob_max_ratio": "Engine against trainer: largest ratio",
    "rollout/turns": "Turns of a completion",
    "rollout/batches": "Batches drawn for a step",
    "rollout/killed_grader": "Completions that killed a verifier (share)",
    "parity/mean_abs": "Parity probe: mean |Δ log p| (nats)",
    "parity/max_abs": "Parity probe: largest |Δ log p| (nats)",
    "parity/kl": "Parity probe: divergence (nats)",
    "parity/max_ratio": "Parity probe: largest ratio",
    "parity/tokens": "Parity probe: tokens compared",
    "loss": "Loss of the demonstrations (nats a token)",
    "entropy": "Entropy (nats a token)",
    "grad_norm": "Norm of the gradient",
    "lr": "Learning rate",
}
"""Title that a rule of series.py makes of a key -> what the page says."""


def with_words(panel: CurvePanel) -> CurvePanel:
    """Return the panel with a title in words, and the glossary's sentence where it is about one metric."""
    found = find(panel.title) or find(f"sft/{panel.title}")
    about = found[1].replace("`", "") if found else panel.about
    return replace(panel, title=TITLES.get(panel.title, panel.title), about=about)
