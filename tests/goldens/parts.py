"""Goldens of parts: algorithms on one input, verifiers on attacks, benchmarks on stored answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import surfaces
from made import Golden
from surfaces import plugins

HERE = Path(__file__).parent

# --------------------------------------------------------------------------------- algorithms

REWARDS = [[1.0, 0.0, 0.5, 0.25], [0.0, 0.0, 0.0, 1.0], [0.75, 0.75, 0.75, 0.75]]
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "kl": {"kl": 0.1, "kl_estimator": "k3", "kl_unbiased": True},
    "decoupled": {"correction": "decoupled"},
    "one-sided": {"correction": "one_sided"},
    "tokens": {"aggregation": "token"},
}


def make_algorithms(folder: Path) -> Golden:
    """Hash advantages, loss, gradient and metrics of every algorithm, with its own options and others."""
    golden = Golden("algorithms", exact=True)
    for name in plugins.names("algorithm"):
        advantages: dict[str, Any] = {}
        losses: dict[str, Any] = {}
        gradients: dict[str, Any] = {}
        for variant, options in VARIANTS.items():
            try:
                recipe = surfaces.recipe_of(name, **options)
            except surfaces.UserError as refusal:
                losses[variant] = str(refusal)
                continue
            rewards = surfaces.rewards_of(REWARDS)
            made = recipe.advantages(rewards, surfaces.rollouts_of(rewards, length=3), 0.25)
            advantages[variant] = [made.values, made.kept, made.weights, made.metrics]
            inputs = surfaces.random_inputs(seed=1)
            out = recipe.loss(inputs)
            out.loss.backward()
            losses[variant] = [out.loss.detach(), out.metrics]
            gradients[variant] = inputs.new.grad
        golden.add(f"{name} advantages", advantages)
        golden.add(f"{name} loss", losses)
        golden.add(f"{name} gradient", gradients)
        norms = {f"{v} gradient": float(g.norm()) for v, g in gradients.items()}
        golden.numbers[name] = norms | {f"{v} loss": float(losses[v][0]) for v in gradients}
    return golden


# ---------------------------------------------------------------------------------- verifiers

JUDGES = {"judge": "grade", "judge_listwise": "grade_all", "judge_pairwise": "prefer"}
MAX_CASES = 4
MAX_TEXT = 30_000
"""Longer attacks are about time, which goldens do not measure."""


def make_verifiers(folder: Path) -> Golden:
    """Hash what every verifier says to attacks and to honest answers; its words by themselves."""
    golden = Golden("verifiers")
    for name in plugins.names("verifier"):
        verifier = plugins.load("verifier", name)
        laws = verifier.laws
        if laws.needs_a_run or (verifier.waits and name not in JUDGES):
            golden.add(name, "skipped: it judges calls of tools, or asks a model of the config")
            continue
        options = [{"callable": f"{HERE}/judges.py:{JUDGES[name]}"}] if name in JUDGES else None
        rows = [
            row for chosen in options or (*laws.options, *laws.loose) for row in _ask(name, chosen)
        ]
        golden.add(name, [row[:-1] for row in rows], folder)
        golden.add(f"{name} words", sorted({row[-1] for row in rows}), folder)
    return golden


def _ask(name: str, options: Any) -> Iterator[list[Any]]:
    """Yield a row for each completion: the sample, the text, score, parts and answer, and what is said."""
    component = surfaces.resolve(surfaces.RewardConfig(verifier=name, options=dict(options)))
    verifier = component.verifier
    samples = [(s, f) for s, f in surfaces.examples() if verifier.applies_to(s)]
    stated = [
        case
        for sample, frame in samples
        for case in surfaces.state_honestly(replace(sample, form=verifier.answer_form()), frame)
    ]
    firsts: dict[str, surfaces.Honest] = {}
    for case in stated:
        firsts.setdefault(case.form, case)
    for case in [*firsts.values()][:MAX_CASES]:
        mates = [c for c in stated if c.form == case.form and c.sample.id != case.sample.id][:3]
        for text in _texts(case):
            asked = (component.spec, case, text, mates, 0.5)
            verdict = surfaces.guard(verifier, surfaces.judge_among_honest, *asked)
            answer = surfaces.to_json(verdict.answer)
            row = [options, case.sample.id, case.form, text, verdict.applies, verdict.score]
            yield [*row, dict(verdict.parts), answer, str(verdict.fault or verdict.note)]


def _texts(case: surfaces.Honest) -> Iterator[str]:
    right, wrong = (surfaces.lay_out(case.sample, answer) for answer in (case.right, case.wrong))
    yield from (right, wrong, f"{right} so")
    for attack in surfaces.ATTACKS:
        yield from (text for text in attack.make(case) if len(text) <= MAX_TEXT)


# --------------------------------------------------------------------------------- benchmarks

ANSWERS = [
    "",
    "A",
    "(B) cat",
    "yes",
    "No.",
    "2",
    "12 %",
    "a cat",
    "The answer is C.",
    "[[0, 0, 500, 500]]",
]
ANSWERS += [
    "<think>so</think><answer>A</answer>",
    '[{"bbox_2d": [10, 10, 500, 600], "label": "dog"}]',
]
ANSWERS += ["<answer>B. cat</answer>", "from 2.5 to 7 seconds", "[1.5, 4]", "I see 3 of them"]


def make_benchmarks(folder: Path) -> Golden:
    """Hash, for every benchmark and protocol, how it asks and what stored answers come to."""
    golden = Golden("benchmarks")
    plugins.load("verifier", "math").slow = False  # in this process: no pool is started for a case
    for name in plugins.names("benchmark"):
        aggregates = {o.aggregate for o in plugins.load("benchmark", name).officials}
        if "cider" in aggregates:
            continue  # it needs an extra, on which this list shall not depend
        cases = surfaces.CASES.get(name, {}).get("hand", {})
        for number, protocol in enumerate(surfaces.open_benchmark(name, "").protocols()):
            source = surfaces.opened(folder / str(number), name, protocol)
            by_hand = [answer for answer, *_ in cases.get(protocol.split("@")[0], ())]
            rows = len(source.rows)
            answers = [*by_hand, *(answer for answer in ANSWERS for _ in range(rows))]
            result = surfaces.judged(source, protocol, answers)
            asked = [_asked(source.sample(index)) for index in range(rows)]
            golden.add(f"{name} {protocol} asked", asked, folder)
            golden.add(f"{name} {protocol} scored", result, folder)
    return golden


def _asked(sample: Any) -> list[Any]:
    parts = [part if isinstance(part, str) else part.kind for part in sample.parts]
    return [sample.id, sample.template, sample.system, parts, surfaces.to_json(sample.truth)]
