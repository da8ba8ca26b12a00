"""The ways to make a GRPO step that `step.py` compares: TRL's, and several of vlmrl.

A way waits for its turn, makes one step and sends it back, until all steps are made. Libraries are
imported where they are used, so that a way's memory is that of its own ones. Without a GPU a step is
float32 and its times are CPU seconds; on a GPU it is bfloat16 over float32 weights, times are seconds
of the clock, and memory is the allocator's.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

IMAGE = "noise.png"


@dataclass(frozen=True, slots=True)
class Case:
    """What a step is made of, and the folder that holds model and data."""

    prompt: int
    completion: int
    group: int
    prompts: int
    steps: int
    folder: Path
    frozen_tower: bool = False
    vocabulary: int = 4096

    @property
    def tokens(self) -> int:
        """Tokens of a step, a prompt counted once per completion."""
        return self.prompts * self.group * (self.prompt + self.completion)


Step = dict[str, float]
"""CPU seconds by phase, peak MiB; tokens, reward_std and grad_norm show that it is a real step."""
PHASES = ("generate", "update", "other", "step")


class Turn(Protocol):
    """The end of a connection at which a way waits, and sends what its step took."""

    def recv(self) -> Any: ...

    def send(self, step: Step, /) -> None: ...


def save_inputs(policy: Any, case: Case) -> None:
    """Save the model, the image and the row that all prompts are made of."""
    from groups import image_prompt

    policy.save(str(case.folder / "model"))
    prompt = image_prompt(policy, case.prompt)
    prompt.images[0].save(case.folder / IMAGE)
    row = {"id": 0, "question": prompt.sample.parts[1], "answer": "1", "images": [IMAGE]}
    (case.folder / "train.jsonl").write_text(json.dumps(row))


def medians(way: str, case: Case, steps: list[Step]) -> Step:
    """Median seconds by phase, their spread and the peak; refuses steps that are not what they seem."""
    for step in steps:
        assert step["tokens"] == case.tokens, f"{way}: {step} should have {case.tokens} tokens"
        assert step["reward_std"] > 0, f"{way}: all rewards are equal: {step}"
        assert 0 < step["grad_norm"] < float("inf"), f"{way}: there is no gradient: {step}"
    times = {phase: [step[phase] for step in steps[1:]] for phase in PHASES}
    found = {phase: statistics.median(seconds) for phase, seconds in times.items()}
    spread = (max(times["step"]) - min(times["step"])) / found["step"]
    return {**found, "spread": spread, "peak": steps[-1]["peak"]}


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def now() -> float:
    """Return the CPU seconds so far; on a GPU those of the clock, once its work is done."""
    if not on_gpu():
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def peak() -> float:
    """Return the most MiB so far: of the process, imports included; on a GPU of the allocator."""
    if on_gpu():
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def varied(completion: Any) -> float:
    """A number in [0, 1) that hardly any two completions have in common."""
    return score(completion.token_ids)


def score(ids: Sequence[int]) -> float:
    return sum(ids) % 997 / 997


def split(step: float, generate: float, update: float) -> Step:
    other = step - generate - update
    return {"generate": generate, "update": update, "other": other, "step": step, "peak": peak()}


# ------------------------------------------------------------------------------------------- TRL


def trl_steps(case: Case, turn: Turn) -> None:
    import datasets  # noqa: TID251  (TRL takes nothing else)
    import transformers
    import trl.trainer.utils

    # Nothing but the choice of rows that the head scores asks this name.
    trl.trainer.utils._use_triton = lambda device: True
    folder = str(case.folder / "model")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype="float32")
    model.model.visual.requires_grad_(not case.frozen_tower)
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
        use_cpu=not on_gpu(),
        bf16=on_gpu(),
        logging_steps=1,
        **quiet,
    )
    question = json.loads((case.folder / "train.jsonl").read_text())["question"]
    row = {"prompt": [{"role": "user", "content": question}], "image": str(case.folder / IMAGE)}
    data = datasets.Dataset.from_list([row] * case.prompts * case.steps)
    trainer = trl.GRPOTrainer(
        model,
        lambda completion_ids, **_: [score(ids) for ids in completion_ids],  # type: ignore[arg-type]
        args=arguments,
        processing_class=transformers.AutoProcessor.from_pretrained(folder),
        train_dataset=data.cast_column("image", datasets.Image()),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    take_turns(trainer, turn)
    trainer.train()


def take_turns(trainer: Any, turn: Turn) -> None:
    """Let the trainer wait before every step; its update begins when its batch is ready."""
    import transformers

    marks: dict[str, float] = {}
    generate, prepare_inputs = trainer._generate_single_turn, trainer._prepare_inputs

    def timed_generate(*arguments: Any) -> Any:
        start = now()
        out = generate(*arguments)
        marks["generate"] = now() - start
        return out

    def marked_prepare_inputs(batch: Any) -> Any:
        out = prepare_inputs(batch)
        marks["ready"] = now()
        return out

    class Turns(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turn.recv()
            marks["start"] = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks["end"] = now()

        def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            logs = named["logs"]
            if "grad_norm" not in logs:  # the summary at the end
                return
            update = marks["end"] - marks["ready"]
            step = split(marks["end"] - marks["start"], marks["generate"], update)
            shown = {"reward_std": logs["reward_std"], "grad_norm": logs["grad_norm"]}
            turn.send({**step, **shown, "tokens": logs["num_tokens"] / state.global_step})
            if state.global_step < state.max_steps:
                self.on_train_begin()

    trainer._generate_single_turn = timed_generate
    trainer._prepare_inputs = marked_prepare_inputs
    trainer.add_callback(Turns())


# ----------------------------------------------------------------------------------------- vlmrl


def vlmrl_steps(case: Case, shared_forward: str, turn: Turn, **options: float) -> None:
    from vlmrl import plugins
    from vlmrl.assemble import prompts
    from vlmrl.assemble.build import build_checkpoint_writer
    from vlmrl.config import Config
    from vlmrl.data.loader import Loader
    from vlmrl.data.source import open_source
    from vlmrl.models.loading import load_model
    from vlmrl.policy.optimizers import adamw
    from vlmrl.policy.policy import Policy
    from vlmrl.runs.run_log import RunLog
    from vlmrl.scoring.scorer import Scorer
    from vlmrl.system.timers import PhaseTimers
    from vlmrl.training.rollout_queue import RolloutQueue
    from vlmrl.training.strategy import RunParts
    from vlmrl.training.trainer import Trainer

    rollout = {"prompts": case.prompts, "group_size": case.group, "max_tokens": case.completion}
    model = {"path": str(case.folder / "model"), "dtype": "bfloat16" if on_gpu() else "float32"}
    frozen = ["vision", "projector"] if case.frozen_tower else []
    settings = {
        "model": {**model, "freeze": frozen},
        "data": {"train": [{"card": str(case.folder), "name": "noise"}]},
        "rollout": rollout,
        "rewards": [f"{__file__}:varied"],
        "optimizer": {"micro_batch_tokens": case.tokens, "shared_forward": shared_forward},
    }
    config = Config.model_validate(settings)
    policy = Policy(*load_model(config.model), config.model)
    policy.stop_ids = ()  # every completion goes on to the limit
    policy.use_optimizer(adamw(policy.trainable, config.optimizer.lr), config.optimizer)
    make = prompts.build_prompt_maker(policy, {"noise": False}, {})
    with Scorer({"noise": config.rewards}, config.scoring) as scorer:
        loader = Loader([open_source(config.data.train[0])], make, case.prompts)
        engine, timers = plugins.build("engine", "hf").start(policy), PhaseTimers()
        trainer = Trainer(
            config=config,
            policy=policy,
            loader=loader,
            queue=RolloutQueue(loader, engine, policy, config),
            engine=engine,
            scorer=scorer,
            run_parts=RunParts(policy, engine, scorer, config, timers, make, loader),
            timers=timers,
            algorithm=plugins.build("algorithm", "grpo", options),
            tracker=RunLog(config, case.folder, case.steps),
            checkpoints=build_checkpoint_writer(config, policy),
            held_out=None,
        )
        for _ in range(case.steps):
            turn.recv()
            turn.send(vlmrl_step(trainer))


def onednn_steps(case: Case, turn: Turn) -> None:
    from vlmrl.system import cpu_products

    with cpu_products.by_onednn():
        vlmrl_steps(case, "on", turn)


def vlmrl_step(trainer: Any) -> Step:
    timers = trainer.timers.wall if on_gpu() else trainer.timers.cpu
    before, start = dict(timers), now()
    with trainer.policy.seeing_once():  # as `Trainer.run` does
        report = trainer.step()
    step = now() - start
    spent = {phase: s - before.get(phase, 0.0) for phase, s in timers.items()}
    groups = zip(report.rollouts.batch.prompts, report.rollouts.completions, strict=True)
    tokens = sum(len(p.encoded.ids) + len(c.token_ids) for p, group in groups for c in group)
    seconds = split(step, spent["generate"], spent["logprob"] + spent["update"])
    std, norm = report.metrics["reward/std"], report.metrics["update/grad_norm"]
    return {**seconds, "tokens": tokens, "reward_std": std, "grad_norm": norm}


WAYS: dict[str, Callable[[Case, Turn], None]] = {
    "trl": trl_steps,
    "plain": lambda case, turn: vlmrl_steps(case, "off", turn),
    "shared": lambda case, turn: vlmrl_steps(case, "on", turn),
    "onednn": onednn_steps,
    "bonus": lambda case, turn: vlmrl_steps(case, "on", turn, entropy_bonus=0.01),
}
PUBLISHED = ("trl", "plain", "shared")
"""Those of the published table, and of a GPU day."""
