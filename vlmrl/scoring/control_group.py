"""The contract between a control group and the verifier that compares a group with it."""

__all__ = ["SHUFFLED_REWARDS", "SHUFFLED_SCORES"]

SHUFFLED_REWARDS = "shuffled_rewards"
"""Key of a sample's `meta`: the rewards of its control group with shuffled frames, a list of numbers."""

SHUFFLED_SCORES = "shuffled_scores"
"""Key of a sample's meta: the scores of its control group by item verifier, {label: [score, ...]}."""
