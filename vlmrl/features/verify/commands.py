"""`vlmrl score` and `vlmrl verify`: one verifier, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vlmrl.arguments import Options, Verifier
from vlmrl.errors import FAILED


def score(
    verifier: Verifier,
    rows: Annotated[Path, typer.Option("--in", help="JSONL file of completions and truths.")],
    out: Annotated[Path | None, typer.Option(help="JSONL file. Absent: standard output.")] = None,
    option: Options = None,
) -> None:
    """Score the completions of a file with one verifier: a line in, a line out.

    A row: `{"completion": "<answer>[10, 10, 50, 50]</answer>", "truth": {"boxes": [{"box": [8, 8,
    50, 50]}]}, "media": {"width": 100, "height": 80}}`. Coordinates are pixels unless the row has a
    `space`.

    - `vlmrl score box_iou --in rows.jsonl -o threshold=0.5`
    """
    from vlmrl.config import RewardConfig, tree

    options = tree.pairs(option or ())
    from vlmrl.scoring.score_rows import score_file
    from vlmrl.system.files import write_lines

    lines = score_file(rows, RewardConfig(verifier=verifier, options=options))
    if out:
        write_lines(out, lines)
    else:
        for line in lines:
            print(json.dumps(line))


def verify(
    verifier: Verifier,
    data: Annotated[Path | None, typer.Option(help="JSONL rows, as for `vlmrl score`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole report here, as JSON.")] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="JSONL rows of two completions: probe a judge of pairs.")
    ] = None,
    option: Options = None,
) -> None:
    """Attack a verifier before training on it: does it pay for completions that do not deserve it?

    Shows how honest answers score, then what hostile ones were paid. Exit code 1 if any was paid.
    Rows that name verifiers under `rewards` attack those, one report each.

    With `--pairs` nothing is attacked: `judge_pairwise` is asked three times about each row
    `{"prompt": ..., "completions": [one, other], "better": "first"}`, and what is printed says how often
    its orders agree, the first place wins, it says the same twice, and it agrees with `better` (`first`,
    `second` or `tie`; may be absent). `--out` is then a file of such rows with its own verdicts, to probe
    another judge by.

    - `vlmrl verify my_reward.py:score`
    - `vlmrl verify box_iou --data rows.jsonl -o threshold=0.5`
    - `vlmrl verify judge_pairwise --pairs pairs.jsonl -o url=http://localhost:8000/v1 -o model=m`
    """
    from vlmrl.config import RewardConfig, tree

    options = tree.pairs(option or ())
    if pairs is not None:
        from vlmrl.features.verify.audit_table import probe_pairs

        print(probe_pairs(RewardConfig(verifier=verifier, options=options), pairs, out))
        return
    from rich.console import Console

    from vlmrl.features.verify.attack_bench import verify
    from vlmrl.features.verify.audit_table import tables
    from vlmrl.scoring.score_rows import by_reward, read_rows
    from vlmrl.system.files import write_json

    reward = RewardConfig(verifier=verifier, options=options)
    named = by_reward(read_rows(data), reward) if data else [(reward, [])]
    with Console(stderr=True).status("honest answers") as status:  # shown in a terminal only
        reports = [verify(each, rows, status.update) for each, rows in named]
    if out:
        plain = [report.as_json() for report in reports]
        write_json(out, plain[0] if len(plain) == 1 else {"reports": plain})
    for report in reports:
        Console().print(*tables(report), sep="\n")
    raise typer.Exit(FAILED if any(report.findings for report in reports) else 0)
