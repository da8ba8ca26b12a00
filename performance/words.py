"""Which of four words is an animal? What does GRPO add to a language model that knows words?

    python performance/words.py --seeds 0 1 2 --out performance/results/smollm_words.md

The config `smollm_words`, and beside it from the same cold start: more imitation of the same questions in as
many steps as GRPO has, with the cold start's own learning rate and batch, and rewards shuffled over the
batch. The words of the test are in no other row. An answer is right or wrong, so no constant correction
can earn anything. Intervals are 95 %, bootstrap over questions, paired between the same
questions; those of "all" are of these seeds, not of others.

Runs that are already finished in the runs folder are read, not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from digits import table
from learning import over_seeds, tell

ARMS: Mapping[str, Sequence[str]] = {
    "GRPO": ("sft=null",),
    "more imitation of the same questions": ("run.steps=0", "sft.max_steps=20"),
    "rewards shuffled, 10 steps": ("sft=null", "control.shuffle_rewards=true", "run.steps=10"),
}


def main() -> None:
    """Run, print, and write what was asked for."""
    options = over_seeds(__doc__, "runs/words").parse_args()
    tell("\n".join(table("smollm_words", ARMS, options, ["greedy"])), options.out)


if __name__ == "__main__":
    main()
