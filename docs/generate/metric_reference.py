"""The page of every metric, from the table in the code."""

from __future__ import annotations

from tables import code, header, row

from vlmrl.runs import metrics as glossary

INTRODUCTION = """# Metrics

The numbers that a run writes; [the run folder](run_folder.md) says into which files. `<...>` stands for a
name: a source, a verifier, a mode (`think`, `direct` or `none`), a kind of media. A number that does not
apply to a step is absent from its line.
"""
TABLES = {
    "One line a step: `metrics.jsonl`": glossary.STEP,
    "Metrics of single algorithms, in the same lines": glossary.of_algorithms(),
    "Curves of single samplers and strategies, in the same lines": glossary.of_samplers_and_strategies(),
    "The cold start: `sft.jsonl`": glossary.SFT,
    "Evaluations: `evals/step-N.json`": glossary.EVALUATION,
}


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for title, table in TABLES.items():
        lines += [f"## {title}", "", *header("name", "meaning")]
        lines += [row(code(name), line) for name, line in table.items()]
        lines.append("")
    return "\n".join(lines)
