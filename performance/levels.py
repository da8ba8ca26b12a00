"""What do a config's demonstrations and the best constant answer earn, without any model?

    python performance/levels.py quickstart video_grounding

Demonstrations are those of the config's first source of the cold start, as a model learns to write them,
scored by the verifier that the evaluation's metric names. The best constant answer to the held-out samples
is one of the right answers to the first 200 of them or of the answers of the first 200 demonstrations.
"""

from __future__ import annotations

import argparse
import statistics

from tables import head

from vlmrl import config, plugins
from vlmrl.answers import templates
from vlmrl.data.source import open_held_out, open_source
from vlmrl.features.verify.reference_answers import lay_out
from vlmrl.schema import Frame, Sample
from vlmrl.scoring.verifier import Verifier
from vlmrl.truths import prompting

FRAME = Frame(1000, 1000, space="norm1000", duration=60.0)
TRIED = 200


def score(verifier: Verifier, sample: Sample, text: str) -> float:
    """Return the score of a completion."""
    return verifier(templates.completion(text, sample.template, FRAME), sample).score or 0.0


def demonstrations(verifier: Verifier, samples: list[Sample]) -> float:
    """Return the mean score of the samples' demonstrations."""
    made = [(s, prompting.demonstrate(s.demo, s.template, FRAME)) for s in samples if s.demo]
    return statistics.fmean(score(verifier, sample, text) for sample, text in made)


def best_constant(verifier: Verifier, samples: list[Sample], shown: list[Sample]) -> float:
    """Return the largest mean score of one answer to all samples."""
    answers = {prompting.write(sample.truth, FRAME) for sample in samples[:TRIED]}
    answers |= {prompting.write_demo(sample.demo, FRAME) for sample in shown[:TRIED] if sample.demo}
    return max(
        statistics.fmean(score(verifier, sample, lay_out(sample, answer)) for sample in samples)
        for answer in answers
        if answer is not None
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--rows", type=int, default=2000, help="demonstrations that are scored")
    given = parser.parse_args()
    lines = head("| config | demonstrations | best constant answer |")
    for name in given.configs:
        settings = config.load(name)
        verifier = plugins.build("verifier", settings.evaluation.metric)
        taught, held_out = open_source(settings.sft.sources[0]), open_held_out(settings)[0]
        shown = [taught.sample(i) for i in range(min(given.rows, len(taught.rows)))]
        asked = [held_out.sample(i) for i in range(len(held_out.rows))]
        found = demonstrations(verifier, shown), best_constant(verifier, asked, shown)
        lines.append(f"| {name} | {found[0]:.3f} | {found[1]:.3f} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
