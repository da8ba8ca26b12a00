"""Text that tries to be paid for what it does not know, and how many examples of it are tried."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = 100_000 if os.environ.get("VLMRL_NIGHTLY") else 20
law = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

fragments = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "[1, 2, 3, 4]", "[[10, 10, 60, 60]]", "[",
     "]", "{", "}", "'", '"', '{"bbox_2d": ', '"label": "cat"', "NaN", "Infinity", "1e999", "-",
     "none", "[]", "yes", "no", "A", "B", "C", "٣", "\n", " ", ",", " 5 to 10 ", "<|box_start|>",
     "(1,2),(3,4)", "\\boxed{", "<confidence>0.3</confidence>", "true", "0", "1", "100", "zzzz",
     "9" * 400, '{"action": "click"}', "I don't know", "[[0, 0, 100, 100]]", "[-1e9, 5, 1e9, 5000]"]
)  # fmt: skip
hostile = st.lists(fragments | st.text(max_size=8), max_size=14).map("".join)
