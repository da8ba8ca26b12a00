"""How fast the verifiers are, side by side with what others use; prints Markdown.

    python performance/verifiers.py > performance/results/verifiers.md

CPU seconds of this process on one core, so that neighbours on the machine matter little; the pool is
timed by the clock. TRL's rewards are skipped where TRL is not installed (the `bench` extra).
"""

import argparse
import contextlib
import gc
import io
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.features.verify.reference_answers import examples, lay_out, state_honestly
from vlmrl.schema import Box, Completion, Frame, Sample, Truth
from vlmrl.scoring.verifier import BatchVerifier, GroupVerifier, Verifier
from vlmrl.system.deadline_pool import CallFailed, DeadlinePool, result

NEEDS_OPTIONS = (
    "downstream",
    "judge",
    "judge_listwise",
    "judge_pairwise",
    "reward_model",
    "similarity",
)
SLOW_CALLS = 40
ROUNDS = 5
FRAME = Frame(640, 480)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000, help="timed calls of each verifier")
    parser.add_argument("--memory-calls", type=int, default=1_000_000)
    args = parser.parse_args()
    print("# Verifiers: speed\n")
    print(
        f"2-core CPU machine, Python {platform.python_version()}, one core unless said otherwise."
    )
    print("Written by `performance/verifiers.py`.\n")
    for section in (headline, compare_with_coco, compare_with_trl):
        print("\n".join(section(args.calls)), flush=True)
    print("\n".join(every_verifier(args.calls)), flush=True)
    print("\n".join(pool_throughput()), flush=True)
    print("\n".join(memory(args.memory_calls)), flush=True)


def headline(calls: int) -> Iterator[str]:
    """`box_iou` from text to score: split the completion, parse the box, compare."""
    verifier = plugins.build("verifier", "box_iou")
    sample = Sample("1", "s", (), Truth(boxes=(Box(0.1, 0.1, 0.5, 0.5),)))
    texts = [
        "<think>top left</think><answer>"
        f'{{"bbox_2d": [{i % 60}, {i % 50}, {i % 60 + 200}, {i % 50 + 220}]}}</answer>'
        for i in range(calls)
    ]

    def run() -> None:
        for text in texts:
            verifier(templates.completion(text, "think_answer", FRAME), sample)

    yield "## `box_iou`, from text to score\n"
    yield f"{rate(run, calls):,.0f} completions a second (goal: 50,000).\n"


def compare_with_coco(calls: int) -> Iterator[str]:
    """Yield `detection` with 10 predictions and 10 truths against COCOeval on the same boxes."""
    random = np.random.default_rng(0)
    verifier = plugins.build("verifier", "detection", {"weights": {"map": 1.0}})
    cases = [_detection_case(random) for _ in range(50)]
    ours = [verifier(completion, sample).score for completion, sample in cases]
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = [_coco_map(completion, sample) for completion, sample in cases]
        coco = rate(lambda: [_coco_map(c, s) for c, s in cases[:10]], 10)
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    assert apart < 1e-9, apart
    texts = [(c.text, s) for c, s in cases]

    def end_to_end() -> None:
        for text, sample in texts:
            verifier(templates.completion(text, "answer_only", FRAME), sample)

    yield "## `detection`, 10 predictions x 10 truths, mAP\n"
    yield "| | samples a second | compared with COCOeval |\n|---|---|---|"
    yield f"| pycocotools COCOeval, one image | {coco:,.0f} | 1 |"
    whole = rate(end_to_end, len(cases))
    yield f"| ours, parsing included | {whole:,.0f} | {whole / coco:.0f}x |"
    yield f"\nThe two mAP differ by at most {apart:.1e} on these {len(cases)} images (goal: 20x).\n"


def _detection_case(random: np.random.Generator) -> tuple[Completion, Sample]:
    corners = np.sort(random.uniform(0, 1, (10, 2, 2)), axis=1).reshape(10, 4)
    corners[:, 2:] = np.minimum(corners[:, 2:] + 0.05, 1.0)
    truths = [Box(*map(float, c), label=f"class {i % 3}") for i, c in enumerate(corners)]
    moved = np.clip(corners + random.normal(0, 0.03, corners.shape), 0, 1) * [640, 480, 640, 480]
    moved = np.round(np.sort(moved.reshape(10, 2, 2), axis=1).reshape(10, 4), 2)
    listed = ", ".join(
        f'{{"bbox_2d": {[float(n) for n in place]}, "label": "class {i % 3}"}}'
        for i, place in enumerate(moved)
    )
    text = f"<answer>[{listed}]</answer>"
    sample = Sample("1", "s", (), Truth(boxes=tuple(truths)), "answer_only")
    return templates.completion(text, "answer_only", FRAME), sample


def _coco_map(completion: Completion, sample: Sample) -> float:
    from vlmrl.answers import parsing

    found, _ = parsing.boxes(completion.answer or "", completion.frame)
    labels = sorted({b.label or "" for b in sample.truth.boxes or ()})
    truth = COCO()
    truth.dataset = {
        "images": [{"id": 1}],
        "categories": [{"id": i, "name": label} for i, label in enumerate(labels)],
        "annotations": [
            {
                "id": i + 1, "image_id": 1, "category_id": labels.index(b.label or ""),
                "bbox": _xywh(b), "area": _xywh(b)[2] * _xywh(b)[3], "iscrowd": 0,
            }
            for i, b in enumerate(sample.truth.boxes or ())
        ],
    }  # fmt: skip
    truth.createIndex()
    predicted = truth.loadRes(
        [
            {
                "image_id": 1,
                "category_id": labels.index(b.label or ""),
                "bbox": _xywh(b),
                "score": 1.0,
            }
            for b in found
        ]
    )
    evaluation = COCOeval(truth, predicted, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return float(evaluation.stats[0])


def _xywh(box: Box) -> list[float]:
    x1, y1, x2, y2 = (n * size for n, size in zip(box.xyxy, (640, 480) * 2, strict=True))
    return [x1, y1, x2 - x1, y2 - y1]


def compare_with_trl(calls: int) -> Iterator[str]:
    """Yield our `format` and `math` against TRL's functions for the same purpose."""
    try:
        from trl.rewards.accuracy_rewards import accuracy_reward
        from trl.rewards.format_rewards import think_format_reward
    except ImportError:
        return
    text = "<think>The sum of 3 and 4.</think><answer>7</answer>"
    messages = [[{"role": "assistant", "content": text}]] * calls
    format_, math_ = (plugins.build("verifier", name) for name in ("format", "math"))
    sample = Sample("1", "s", (), Truth(number=7, text=("7",)))

    def ours(verifier: Verifier, count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                verifier(templates.completion(text, "think_answer", FRAME), sample)

        return run

    few = SLOW_CALLS
    rows = [
        ("format", "think_format_reward", rate(ours(format_, calls), calls),
         rate(lambda: think_format_reward(messages), calls)),
        ("math", "accuracy_reward", rate(ours(math_, few), few),
         rate(lambda: accuracy_reward(messages[:few], ["7"] * few), few)),
    ]  # fmt: skip
    yield "## Compared with TRL's rewards, from text to score\n"
    yield "| ours | completions a second | TRL's | completions a second |\n|---|---|---|---|"
    yield from (f"| `{a}` | {x:,.0f} | `{b}` | {y:,.0f} |" for a, b, x, y in rows)
    yield ""


def every_verifier(calls: int) -> Iterator[str]:
    """Completions a second of each verifier on honest right and wrong answers."""
    yield "## Every verifier, from text to score\n"
    yield "Honest right and wrong answers to the built-in examples of `vlmrl verify`; group and batch"
    yield "verifiers count each completion.\n"
    yield "| verifier | completions a second |\n|---|---|"
    for name in plugins.names("verifier"):
        if name in NEEDS_OPTIONS:
            continue
        verifier = plugins.build("verifier", name)
        count = SLOW_CALLS if verifier.slow else calls
        run, per_run = _job(verifier, count)
        yield f"| `{name}` | {rate(run, per_run):,.0f} |"
    yield ""


def _job(verifier: Verifier, calls: int) -> tuple[Callable[[], None], int]:
    """A function that judges about `calls` completions, and how many it judges."""
    jobs = [
        (lay_out(sample, answer), sample, frame)
        for sample, frame in examples()
        if verifier.applies_to(sample)
        for case in list(state_honestly(sample, frame))[:1]
        for answer in (case.right, case.wrong)
    ]
    if verifier.scope == "item":  # `box_iou` refuses several true boxes
        jobs = [job for job in jobs if not _refuses(verifier, *job)]
    repeats = max(1, calls // len(jobs))

    def completions() -> list[tuple[Completion, Sample]]:
        return [
            (templates.completion(t, s.template, f, token_ids=(1,) * 50), s) for t, s, f in jobs
        ]

    def run() -> None:
        for _ in range(repeats):
            made = completions()
            if isinstance(verifier, GroupVerifier):
                verifier.judge([c for c, _ in made], made[0][1], [1.0, 0.0] * (len(made) // 2))
            elif isinstance(verifier, BatchVerifier):
                pairs = range(0, len(made), 2)
                verifier.judge(
                    [[made[i][0], made[i + 1][0]] for i in pairs], [made[i][1] for i in pairs]
                )
            else:
                for completion, sample in made:
                    verifier(completion, sample)

    return run, repeats * len(jobs)


def _refuses(verifier: Verifier, text: str, sample: Sample, frame: Frame) -> bool:
    try:
        verifier(templates.completion(text, sample.template, frame), sample)
    except ValueError:
        return True
    return False


def pool_throughput() -> Iterator[str]:
    """The deadline pool: empty calls, calls of 2 ms of work, and a hung call among them."""
    yield "## The deadline pool\n"
    yield "By the clock, so whatever else runs on the machine counts.\n"
    yield "| workers | empty calls a second | calls of 2 ms of work a second |\n|---|---|---|"
    for workers in (1, 2):
        with DeadlinePool(workers) as pool:
            _drain(pool, _nothing, 50)  # the fork server starts
            yield (
                f"| {workers} | {_drain(pool, _nothing, 4000):,.0f} "
                f"| {_drain(pool, _work, 1000):,.0f} |"
            )
    with DeadlinePool(2) as pool:
        _drain(pool, _nothing, 50)
        start = time.perf_counter()
        hung = [pool.submit(_hang, deadline=1.0)]
        others = [pool.submit(_work, deadline=10.0) for _ in range(500)]
        failures = sum(_failed(future) for future in [*others, *hung])
        seconds = time.perf_counter() - start
    yield (
        f"\nOne call that hangs (deadline 1 s) among 500 of 2 ms, 2 workers: {failures} call lost, all "
        f"others done, {seconds:.2f} s in all.\n"
    )


def _nothing() -> None:
    pass


def _work() -> None:
    end = time.process_time() + 0.002
    while time.process_time() < end:
        pass


def _hang() -> None:
    while True:
        pass


def _failed(future: object) -> bool:
    try:
        result(future)  # type: ignore[arg-type]
    except CallFailed:
        return True
    return False


def _drain(pool: DeadlinePool, function: Callable[[], None], count: int) -> float:
    start = time.perf_counter()
    futures = [pool.submit(function, deadline=30.0) for _ in range(count)]
    for future in futures:
        result(future)
    return count / (time.perf_counter() - start)


def memory(calls: int) -> Iterator[str]:
    """Resident memory over many calls of the quick item verifiers, in turn."""
    verifiers = [
        plugins.build("verifier", name)
        for name in plugins.names("verifier")
        if name not in NEEDS_OPTIONS
    ]
    jobs = [_job(v, 1) for v in verifiers if v.scope == "item" and not v.slow]
    process, done, seen = psutil.Process(), 0, []
    while done < calls:
        for run, count in jobs:
            run()
            done += count
        if len(seen) < 10 * done / calls:
            gc.collect()
            seen.append(process.memory_info().rss / 2**20)
    yield f"## Memory over {done:,} calls of {len(jobs)} verifiers in turn\n"
    yield "Resident MiB after each tenth: " + ", ".join(f"{mib:.1f}" for mib in seen) + ".\n"


def rate(run: Callable[[], object], count: int, rounds: int = ROUNDS) -> float:
    """Completions a CPU second: the median of some rounds, after one to warm up."""
    run()
    rates: Sequence[float] = [count / max(_cpu_seconds(run), 1e-9) for _ in range(rounds)]
    return statistics.median(rates)


def _cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    main()
