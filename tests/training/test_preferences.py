"""A reward model of pairs: loss and gradient against plain code, and whole runs, with RL by its scores."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.runs import TINY
from helpers.small import CORPUS, FAMILIES, model_config
from vlmrl.algorithms.base import LossInputs
from vlmrl.assemble.lifecycle import train
from vlmrl.config import LoraConfig, OptimizerConfig, SftConfig, load
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.features.serve.chat_server import read_request
from vlmrl.features.serve.reward_models import open_model
from vlmrl.media.access import Access
from vlmrl.models.loading import load_model
from vlmrl.models.stored_heads import first_weight
from vlmrl.policy.optimizers import adamw
from vlmrl.policy.policy import Policy
from vlmrl.schema import Demo, Media, PromptBatch, Sample, Truth
from vlmrl.training import preferences
from vlmrl.training.sft import Stage

PAIRS = [("A cat, so small.", "No.", 0.0), ("Red", "It is green, or blue.", 0.5), ("7", "8", 2.0)]


def rater(family: str = "qwen2_5_vl", lora: LoraConfig | None = None) -> Policy:
    config = model_config(family, lora=lora)
    policy = Policy(*load_model(config, CORPUS), config, head=first_weight(None, 64, 3))
    policy.use_optimizer(adamw(policy.trainable, lr=0.0), OptimizerConfig(max_grad_norm=1e9))
    return policy


def batch(policy: Policy, images: bool = True) -> PromptBatch:
    """Three pairs, the second on an image."""
    prompts = []
    for number, (better, worse, margin) in enumerate(PAIRS):
        noise = np.random.default_rng(number).integers(0, 255, (56, 84, 3), np.uint8)
        media = [Image.fromarray(noise)] if images and number == 1 else []
        sample = Sample(
            str(number),
            "pairs",
            (*(Media("image", data=b"-") for _ in media), "Which colour?"),
            Truth(text=(better,)),
            demo=Demo(text=better, rejected=worse, margin=margin),
            weight=1.0 + number,
        )
        prompts.append(preferences.make_prompt(policy.family, policy.processor, sample, media))
    return PromptBatch(tuple(prompts))


def plain_score(policy: Policy, prompt: object, answer: str) -> torch.Tensor:
    """The head at the last token of the conversation, by transformers' own forward."""
    sample, processor = prompt.sample, policy.processor  # type: ignore[attr-defined]
    content = [{"type": "image"} for _ in sample.media] + [{"type": "text", "text": sample.text}]
    turns = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]
    text = processor.apply_chat_template(turns, tokenize=False)
    images = list(prompt.media) or None  # type: ignore[attr-defined]
    inputs = processor(text=[text], images=images, return_tensors="pt")
    hidden = policy.base(**inputs, output_hidden_states=True).hidden_states[-1]
    return hidden[0, -1] @ policy.base.v_head.weight[0]


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
@pytest.mark.parametrize("micro_tokens", [1, 100_000])
def test_loss_and_gradients_are_those_of_trl_on_transformers_own_forward(
    lora: LoraConfig | None, micro_tokens: int
) -> None:
    policy = rater(lora=lora)
    policy.base.eval()
    prompts = batch(policy)
    losses, right = [], 0
    for number, (better, worse, margin) in enumerate(PAIRS):
        scores = [plain_score(policy, prompts.prompts[number], text) for text in (better, worse)]
        gap = scores[0] - scores[1]
        right += int(gap > 0)
        losses.append((1.0 + number) * -torch.nn.functional.logsigmoid(gap - margin))
    expected = torch.stack(losses).mean()
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in policy.named.items() if p.grad is not None}
    config = SftConfig(objective="preferences", lr=1e-9, warmup_steps=0)
    found = preferences.step(policy, prompts, config, Stage(), micro_tokens, seed=0)
    assert found["loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert found["accuracy"] == pytest.approx(right / 3)
    assert "v_head.weight" in gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(policy.named[name].grad, gradient, atol=2e-6, rtol=1e-4)


def test_the_loss_is_that_of_a_slow_loop() -> None:
    rng = random.Random(0)
    rows, lengths = 6, [3, 1, 4, 2, 2, 5]
    new = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    pair = torch.tensor([4.0, 4.0, 0.0, 0.0, 2.0, 2.0])[:, None]
    margin = torch.tensor([rng.random() for _ in range(3)]).repeat_interleave(2)[:, None]
    weights = torch.tensor([rng.random() for _ in range(3)]).repeat_interleave(2)
    inputs = LossInputs(
        new=new,
        old=new.detach(),
        sampling=new.detach(),
        ref=None,
        advantages=torch.tensor([1.0, -1.0] * 3)[:, None],
        mask=mask,
        weights=weights,
        num_tokens=17,
        num_rollouts=10,
        max_tokens=5,
        extra={"pair": pair, "margin": margin},
    )
    out = preferences.BradleyTerry().loss(inputs)
    out.loss.backward()
    total, slopes = 0.0, [[0.0] * 5 for _ in range(rows)]
    for n in (0, 2, 4):
        better, worse = (new[n + i, lengths[n + i] - 1].item() for i in (0, 1))
        gap = better - worse - margin[n].item()
        total += weights[n].item() * math.log(1 + math.exp(-gap)) / 5
        slope = weights[n].item() / (1 + math.exp(gap)) / 5
        slopes[n][lengths[n] - 1], slopes[n + 1][lengths[n + 1] - 1] = -slope, slope
    assert out.loss.item() == pytest.approx(total, abs=1e-6)
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor(slopes))
    with pytest.raises(UserError, match="needed together"):
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])[:, None]
        preferences.BradleyTerry().loss(replace(inputs, advantages=signs))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_is_the_conversation_that_is_served(family: str, tmp_path: Path) -> None:
    policy = rater(family)
    prompts = batch(policy, images=False)
    policy.save(str(tmp_path))
    served = open_model(str(tmp_path), "float32")
    rollouts = preferences.pairs(policy, prompts)
    for prompt, group in zip(prompts.prompts, rollouts.completions, strict=True):
        for completion, answer in zip(group, PAIRS[int(prompt.sample.id)], strict=False):
            turns = [
                {"role": "user", "content": "Which colour?"},
                {"role": "assistant", "content": answer},
            ]
            asked = served.prompt(read_request({"messages": turns}, True).sample, Access())
            assert asked.encoded.ids == prompt.encoded.ids + completion.token_ids[:-1]
            (reply,) = served.answer([asked], Sampling(1, 8))
            policy.base.eval()
            with torch.no_grad():
                expected = plain_score(policy, prompt, str(answer)).item()
            assert json.loads(reply[0].text) == pytest.approx(expected, abs=1e-5)


def test_a_sample_without_two_answers_is_refused() -> None:
    policy = rater()
    prompts = batch(policy, images=False).prompts
    lone = replace(prompts[0], sample=replace(prompts[0].sample, demo=Demo(text="one")))
    with pytest.raises(UserError, match="states no two answers"):
        preferences.pairs(policy, PromptBatch((lone,)))


# ----------------------------------------------------------------------------------------- whole runs


def write_pairs(folder: Path) -> Path:
    """Pairs of which one word says which is better."""
    rng, words = random.Random(0), ["cat", "dog", "tree", "car", "house", "boat"]
    folder.mkdir()
    for split, count in (("train", 48), ("val", 24)):
        rows = []
        for number in range(count):
            word, other = rng.choice(words), rng.choice(words)
            asked = {"prompt": f"What is {word} {number}?", "margin": rng.choice([0, 1])}
            rows.append(asked | {"chosen": f"A kind {other}.", "rejected": f"A rude {other}."})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def changes(data: Path, run: Path, lora: bool) -> list[str]:
    text = "{hidden_size: 64, num_attention_heads: 2, num_key_value_heads: 2, num_hidden_layers: 2}"
    source = f"{{name: pairs, card: preferences, options: {{path: {data}, answers: apart}}}}"
    return [
        f"run.dir={run}",
        "run.steps=0",
        "run.threads=1",
        "run.report=false",
        "run.save_every=4",
        "resume=auto",
        f"model.build.text={text}",
        "model.build.vocab_size=320",
        f"model.lora={'{rank: 4, dropout: 0.1}' if lora else 'null'}",
        f"data.train=[{source}]",
        "sft={objective: preferences, max_steps: 14, batch_size: 12, lr: 5.0e-3, warmup_steps: 2, "
        "validate_from: 0, validate_every: 5, decay_steps: 4}",
        "rewards=[]",
    ]


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "sft.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("lora", [False, True])
def test_accuracy_rises_then_rl_is_paid_by_the_model(tmp_path: Path, lora: bool) -> None:
    data = write_pairs(tmp_path / "data")
    summary = train(load("quickstart", changes(data, tmp_path / "rm", lora)))
    curve = lines(tmp_path / "rm")
    assert curve[0]["loss"] > 0.6 and curve[-1]["loss"] < 0.2
    measured = [line for line in curve if "validation/accuracy" in line]
    assert [line["step"] for line in measured] == [5, 10, 14]
    assert summary["finished"]
    written = json.loads((tmp_path / "rm/summary.json").read_text())
    assert written["validation"]["accuracy"] == measured[-1]["validation/accuracy"] > 0.9
    assert 0.8 < written["validation"]["accuracy/low"] < 1 == written["validation"]["accuracy/high"]
    # A finished run is left as it is.
    train(load("quickstart", changes(data, tmp_path / "rm", lora)))
    assert json.loads((tmp_path / "rm/summary.json").read_text()) == written
    served = open_model(str(tmp_path / "rm"), "float32")
    scores = []
    for answer in ("A kind fish.", "A rude fish."):
        turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer}]
        prompt = served.prompt(read_request({"messages": turns}, True).sample, Access())
        scores.append(json.loads(served.answer([prompt], Sampling(1, 8))[0][0].text))
    assert scores[0] > scores[1] + 1
    if lora:
        return
    paid = "{verifier: reward_model, options: {model: rm, part: text}}"
    more = [
        *(change for change in TINY if not change.startswith(("rewards", "evaluation"))),
        f"run.dir={tmp_path / 'rl'}",
        "run.steps=2",
        "sft=null",
        "evaluation=null",
        f"data.train=[{{card: preferences, options: {{path: {data}, answers: apart}}}}]",
        f"models.rm={{path: {tmp_path / 'rm'}}}",
        f"rewards=[{paid}]",
    ]
    summary = train(load("quickstart", more))
    assert summary["steps"] == 2 and not summary["faulted"]
    rows = (tmp_path / "rl/metrics.jsonl").read_text().splitlines()
    rewards = [json.loads(row)["reward/mean"] for row in rows]
    assert all(0 < reward < 1 for reward in rewards)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "data")
    train(load("quickstart", changes(data, tmp_path / "whole", True)))
    run = tmp_path / "killed"
    command = [sys.executable, "-m", "vlmrl", "train", "quickstart"]
    command += changes(data, run, True)
    begun = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while begun.poll() is None and not (run / "checkpoints/sft-4").is_dir():
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    assert begun.wait() == -signal.SIGKILL
    assert json.loads((run / "starts.jsonl").read_text().splitlines()[0])["step"] == 0
    subprocess.run(command, check=True)
    assert lines(run) == lines(tmp_path / "whole")
    assert json.loads((run / "starts.jsonl").read_text().splitlines()[-1])["step"] >= 4
    states = []
    for folder in (run, tmp_path / "whole"):
        last = folder / "checkpoints/sft-14"
        states.append({p.name: p.read_bytes() for p in last.rglob("*.safetensors")})
    assert states[0] == states[1]


def test_keys_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    asked = changes(tmp_path, tmp_path / "run", False)
    with pytest.raises(UserError, match=r"expected run.steps 0 .* got 3"):
        load("quickstart", [*asked, "run.steps=3"])
    load("quickstart", asked)
