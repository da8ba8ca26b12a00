"""What `test_distributed` runs on several ranks, and on one to compare with.

    torchrun --standalone --nproc-per-node 2 tests/helpers/ranks.py FOLDER BY_ONE CASE ...

writes what each case came to, and every rank the numbers it must share with the others.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.held_bytes import HeldBytes
from helpers.media_cases import prompts_of
from helpers.prompts import ask, image
from helpers.row_facts import RowFacts, facts_of
from helpers.small import CORPUS, advantages, mixed_batch, model_config
from helpers.videos import video
from vlmrl.answers import templates
from vlmrl.config import LoraConfig, ModelConfig, OptimizerConfig
from vlmrl.engines.vllm import Vllm, _items
from vlmrl.engines.vllm_parts.transfer import HeldWeights
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.forward.dealing import deal
from vlmrl.forward.packing import pack
from vlmrl.models.loading import load_model
from vlmrl.parts.algorithms.grpo import Grpo
from vlmrl.policy import checkpoint
from vlmrl.policy.checkpoint_writer import CheckpointWriter
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import is_adapter
from vlmrl.runs import rank_shards
from vlmrl.schema import Experts, Prompt, PromptBatch, Rollouts
from vlmrl.system import distributed


@dataclass(frozen=True)
class Case:
    """How a small model is trained for two updates; `homes` are the ranks of the four prompts.

    They show one image, two, none and one.
    """

    homes: tuple[int, ...] = (0, 1, 0, 1)
    micro_tokens: int = 10**6
    kl: float = 0.0
    entropy: float = 0.0
    """Its bonus in the loss."""
    model: dict[str, Any] = field(default_factory=dict)
    shared: str = "off"
    updates: int = 1
    text_from: int = 99
    """From this update on there are no images."""
    row_facts: bool = False
    """The loss knows of its rows whatever it can."""
    videos: bool = False
    """The prompts show a video, an image and a video, nothing and an image."""
    medium: str = ""
    """If not empty, all but the third show this kind of media, and the third nothing."""
    dealt: bool = False
    """The groups go to other homes before the update, from ranks that alone have their media."""
    routed: bool = False
    """The completions come with experts, drawn by lot, that the update is to choose."""


CASES = {
    "even": Case(),
    "unequal numbers of micro-batches": Case(homes=(0, 0, 0, 1), micro_tokens=1),
    "one rank sees text only": Case(homes=(0, 0, 1, 0), micro_tokens=1),
    "one rank has nothing": Case(homes=(1, 1, 1, 1)),
    "several updates, a reference, entropy": Case(kl=0.1, entropy=0.1, updates=2),
    "shared forward": Case(shared="on", entropy=0.1),
    "adapter": Case(model={"lora": LoraConfig(rank=4, towers=["vision", "language"])}, kl=0.1),
    "DoRA": Case(
        model={"lora": LoraConfig(rank=4, dora=True, rslora=True)}, homes=(0, 0, 1, 0), kl=0.1
    ),
    "checkpointing": Case(model={"gradient_checkpointing": True}, shared="on"),
    "bfloat16": Case(model={"dtype": "bfloat16", "freeze": ["vision"]}),
    "another family": Case(model={"family": "internvl"}, homes=(0, 0, 1, 0), micro_tokens=1),
    "frozen tower, one rank sees text only": Case(
        model={"freeze": ["vision"]}, homes=(0, 0, 1, 0), micro_tokens=1
    ),
    "all media frozen, one rank sees text only": Case(
        model={"lora": LoraConfig(rank=4, towers=["language"])},
        homes=(0, 0, 1, 0),
        micro_tokens=1,
        kl=0.1,
    ),
    "a projector beside an adapter, one rank sees text only": Case(
        model={"lora": LoraConfig(rank=4, full=["projector"])},
        homes=(0, 0, 1, 0),
        micro_tokens=1,
        kl=0.1,
    ),
    "adapter, one rank sees text only and then nothing": Case(
        model={"lora": LoraConfig(rank=4, towers=["vision", "language"])},
        homes=(0, 0, 1, 0),
        micro_tokens=1,
    ),
    "adapter, one rank sees text only": Case(
        model={
            "lora": LoraConfig(rank=4, towers=["vision", "language"]),
            "gradient_checkpointing": True,
        },
        homes=(0, 0, 1, 0),
        micro_tokens=1,
    ),
    "then nobody sees an image": Case(text_from=1),
    "row facts": Case(homes=(0, 0, 1, 0), micro_tokens=150, row_facts=True, updates=2),
    "dealt from one rank": Case(homes=(1, 1, 1, 1), micro_tokens=1, dealt=True, updates=2),
    "deepstack": Case(model={"family": "qwen3_vl"}, homes=(0, 0, 1, 0), micro_tokens=1),
    "one of several towers, one rank sees text only": Case(
        model={"family": "gemma4"}, homes=(0, 0, 1, 0), micro_tokens=1, medium="audio"
    ),
    "weights that nothing reads, one rank sees text only": Case(
        model={"family": "llava_onevision"}, homes=(0, 0, 1, 0), micro_tokens=1
    ),
    "experts": Case(model={"family": "qwen3_vl_moe"}, homes=(0, 0, 1, 0), micro_tokens=1, kl=0.1),
    "experts beside shared ones": Case(
        model={"family": "glm4v_moe"}, homes=(0, 0, 1, 0), micro_tokens=1
    ),
    "states handed on": Case(
        model={"family": "qwen3_5", "gradient_checkpointing": True},
        homes=(0, 0, 1, 0),
        micro_tokens=1,
        shared="on",
    ),
    "states beside experts": Case(
        model={"family": "qwen3_5_moe"}, homes=(0, 0, 1, 0), micro_tokens=1, kl=0.1
    ),
    "experts of the engine": Case(
        model={"family": "qwen3_vl_moe", "router_replay": True, "gradient_checkpointing": True},
        homes=(1, 1, 1, 1),
        micro_tokens=1,
        kl=0.1,
        dealt=True,
        routed=True,
    ),
}

DAILY = (
    *("even", "one rank sees text only", "one rank has nothing", "bfloat16"),
    *("several updates, a reference, entropy", "adapter", "DoRA", "experts"),
    *("all media frozen, one rank sees text only", "dealt from one rank", "states handed on"),
)

READ: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("qwen2_5_vl", {}),
    "adapter": ("qwen2_5_vl", CASES["adapter"].model),
    "projector beside an adapter": ("qwen2_5_vl", {"lora": LoraConfig(rank=4, full=["projector"])}),
    "DoRA": ("qwen2_5_vl", CASES["DoRA"].model),
    "experts": ("qwen3_vl_moe", {}),
}
"""What is read from files in bfloat16: the family, and how it is trained."""


def made(case: Case, optimizer: str = "sgd", shard: bool = False) -> Policy:
    """The policy of a case; the same weights every time."""
    torch.manual_seed(0)  # adapters begin at random
    config = model_config(**case.model)
    policy = Policy(*load_model(config, CORPUS, seed=0), config, shard=shard)
    settings = OptimizerConfig(max_grad_norm=0.5, shared_forward=case.shared)
    if optimizer == "sgd":  # moves by the gradient itself: nothing hides
        chosen: torch.optim.Optimizer = torch.optim.SGD(policy.trainable, lr=1.0, momentum=0.9)
    else:
        chosen = adamw(policy.trainable, lr=1e-2, eps=1e-4)
    policy.use_optimizer(chosen, settings)
    return policy


def with_videos(policy: Policy) -> tuple[Prompt, ...]:
    """Prompts of a video, of an image and a video, of text only and of an image."""
    media = [
        [video(6, fps=4.0, size=(56, 84))],
        [image(seed=1), video(4, fps=2.0, size=(84, 56))],
        [],
        [image(seed=2)],
    ]
    return tuple(ask(policy, *m, text="Where?" + " red" * i) for i, m in enumerate(media))


def with_medium(policy: Policy, medium: str) -> tuple[Prompt, ...]:
    """Prompts of one kind of media, the third of text only."""
    first, second = prompts_of(policy, medium)
    return (first, second, prompts_of(policy, "text")[0], first)


def rollouts(
    policy: Policy,
    homes: tuple[int, ...],
    group: int = 3,
    videos: bool = False,
    medium: str = "",
) -> Rollouts:
    """Completions of random ids and lengths for prompts with and without media."""
    rng = random.Random(0)
    prompts = with_videos(policy) if videos else mixed_batch(policy).prompts
    if medium:
        prompts = with_medium(policy, medium)
    prompts = tuple(replace(p, home=home) for p, home in zip(prompts, homes, strict=True))
    return completed(prompts, rng, group)


def completed(prompts: tuple[Prompt, ...], rng: random.Random, group: int) -> Rollouts:
    """Completions of random ids and lengths for these prompts."""
    groups = []
    for prompt in prompts:
        texts = [
            tuple(rng.randrange(20, 200) for _ in range(rng.randint(2, 9))) for _ in range(group)
        ]
        groups.append(
            tuple(
                templates.completion(
                    "", "think_answer", prompt.frame, token_ids=ids, logprobs=(-5.0,) * len(ids)
                )
                for ids in texts
            )
        )
    return Rollouts(PromptBatch(prompts), tuple(groups))


def with_experts(drawn: Rollouts) -> Rollouts:
    """The rollouts with two of four experts in each of two layers for every token, drawn by lot."""
    rng = np.random.default_rng(0)

    def draw(tokens: int) -> np.ndarray:
        return rng.random((tokens, 2, 4)).argsort(-1)[..., :2].astype(np.uint8)

    groups = []
    for prompt, group in zip(drawn.batch.prompts, drawn.completions, strict=True):
        of_prompt = draw(len(prompt.encoded.ids))
        chosen = [Experts(of_prompt, draw(c.num_tokens - 1)) for c in group]
        groups.append(tuple(replace(c, experts=e) for c, e in zip(group, chosen, strict=True)))
    return replace(drawn, completions=tuple(groups))


def at_home_only(drawn: Rollouts) -> Rollouts:
    """The rollouts as a run has them: the other ranks' prompts without media."""
    prompts = drawn.batch.prompts
    if distributed.world() > 1:
        prompts = tuple(p if rank_shards.is_here(p) else p.without_media() for p in prompts)
    return replace(drawn, batch=PromptBatch(prompts))


def trained(policy: Policy, case: Case, folder: Path, steps: int = 2) -> dict[str, float]:
    """Train for some steps; the metrics of the last."""
    if case.kl:
        policy.keep_reference(folder / "reference.safetensors")
    drawn = rollouts(policy, case.homes, videos=case.videos, medium=case.medium)
    if case.routed:
        drawn = with_experts(drawn)
    for step in range(steps):
        if step == case.text_from:
            only = drawn.batch.prompts[2:3], drawn.completions[2:3]
            drawn = Rollouts(PromptBatch(only[0]), only[1])
        given = advantages(drawn)
        if case.row_facts:
            drawn, given = facts_of(drawn)
        if case.dealt:
            drawn = at_home_only(drawn)
            drawn, balance = deal(drawn, given, case.updates, policy.sharing)
            assert distributed.world() == 1 or balance["update/useful_share"] > 0.6
        batches = pack(
            drawn,
            given,
            updates=case.updates,
            micro_tokens=case.micro_tokens,
            max_tokens=9,
            ranks=distributed.sequence_ranks() if distributed.world() > 1 else None,
        )
        if case.kl:
            batches = policy.with_reference(batches)
        if case.updates > 1:
            batches = policy.with_old(batches, entropy=case.row_facts)
        algorithm = Grpo(kl=case.kl, entropy_bonus=case.entropy)
        if case.row_facts:
            algorithm = RowFacts()
            batches = algorithm.prepare(policy.with_masked_media(batches, seed=step))
        lr = policy.optimizer.defaults["lr"]
        metrics = policy.update(batches, algorithm, lr=lr, progress=0.0)
    return metrics


def outcome(name: str, folder: Path, shard: bool = False) -> dict[str, Any]:
    """Weights and metrics of a case."""
    return outcome_of(CASES[name], folder / f"{name} {shard}", shard)


def outcome_of(case: Case, folder: Path, shard: bool) -> dict[str, Any]:
    """Weights and metrics of a case that may be any."""
    policy = made(case, shard=shard)
    metrics = trained(policy, case, folder)
    return {"weights": {k: v.clone() for k, v in policy.weights().items()}, "metrics": metrics}


def continued(folder: Path, saved: str | None, name: str, shard: bool = False) -> dict[str, Any]:
    """Train one step from a checkpoint (None: from nothing), save as `name`; the weights after it."""
    case = CASES["adapter"]
    policy = made(case, "adamw", shard)
    start = folder / "checkpoints" / saved if saved else None
    if start:
        checkpoint.restore(start, policy, checkpoint.read_progress(start))
    trained(policy, Case(), folder, steps=1)
    progress = checkpoint.Progress("rl", int(name.removeprefix("step-")))
    CheckpointWriter(folder, policy, keep=99).save(progress)
    return policy.weights()


def counted(folder: Path) -> dict[str, Any]:
    """What a sharded policy holds and gives away while all its weights are gathered, in bytes."""
    found: dict[str, Any] = {}
    for name in ("even", "adapter"):
        policy = made(CASES[name], shard=True)
        sizes: list[int] = []
        with HeldBytes() as held:
            for unit in policy.units():
                sizes.append(sum(w.nbytes for w in unit.values()))
        whole = {id(w): w.nbytes for w in policy.weights().values()}
        found[name] = {
            "largest": max(sizes),
            "given": sum(sizes),
            "whole": sum(whole.values()),
            "held": held.peak,
            "adapters": sum(w.nbytes for n, w in policy.named.items() if is_adapter(n)),
            "sync": synced(policy, folder / f"synced {name}"),
            "sync of whole": synced(made(CASES[name]), folder / f"synced whole {name}"),
            "half": synced(policy, folder / f"half {name}", dtype="bfloat16"),
            "taken": taken(policy),
            "parts": written(policy),
        }
    return found


def written(policy: Policy) -> dict[str, int]:
    """What this rank makes until it has all that it is to write of a checkpoint, and the bytes of that."""
    with HeldBytes() as held:
        own = [part for _, part in policy.parts()]
    return {"held": held.peak, "own": sum(w.nbytes for part in own for w in part.values())}


def require_shares(parts: list[dict[str, int]], counted: dict[str, Any]) -> None:
    """Hold that all ranks together wrote the model once, and each held its share of it and two units."""
    assert sum(part["own"] for part in parts) == counted["given"]
    for part in parts:
        assert part["own"] <= counted["given"] / len(parts) + counted["largest"]
        more = 2 * counted["largest"] + counted["adapters"] + 4096
        assert part["own"] <= part["held"] <= part["own"] + more


def synced(policy: Policy, folder: Path, dtype: str = "float32") -> dict[str, int]:
    """What this rank makes and keeps in a sync with servers, up to the sending."""
    engine = VllmServer(dtype=dtype)
    with HeldBytes() as held:
        if distributed.is_main():
            folder.mkdir()
            HeldWeights(folder).replace(engine.units(policy))
        else:
            policy.take_part(**engine.form(policy))
    kept = sum(file.stat().st_size for file in folder.iterdir()) if distributed.is_main() else 0
    distributed.barrier()
    return {"held": held.peak, "left": left(held), "files": kept}


def taken(policy: Policy) -> dict[str, Any]:
    """What this rank makes while an engine of its own takes the weights, and how many it is given."""
    given, names = 0, []
    with HeldBytes() as held:
        for name, weight in _items(Vllm().units(policy)):
            given += weight.nbytes
            names.append(name)
            del weight
    return {"held": held.peak, "left": left(held), "given": given, "names": names}


def left(held: HeldBytes) -> int:
    """What is still there when gloo's threads, too, have let go of the last weight they gathered."""
    until = time.monotonic() + 10
    while held.held and time.monotonic() < until:
        time.sleep(0.01)
    return held.held


def read_in_slices(folder: Path) -> dict[str, Any]:
    """Policies on files in bfloat16, sharded: their weights, and what this rank held to get them."""
    if distributed.is_main():
        for family in {family for family, _ in READ.values()}:
            built = load_model(model_config(family), CORPUS, seed=0)
            weights = built.model.to(torch.bfloat16).state_dict()
            built.family.save(built.model, str(folder / family), weights)
            built.processor.save_pretrained(folder / family)
    distributed.barrier()
    found: dict[str, Any] = {}
    for name, (family, more) in READ.items():
        config = ModelConfig(path=str(folder / family), dtype="bfloat16", **more)
        loaded = load_model(config, as_stored=True)
        in_files = all(_is_in_a_file(p) for p in loaded.model.parameters())
        torch.manual_seed(0)
        with HeldBytes() as held:
            policy = Policy(*loaded, config, shard=True)
        policy.save(str(folder / f"{name}, saved by two"))
        slices = policy.sharded.slices().values()
        found[name] = {
            "weights": policy.weights(),
            "adapter": policy.training_state(),
            "in files": in_files,
            "held": held.peak,
            "slices": sum(s.nbytes for s in slices),
            "loose": sum(
                p.nbytes
                for n, p in policy.base.named_parameters()
                if not n.startswith(policy.family.decoder_layers)
            ),
        }
    return found


def _is_in_a_file(weight: torch.Tensor) -> bool:
    """Whether its numbers are still where they were stored, mapped into memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(at, 16) for at in line.split()[0].split("-"))
        if start <= weight.data_ptr() < end:
            return line.endswith(".safetensors")
    return False


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with distributed.session(60):
        found = {
            strategy: {name: outcome(name, folder, strategy == "fsdp2") for name in sys.argv[3:]}
            for strategy in ("ddp", "fsdp2")
        }
        found["counted"], found["read"] = counted(folder), read_in_slices(folder)
        continued(folder, None, "step-1", shard=True)
        alone = Path(sys.argv[2])
        found["continued"] = {
            "fsdp2 from one": continued(alone, "step-1", "step-12", shard=True),
            "ddp from one": continued(alone, "step-1", "step-22", shard=False),
            "ddp from fsdp2": continued(folder, "step-1", "step-32", shard=False),
        }
        torch.save(found, folder / f"rank-{distributed.rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
