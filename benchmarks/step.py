"""One GRPO step: vlmrl beside TRL's GRPOTrainer, by phase.

    python benchmarks/step.py [--prompt-tokens 256 1024] [--completion 64] [--group 8]
                              [--prompts 1] [--repeats 3] [--out benchmarks/results/step.md]

Both load the model of `update.py` (a small Qwen2.5-VL, random weights, float32) and train all of it
on the same prompts, one picture each, with the same reward; completions have exactly `--completion`
tokens, and each side draws its own. All completions of a step go through one forward, without
gradient checkpointing. TRL generates with transformers, and its head scores completion rows only,
as on a GPU (on a CPU it would score the prompt too). `plain` and `shared` are vlmrl with
`optimizer.shared_forward` off and on.

Every way has a process of its own, one thread, one step to warm up. Times are process CPU seconds,
medians; `spread` is (longest - shortest) / median of a step. `update` is forward, loss, backward,
clipping and optimizer, `other` the rest of a step: pictures, rewards, advantages, TRL's log line.
Memory is the peak of the process, imports included.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

# Libraries are imported where they are used, so that a way's memory is that of its own ones.

PHASES = ("generate", "update", "other", "step")
COLUMNS = "| P | C | G | way | generate s | update s | other s | step s | spread | peak MiB |"
PICTURE = "noise.png"


@dataclass(frozen=True, slots=True)
class Case:
    """What a step is made of, and the folder that holds model and data."""

    prompt: int
    completion: int
    group: int
    prompts: int
    steps: int
    folder: Path

    @property
    def tokens(self) -> int:
        """Tokens of a step, a prompt counted once per completion."""
        return self.prompts * self.group * (self.prompt + self.completion)


Step = dict[str, float]
"""CPU seconds by phase; tokens, reward_std and grad_norm show that the step was a real one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--completion", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=1, help="groups in a step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    lines = [COLUMNS, "|---" * (COLUMNS.count("|") - 1) + "|"]
    print(*lines, sep="\n", flush=True)
    for prompt in asked.prompt_tokens:
        with tempfile.TemporaryDirectory() as name:
            shape = (prompt, asked.completion, asked.group, asked.prompts)
            case = Case(*shape, 1 + asked.repeats, Path(name))
            alone(prepare, case)
            found = {way: alone(measure, way, case) for way in WAYS}
        rows = [row(case, way, own, found["trl"]) for way, own in found.items()]
        print(*rows, sep="\n", flush=True)
        lines += rows
    if asked.out:
        asked.out.write_text("\n".join([heading(), "", *lines, ""]))


def alone(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def prepare(case: Case) -> None:
    """Save the model, the picture and the row that all prompts are made of."""
    from update import image_prompt, make_policy

    policy = make_policy()
    policy.save(str(case.folder / "model"))
    prompt = image_prompt(policy, case.prompt)
    prompt.images[0].save(case.folder / PICTURE)
    row = {"id": 0, "question": prompt.sample.parts[1], "answer": "1", "images": [PICTURE]}
    (case.folder / "train.jsonl").write_text(json.dumps(row))


def measure(way: str, case: Case) -> dict[str, float]:
    """Median seconds by phase, the spread and the peak MiB of one way; its steps are checked."""
    import torch

    import vlmrl.torchvision_shim  # noqa: F401  (before anything imports torchvision)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps = list(WAYS[way](case))
    for step in steps:
        assert step["tokens"] == case.tokens, f"{way}: {step} should have {case.tokens} tokens"
        assert step["reward_std"] > 0, f"{way}: all rewards are equal: {step}"
        assert 0 < step["grad_norm"] < float("inf"), f"{way}: there is no gradient: {step}"
    times = {phase: [step[phase] for step in steps[1:]] for phase in PHASES}
    medians = {phase: statistics.median(seconds) for phase, seconds in times.items()}
    spread = (max(times["step"]) - min(times["step"])) / medians["step"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**medians, "spread": spread, "peak": peak}


def reward(completion: Any) -> float:
    """The share of even token ids: differs among the completions of random weights."""
    return share_of_even(completion.token_ids)


def share_of_even(ids: Sequence[int]) -> float:
    return sum(i % 2 == 0 for i in ids) / len(ids)


def split(step: float, generate: float, update: float) -> Step:
    other = step - generate - update
    return {"generate": generate, "update": update, "other": other, "step": step}


# ------------------------------------------------------------------------------------------- TRL


def trl_steps(case: Case) -> Iterator[Step]:
    import datasets  # noqa: TID251  (TRL takes nothing else)
    import transformers
    import trl.trainer.utils

    # Nothing but the choice of rows that the head scores asks this name.
    trl.trainer.utils._use_triton = lambda device: True
    folder = str(case.folder / "model")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype="float32")
    quiet: dict[str, Any] = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = trl.GRPOConfig(
        str(case.folder / "trl"),
        per_device_train_batch_size=case.prompts * case.group,
        num_generations=case.group,
        max_completion_length=case.completion,
        generation_kwargs={"min_new_tokens": case.completion},
        max_steps=case.steps,
        loss_type="grpo",
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        **quiet,
    )
    question = json.loads((case.folder / "train.jsonl").read_text())["question"]
    row = {"prompt": [{"role": "user", "content": question}], "image": str(case.folder / PICTURE)}
    data = datasets.Dataset.from_list([row] * case.prompts * case.steps)
    trainer = trl.GRPOTrainer(
        model,
        lambda completion_ids, **_: [share_of_even(ids) for ids in completion_ids],  # type: ignore[arg-type]
        args=arguments,
        processing_class=transformers.AutoProcessor.from_pretrained(folder),
        train_dataset=data.cast_column("image", datasets.Image()),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    seconds = trl_times(trainer)
    trainer.train()
    logs = trainer.state.log_history[: case.steps]
    for number, (spent, log) in enumerate(zip(seconds, logs, strict=True), 1):
        shown = {"reward_std": log["reward_std"], "grad_norm": log["grad_norm"]}
        yield {**spent, "tokens": log["num_tokens"] / number, **shown}


def trl_times(trainer: Any) -> list[Step]:
    """Filled while the trainer runs; its update begins when its batch of completions is ready."""
    import transformers

    times: list[Step] = []
    spans: dict[str, tuple[float, float]] = {"step": (0.0, time.process_time())}

    def watch(method: str) -> None:
        call = getattr(trainer, method)

        def watched(*arguments: Any) -> Any:
            start = time.process_time()
            out = call(*arguments)
            spans[method] = (start, time.process_time())
            return out

        setattr(trainer, method, watched)

    class Ends(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            spans["step"] = (start, end) = (spans["step"][1], time.process_time())
            generate, ready = spans["_generate_single_turn"], spans["_prepare_inputs"][1]
            times.append(split(end - start, generate[1] - generate[0], end - ready))

    watch("_generate_single_turn")
    watch("_prepare_inputs")
    trainer.add_callback(Ends())
    return times


# ----------------------------------------------------------------------------------------- vlmrl


def vlmrl_steps(case: Case, shared_forward: str) -> Iterator[Step]:
    from vlmrl import assemble, plugins
    from vlmrl.config import Config
    from vlmrl.data.loader import Loader
    from vlmrl.data.source import open_source
    from vlmrl.models.loading import load_model
    from vlmrl.policy import Policy, adamw
    from vlmrl.scoring import Scorer
    from vlmrl.tracking import Tracker
    from vlmrl.trainer import Trainer

    rollout = {"prompts": case.prompts, "group_size": case.group, "max_tokens": case.completion}
    settings = {
        "model": {"path": str(case.folder / "model")},
        "data": {"train": [{"card": str(case.folder), "name": "noise"}]},
        "rollout": rollout,
        "rewards": [f"{__file__}:reward"],
        "optimizer": {"micro_tokens": case.tokens, "shared_forward": shared_forward},
    }
    config = Config.model_validate(settings)
    policy = Policy(*load_model(config.model), config.model)
    policy.stop_ids = ()  # every completion goes on to the limit
    policy.use_optimizer(adamw(policy.trainable, config.optimizer.lr), config.optimizer)
    make = assemble.prompt_maker(policy, {"noise": False})
    with Scorer({"noise": config.rewards}, config.scoring) as scorer:
        trainer = Trainer(
            config=config,
            policy=policy,
            loader=Loader([open_source(config.data.train[0])], make, case.prompts),
            engine=plugins.build("engine", "hf"),
            scorer=scorer,
            algorithm=plugins.build("algorithm", "grpo"),
            tracker=Tracker(config, case.folder, case.steps),
            held_out=None,
        )
        trainer.engine.start(policy)
        yield from (vlmrl_step(trainer) for _ in range(case.steps))


def vlmrl_step(trainer: Any) -> Step:
    before, start = dict(trainer.clock.cpu), time.process_time()
    report = trainer.step()
    step = time.process_time() - start
    spent = {phase: s - before.get(phase, 0.0) for phase, s in trainer.clock.cpu.items()}
    groups = zip(report.rollouts.batch.prompts, report.rollouts.completions, strict=True)
    tokens = sum(len(p.encoded.ids) + len(c.token_ids) for p, group in groups for c in group)
    seconds = split(step, spent["generate"], spent["logprob"] + spent["update"])
    std, norm = report.metrics["reward/std"], report.metrics["update/grad_norm"]
    return {**seconds, "tokens": tokens, "reward_std": std, "grad_norm": norm}


WAYS: dict[str, Callable[[Case], Iterator[Step]]] = {
    "trl": trl_steps,
    "plain": lambda case: vlmrl_steps(case, "off"),
    "shared": lambda case: vlmrl_steps(case, "on"),
}


def row(case: Case, way: str, own: Step, trl: Step) -> str:
    """A line; behind a figure how many times TRL's is as large."""

    def beside(key: str, digits: int) -> str:
        return f"{own[key]:.{digits}f}" + f" ({trl[key] / own[key]:.2f}x)" * (way != "trl")

    shape = f"{case.prompt} | {case.completion} | {case.prompts} x {case.group} | {way}"
    seconds = " | ".join(beside(phase, 2) for phase in PHASES)
    return f"| {shape} | {seconds} | {own['spread']:.0%} | {beside('peak', 0)} |"


def heading() -> str:
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ("torch", "transformers", "trl")]
    machine = f"{os.cpu_count()}-core CPU machine, load {os.getloadavg()[2]:.1f}"
    about = f"{datetime.date.today()}, {machine}; {', '.join(versions)}"
    return f"# One GRPO step beside TRL\n\n{about}"


if __name__ == "__main__":
    main()
