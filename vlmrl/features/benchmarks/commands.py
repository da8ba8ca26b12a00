"""`vlmrl eval`: a model on data, with the verifiers that train, or on public benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.arguments import Json, Options, Quiet, reference
from vlmrl.errors import UserError

if TYPE_CHECKING:
    from vlmrl.runs.output.outputs import Output


# --------------------------------------------------------------------------------------------------
# `vlmrl compare`: what finished results say.


Results = Annotated[
    list[str],
    typer.Argument(
        metavar="RESULT [RESULT...]",
        help="What `vlmrl eval` wrote, a run, or RUN:STEP; with commas between: seeds of one model.",
    ),
]
ComparisonOut = Annotated[Path, typer.Option(help="Folder for comparison.json and the page.")]


def compare(results: Results, out: ComparisonOut = Path("comparison")) -> None:
    """Compare results on the same rows: paired differences with intervals, and rows won and lost.

    - `vlmrl compare results/base results/tuned`
    - `vlmrl compare results/base results/seed1,results/seed2,results/seed3`
    - `vlmrl compare runs/mine` compares a run's last evaluation with its first
    - `vlmrl compare runs/mine:50 runs/other` compares the one after step 50 with another run's last

    Every result is compared with the first. The first line says which is better, and on what.
    """
    from vlmrl.features.benchmarks.compare import compare_results, print_comparisons
    from vlmrl.features.benchmarks.comparison_page import write_comparisons

    comparisons = compare_results(results)
    print_comparisons(comparisons)
    write_comparisons(comparisons, out)


# --------------------------------------------------------------------------------------------------


Model = Annotated[str, typer.Argument(help="A checkpoint folder, a run folder or a hub name.")]
Data = Annotated[str | None, typer.Option(help="A card or a data file; `:SPLIT` if not `test`.")]
Benchmark = Annotated[
    str | None, typer.Option(help="Public benchmarks, e.g. `chartqa,mmstar`, instead of --data.")
]
Protocol = Annotated[
    str, typer.Option(help="How a benchmark is asked and scored: `ours`, `lmms_eval`, ...")
]
DataRoot = Annotated[
    Path, typer.Option(help="Folder with a folder of published data for each benchmark.")
]
Samples = Annotated[
    int, typer.Option(min=0, help="Sampled completions per prompt, besides the greedy one.")
]
ForceThinking = Annotated[
    bool, typer.Option("--force-thinking", help="Also force it to think, and not to.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the result and its samples.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N rows.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts at a time.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest completion.")]
Verifiers = Annotated[
    list[str] | None,
    typer.Option(help="Judge by this, e.g. `box_iou(threshold=0.5)`; repeatable."),
]
EngineName = Annotated[
    str, typer.Option(help="Generate with this, e.g. `vllm(max_model_len=2048)`.")
]
Export = Annotated[
    str | None,
    typer.Option(
        help="Also write the answers for this harness to score: `lmms_eval` or `vlmevalkit`."
    ),
]

Control = Annotated[
    str | None,
    typer.Option(
        help="Also ask a benchmark without what a right answer needs: `text_only`, `shuffled_images`, "
        "`shuffled_options`, `no_think`; commas between."
    ),
]

TrainData = Annotated[
    str | None,
    typer.Option(help="Count a benchmark's rows that share an image or words with these data."),
]

JudgeAt = Annotated[
    str | None,
    typer.Option(
        metavar="URL[,MODEL]|NAME",
        help="Ask this OpenAI-style endpoint, or one of the run's `models`, about answers for which a "
        "benchmark's harness asks a judge; without MODEL the harness's own. The key is read from "
        "OPENAI_API_KEY.",
    ),
]

Tools = Annotated[
    list[str] | None,
    typer.Option(
        help="Let it call this tool on a benchmark, e.g. `crop(min_side=56)`; repeatable."
    ),
]

TemplateName = Annotated[
    str | None,
    typer.Option(
        "--template",
        help="Split completions by this: a shipped name such as `think_answer`, or a YAML file; absent: the "
        "run's.",
    ),
]


def evaluate(
    model: Model,
    data: Data = None,
    benchmark: Benchmark = None,
    protocol: Protocol = "ours",
    data_root: DataRoot = Path("data"),
    samples: Samples = 0,
    force_thinking: ForceThinking = False,
    out: Out = None,
    limit: Limit = None,
    batch_size: BatchSize = 32,
    max_tokens: MaxTokens = None,
    verifier: Verifiers = None,
    engine: EngineName = "hf",
    option: Options = None,
    export: Export = None,
    control: Control = None,
    train_data: TrainData = None,
    judge: JudgeAt = None,
    tools: Tools = None,
    template: TemplateName = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Evaluate a model: the cards and verifiers that train, or public benchmarks, with intervals.

    - `vlmrl eval runs/quickstart --data shapes:test --samples 4 --out results`
    - `vlmrl eval path/to/checkpoint --data my.jsonl --verifier exact --verifier my.py:score`
    - `vlmrl eval runs/think_or_not --data shapes:test --force-thinking` says what a thought is worth
    - `vlmrl eval Qwen/Qwen2.5-VL-3B-Instruct --data my.jsonl --engine vllm`
    - `vlmrl eval runs/mine --benchmark chartqa,mmstar --protocol lmms_eval --out results` prints the
      harness's number next to a strict one; run again, it goes on where it was stopped
    - `vlmrl eval runs/mine --benchmark ai2d --control text_only,shuffled_options --samples 128` also
      asks without images and with other options, and prints the best constant answer and pass@k
    - `vlmrl eval runs/mine --data my.jsonl --json | tail -1 | jq .metrics` gives a program the numbers
    - `vlmrl eval checkpoint --benchmark ai2d --template think_answer` scores what a thinking model answers
    - `vlmrl eval runs/look --benchmark vstar_bench,hr_bench_4k --tools crop` lets it look again

    Verifiers and engines take their options in parentheses, the card takes its options with `-o`.
    `vlmrl list benchmarks` lists the benchmarks.
    """
    from vlmrl.runs.output.terminal import choose

    with choose(quiet, json) as output:
        only = {"control": control, "train_data": train_data, "judge": judge, "tools": tools}
        _check_what(data, benchmark, **only)
        common: dict[str, Any] = {"limit": limit, "batch_size": batch_size, "samples": samples}
        common |= {"max_tokens": max_tokens, "engine": reference(engine), "template": template}
        if data is not None:
            common |= {"force_thinking": force_thinking, "out": out}
            return _evaluate_data(output, model, data, verifier, option, **common)
        assert benchmark is not None
        own = {"--verifier": verifier, "-o": option, "--force-thinking": force_thinking}
        for option_name, value in own.items():
            if value:
                raise UserError(f"vlmrl eval --benchmark: {option_name} is for --data")
        common |= {"protocol": protocol, "data_root": data_root, "out": out or Path("results")}
        common |= {"export": export, "train_data": train_data, "judge": judge, "tools": tools or ()}
        _evaluate_benchmarks(output, model, benchmark, control, **common)


def _evaluate_data(
    output: Output,
    model: str,
    data: str,
    verifier: list[str] | None,
    option: list[str] | None,
    **asked: Any,
) -> None:
    from vlmrl.config import RewardConfig, tree
    from vlmrl.features.benchmarks import evaluate
    from vlmrl.runs.complaints import complain_of_evaluation
    from vlmrl.runs.output.events import Scored, Warned

    named = [tree.named(text) for text in verifier or ()]
    rewards = [RewardConfig(verifier=name, options=chosen) for name, chosen in named]
    options = tree.pairs(option or ())
    result = evaluate.evaluate_model(
        model, data, rewards=rewards, options=options, output=output, **asked
    )
    figures = (result[key] for key in ("num_samples", "metrics", "intervals", "pass_at_k"))
    left_out: dict[str, Any] = {key: result.get(key, {}) for key in ("faults", "with_zeros")}
    output.say(Scored(model, data, *figures, **left_out))
    for complaint in complain_of_evaluation(result, "reward"):
        output.say(Warned(complaint))
    evaluate.require_verdicts(result)


def _check_what(data: str | None, benchmark: str | None, **only: Any) -> None:
    if (data is None) == (benchmark is None):
        count = "neither" if data is None else "both"
        raise UserError(
            f"vlmrl eval: expected --data or --benchmark, got {count}; see `vlmrl eval --help`"
        )
    for name, value in only.items():
        if data is not None and value is not None:
            option = name.replace("_", "-")
            raise UserError(f"vlmrl eval --data: --{option} is for --benchmark")


def _evaluate_benchmarks(
    output: Output, model: str, names: str, control: str | None, **asked: Any
) -> None:
    from vlmrl.features.benchmarks.result_page import write_result_page
    from vlmrl.features.benchmarks.run import evaluate_benchmarks
    from vlmrl.features.benchmarks.session import Plan
    from vlmrl.features.benchmarks.tables import show_results, write_tables
    from vlmrl.runs.output.events import Reported

    asked["tools"] = tuple(reference(text) for text in asked["tools"])
    plan = Plan(**asked, controls=tuple(control.split(",")) if control else ())
    evaluated = evaluate_benchmarks(model, names.split(","), plan, output)
    show_results(evaluated, output)
    write_tables(evaluated, plan.out)
    output.say(Reported(write_result_page(evaluated, plan.out)))
