"""The scoring rules of public benchmark harnesses, for comparison with published numbers.

Each rule reads the raw text in its own way and is laxer than the strict form next to which it is
offered; each docstring says how. They can be cheated by definition (what cannot be read may be the
corner of the image, several answers may be allowed), so use them to evaluate, not to train. Every
rule was compared with the harness's own code at the version in `VERSIONS` (`make reference` does it
again); the fixed cases in `tests/rewards/test_verifiers_official.py` and
`tests/answers/test_benchmark_rules.py` are what that code returned.

Where a harness draws a random answer for what it cannot read, the rule here says that it was not
read, so that a caller can score the expectation instead of noise.
"""

from __future__ import annotations

from typing import Literal

Harness = Literal["lmms_eval", "vlmevalkit"]

VERSIONS: dict[Harness, str] = {
    "lmms_eval": "lmms-eval 75571cf (2026-08-06)",
    "vlmevalkit": "VLMEvalKit e8e78f0 (2026-08-18)",
}
"""The harness version that each rule reproduces."""
