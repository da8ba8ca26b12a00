"""`vlmrl eval`: a model on data, with the verifiers that train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.arguments import Options


def evaluate(
    model: Annotated[str, typer.Argument(help="A checkpoint folder, a run folder or a hub name.")],
    data: Annotated[str, typer.Option(help="A card or a data file; `:SPLIT` if not `test`.")],
    samples: Annotated[
        int, typer.Option(min=0, help="Sampled completions per prompt, besides the greedy one.")
    ] = 0,
    force_thinking: Annotated[
        bool, typer.Option("--force-thinking", help="Also force it to think, and not to.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the result and its samples.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N rows.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at a time.")] = 32,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion.")] = None,
    verifier: Annotated[
        list[str] | None,
        typer.Option(help="Judge by this, e.g. `box_iou(threshold=0.5)`; repeatable."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Generate with this, e.g. `vllm(max_model_len=2048)`.")
    ] = "hf",
    option: Options = None,
) -> None:
    """Evaluate a model: the cards and verifiers that train, greedy and k samples, with intervals.

    - `vlmrl eval runs/quickstart --data shapes:test --samples 4 --out results`
    - `vlmrl eval path/to/checkpoint --data my.jsonl --verifier exact --verifier my.py:score`
    - `vlmrl eval runs/think_or_not --data shapes:test --force-thinking` says what a thought is worth
    - `vlmrl eval Qwen/Qwen2.5-VL-3B-Instruct --data my.jsonl --engine vllm`

    Verifiers and engines take their options in parentheses, the card takes its options with `-o`.
    """
    from vlmrl.config import PluginRef, RewardConfig, tree

    options = tree.pairs(option or ())
    rewards = [tree.named(text) for text in verifier or ()]
    name, engine_options = tree.named(engine)
    from vlmrl.commands import evaluate

    result = evaluate.evaluate_model(
        model,
        data,
        samples=samples,
        force_thinking=force_thinking,
        out=out,
        limit=limit,
        batch_size=batch_size,
        max_tokens=max_tokens,
        rewards=[RewardConfig(verifier=name, options=chosen) for name, chosen in rewards],
        engine=PluginRef(name=name, options=engine_options),
        options=options,
    )
    for name, value in result["metrics"].items():
        low, high = result["intervals"][name]
        print(f"{name:32} {value:.4f}  [{low:.4f}, {high:.4f}]")
    for k, value in (result["pass_at_k"] or {}).items():
        print(f"{'pass@' + k:32} {value:.4f}")
    print(f"{result['num_samples']} samples; in brackets: 95 % intervals")
