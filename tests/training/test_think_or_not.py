"""Think or not: thought dropout, what is counted per mode, and answers that are forced."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.small import policy, prompt
from vlmrl import cli
from vlmrl.answers import templates
from vlmrl.config import EvaluationConfig, RewardConfig, ScoringConfig, SftConfig, load
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.plugins import build
from vlmrl.policy.policy import Policy
from vlmrl.schema import (
    Advantages,
    Box,
    Demo,
    Prompt,
    PromptBatch,
    Rewards,
    Rollouts,
    Truth,
    Verdict,
)
from vlmrl.scoring.scorer import Scorer
from vlmrl.training import evaluation, metrics, sft

EMPTY = "<think>\n\n</think>"
DEMO = Demo(thought="top left", answer=Truth(boxes=(Box(0.1, 0.1, 0.5, 0.5),)))


def asked(model: Policy, number: int, template: str = "think_or_not") -> Prompt:
    made = prompt(model, number)
    return dataclasses.replace(
        made, sample=dataclasses.replace(made.sample, template=template, demo=DEMO)
    )


def batch_of(model: Policy, count: int, template: str = "think_or_not") -> PromptBatch:
    return PromptBatch(tuple(asked(model, i, template) for i in range(count)))


@pytest.fixture(scope="module")
def fresh() -> Policy:
    return policy()


@pytest.fixture(scope="module")
def direct() -> Policy:
    """A policy that has learned never to think."""
    made = policy()
    config = SftConfig(thought_dropout=1.0, lr=1e-2, warmup_steps=0)
    for step in range(70):
        sft.step(made, batch_of(made, 5), config, sft.Stage(step), 10_000, seed=0)
    return made


# ------------------------------------------------------------------------------- thought dropout


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0, 0), (0.5, 75, 125), (1.0, 200, 200)])
def test_dropout_empties_that_share_of_the_thoughts(
    fresh: Policy, share: float, low: int, high: int
) -> None:
    one = asked(fresh, 0)
    batch = PromptBatch((one,) * 200)
    made = [group[0] for group in sft.demonstrations(fresh, batch, share, seed=3).completions]
    empty = [c for c in made if c.parsed.mode == "direct"]
    assert low <= len(empty) <= high  # 0.5: 3.5 deviations of 200 fair coins
    assert all(c.text.startswith(EMPTY + "<answer>") for c in empty)
    assert {c.parsed.thought for c in made if c not in empty} <= {"top left"}
    assert all(c.parsed.well_formed for c in made)
    assert len({c.answer for c in made}) == 1
    again = sft.demonstrations(fresh, batch, share, seed=3)
    assert [g[0].text for g in again.completions] == [c.text for c in made]


def test_dropout_is_refused_where_the_template_demands_a_thought(fresh: Policy) -> None:
    with pytest.raises(UserError, match=r"think_answer.*requires a thought; in think_or_not"):
        sft.demonstrations(fresh, batch_of(fresh, 1, "think_answer"), 1.0, seed=0)


def test_a_demonstration_without_a_thought_is_refused_where_the_template_demands_one(
    fresh: Policy,
) -> None:
    (one,) = batch_of(fresh, 1, "think_answer").prompts
    bare = dataclasses.replace(one.sample, demo=dataclasses.replace(DEMO, thought=""))
    batch = PromptBatch((dataclasses.replace(one, sample=bare),))
    with pytest.raises(UserError, match=r"has no thought: template 'think_answer'.*answer_only"):
        sft.demonstrations(fresh, batch, 0.0, seed=0)


# ---------------------------------------------------------------------------------- step metrics


TEXTS = (
    "<think>so</think><answer>1</answer>",
    f"{EMPTY}<answer>1</answer>",
    "<answer>1</answer>",
    "<think>and on and on",
    "<think>so</think>",
)


def random_rollouts(model: Policy, seed: int) -> tuple[Rollouts, Rewards]:
    """Prompts with and without a thought in their template, some completions masked or unscored."""
    draw = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(n, (1,), generator=draw))

    chosen = ("think_or_not", "answer_only", "think_answer", "boxed")
    prompts = tuple(asked(model, i, chosen[i]) for i in range(4))
    groups, verdicts = [], []
    for each in prompts:
        group = [
            templates.completion(
                TEXTS[below(len(TEXTS))],
                each.sample.template,
                each.frame,
                token_ids=(0,) * (1 + below(9)),
            )
            for _ in range(6)
        ]
        groups.append(tuple(group))
        verdicts.append(
            tuple(
                {"iou": Verdict(below(100) / 100) if below(4) else Verdict.failed("broken")}
                for _ in group
            )
        )
    total = torch.rand(4, 6, generator=draw)
    valid = torch.rand(4, 6, generator=draw) > 0.2
    rewards = Rewards(total * valid, valid, tuple(verdicts))
    return Rollouts(PromptBatch(prompts), tuple(groups)), rewards


@pytest.mark.parametrize("seed", range(5))
def test_metrics_per_mode_equal_a_slow_count(fresh: Policy, seed: int) -> None:
    rollouts, rewards = random_rollouts(fresh, seed)
    nothing = Advantages(rewards.total, rewards.valid, torch.ones(4, 6))
    found = metrics.rollout_metrics(rollouts, rewards, nothing)

    places = [(p, g) for p in (0, 2) for g in range(6)]  # the two whose template has a thought
    wanted: dict[str, float] = {}
    for mode in ("think", "direct", "none"):
        own = [(p, g) for p, g in places if rollouts.completions[p][g].parsed.mode == mode]
        wanted[f"mode/{mode}/share"] = len(own) / len(places)
        numbers = {
            "length": [len(rollouts.completions[p][g].token_ids) for p, g in own],
            "reward": [float(rewards.total[p, g]) for p, g in own if rewards.valid[p, g]],
            "iou": [s for p, g in own if (s := rewards.verdicts[p][g]["iou"].score) is not None],
        }
        wanted |= {f"mode/{mode}/{k}": sum(v) / len(v) for k, v in numbers.items() if v}
    assert {k: v for k, v in found.items() if k.startswith("mode/")} == pytest.approx(wanted)
    every = [
        rewards.total[rewards.valid].mean().item(),
        rewards.total[rewards.valid].std(correction=0),
    ]
    assert [found["reward/mean"], found["reward/std"]] == pytest.approx([float(v) for v in every])


def test_a_template_without_a_thought_has_no_modes(fresh: Policy) -> None:
    batch = batch_of(fresh, 1, "answer_only")
    done = templates.completion("<answer>1</answer>", "answer_only", batch.prompts[0].frame)
    assert metrics.by_mode(batch.prompts[0], done, {"reward": 1.0}) == {}


# ---------------------------------------------------------------------------------------- forced


def slow_greedy(model: Policy, given: Prompt, begun: list[int], limit: int) -> list[int]:
    """Token by token, each with a forward of its own over the whole row: no cache, no engine."""
    family, encoded, written = model.family, given.encoded, list(begun)
    features = family.tower_features(model.base, [encoded])
    while len(written) < limit and not (written and written[-1] in model.stop_ids):
        places = torch.arange(len(written)) + encoded.next_position
        positions = torch.cat(
            [encoded.position_ids, places.expand(len(encoded.position_ids), -1)], 1
        )
        ids = torch.tensor([[*encoded.ids, *written]])
        hidden = family.decode(model.base, ids, None, positions[:, None], features)
        logits = family.head(model.base)(hidden[0, -1])
        logits[model.banned] = -torch.inf
        written.append(int(logits.argmax()))
    return written


@pytest.mark.slow
@pytest.mark.parametrize("which", ["fresh", "direct"])
@pytest.mark.parametrize("mode", evaluation.MODES)
def test_a_forced_answer_is_the_greedy_one_after_that_beginning(
    request: pytest.FixtureRequest, which: str, mode: evaluation.Mode
) -> None:
    model: Policy = request.getfixturevalue(which)
    engine = Hf().start(model)
    batch = batch_of(model, 4)
    rollouts = evaluation.generate(engine, model, batch, mode, max_tokens=14)
    assert rollouts.batch is batch
    for given, (done,) in zip(batch.prompts, rollouts.completions, strict=True):
        opened = EMPTY if mode == "direct" else "<think>"
        begun = model.tokenizer(opened)["input_ids"]
        if mode == "think":
            begun = [*begun, done.token_ids[len(begun)]]
            first = model.tokenizer.decode(begun[-1:]).strip()
            assert first and not first.startswith("<")
        with torch.no_grad(), model.generating():
            assert list(done.token_ids) == slow_greedy(model, given, begun, 14)
        assert done.text.startswith(opened)
        assert len(done.logprobs) == len(done.token_ids)
        assert done.logprobs[: len(begun)] == (0.0,) * len(begun)
        assert done.parsed == templates.split(done.text, "think_or_not")


@pytest.mark.slow
def test_a_policy_that_never_thinks_is_forced_to(direct: Policy) -> None:
    engine = Hf().start(direct)
    batch = batch_of(direct, 4)
    free = engine.generate(batch, Sampling(n=1, max_tokens=40, greedy=True))
    assert {group[0].parsed.mode for group in free.completions} == {"direct"}
    made = evaluation.generate(engine, direct, batch, "think", max_tokens=40)
    assert "direct" not in {group[0].parsed.mode for group in made.completions}
    again = evaluation.generate(engine, direct, batch, "direct", max_tokens=40)
    assert [g[0].token_ids for g in again.completions] == [g[0].token_ids for g in free.completions]


def scorer() -> Scorer:
    rewards = [RewardConfig(verifier="box_iou"), RewardConfig(verifier="format", weight=0.1)]
    return Scorer({"noise": rewards}, ScoringConfig())


def evaluated(model: Policy, batches: list[PromptBatch], **plan: Any) -> evaluation.Evaluation:
    engine = Hf().start(model)
    with scorer() as judge:
        settings = EvaluationConfig(bootstrap_resamples=100, **plan)
        return evaluation.evaluate(iter(batches), engine, judge, settings, 40, policy=model)


def test_the_gain_is_the_mean_of_the_differences(direct: Policy, tmp_path: Path) -> None:
    whole = batch_of(direct, 5)
    batches = [PromptBatch(whole.prompts[:3]), PromptBatch(whole.prompts[3:])]
    found = evaluated(direct, batches, force_thinking=True, samples=2)
    numbers, intervals = found.result["metrics"], found.result["intervals"]
    assert numbers.keys() == intervals.keys()
    by_draw: dict[str, list[float]] = {}
    lengths: dict[str, list[int]] = {}
    for drawn, rollouts, rewards in found.scored:
        by_draw.setdefault(drawn, []).extend(rewards.total.mean(1).tolist())
        lengths.setdefault(drawn, []).extend(
            len(c.token_ids) for group in rollouts.completions for c in group
        )
    for mode in evaluation.MODES:
        one = by_draw[f"forced_{mode}"]
        assert numbers[f"forced/{mode}/reward"] == pytest.approx(sum(one) / 5)
        assert numbers[f"forced/{mode}/length"] == sum(lengths[f"forced_{mode}"]) / 5
    pairs = zip(by_draw["forced_think"], by_draw["forced_direct"], strict=True)
    gain = sum(think - answer for think, answer in pairs) / 5
    assert numbers["forced/gain/reward"] == pytest.approx(gain)
    assert numbers["forced/gain/noise/reward"] == pytest.approx(gain)
    assert numbers["forced/direct/share"] == 1.0
    assert numbers["mode/direct/share"] == 1.0
    assert numbers["mode/direct/reward"] == pytest.approx(numbers["reward"])
    assert numbers["length"] == sum(lengths["greedy"]) / 5
    assert numbers["sampled/length"] == sum(lengths["sampled"]) / 10
    assert {row["drawn"] for row in found.rows(tmp_path)} == set(evaluation.PREFIX)


def test_forcing_changes_nothing_else(fresh: Policy) -> None:
    batches = [batch_of(fresh, 2), batch_of(fresh, 3)]
    plain = evaluated(fresh, batches, samples=2).result["metrics"]
    more = evaluated(fresh, batches, samples=2, force_thinking=True).result["metrics"]
    assert plain.items() <= more.items()
    assert {key.split("/")[0] for key in more.keys() - plain.keys()} == {"forced"}


def test_only_prompts_that_begin_with_a_thought_are_forced(fresh: Policy) -> None:
    mixed = PromptBatch((asked(fresh, 0, "answer_only"), asked(fresh, 1), asked(fresh, 2, "none")))
    found = evaluated(fresh, [mixed], force_thinking=True)
    ids = {
        drawn: [p.sample.id for p in rollouts.batch.prompts] for drawn, rollouts, _ in found.scored
    }
    assert ids == {"greedy": ["0", "1", "2"], "forced_think": ["1"], "forced_direct": ["1"]}
    with pytest.raises(UserError, match="no source's template begins with a thought"):
        evaluated(fresh, [batch_of(fresh, 2, "caption_think_answer")], force_thinking=True)


# -------------------------------------------------------------------------------------- the whole


def test_sentences_name_what_is_drawn_and_leave_the_task_alone() -> None:
    plain, spoken = (
        build("card", "shapes", {"task": "counting", **more})
        for more in ({}, {"thought": "sentences"})
    )
    for row in plain.rows("demos")[:40]:
        before, after = plain.to_sample(row, "toy"), spoken.to_sample(row, "toy")
        assert before.demo is not None and after.demo is not None
        assert after == dataclasses.replace(before, demo=after.demo)
        assert after.demo == dataclasses.replace(before.demo, thought=after.demo.thought)
        names = [box.label for box in after.meta["boxes"]]
        assert after.demo.thought.count("I see a ") == len(names)
        assert all(f"I see a {name} with" in after.demo.thought for name in names)
    with pytest.raises(UserError, match="expected place for task reading, which has no shapes"):
        build("card", "shapes", {"task": "reading", "thought": "sentences"})


REDUCED = """run.steps=2 run.threads=1 run.report=true tracking.tensorboard=false sft.max_steps=6
sft.validate_from=100 sft.decay_steps=1 sft.batch_size=4 rollout.prompts=4 rollout.group_size=4
evaluation.limit=6 evaluation.every=2 evaluation.batch_size=4"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Callable[..., int]]]:
    """A reduced run of the shipped config, and a way to give more commands."""
    folder = tmp_path_factory.mktemp("think") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)

        def command(*arguments: str) -> int:
            patch.setattr(sys, "argv", ["vlmrl", *arguments])
            with pytest.raises(SystemExit) as exit_:
                cli.main()
            return int(exit_.value.code or 0)

        assert command("train", "think_or_not", f"run.dir={folder}", *REDUCED.split()) == 0
        yield folder, command


@pytest.mark.slow
def test_a_run_writes_both_forced_numbers_and_its_modes(
    ran: tuple[Path, Callable[..., int]],
) -> None:
    folder, _ = ran
    summary = json.loads((folder / "summary.json").read_text())
    numbers = summary["last_evaluation"]["metrics"]
    names = ["forced/think/box_iou", "forced/direct/box_iou", "forced/gain/box_iou", "length"]
    assert set(names) <= numbers.keys()
    assert numbers["forced/gain/length"] == pytest.approx(
        numbers["forced/think/length"] - numbers["forced/direct/length"]
    )
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert sum(line[f"mode/{mode}/share"] for mode in metrics.MODES) == pytest.approx(1.0)
    page = (folder / "report.html").read_text()
    assert all(title in page for title in ("reward, forced", "length, tokens", "Modes"))


@pytest.mark.slow
def test_vlmrl_eval_forces_too(
    ran: tuple[Path, Callable[..., int]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, command = ran
    out = folder.parent / "eval"
    asked = ["eval", str(folder), "--data", "shapes:test", "--limit", "5", "--out", str(out)]
    assert command(*asked, "--force-thinking") == 0
    assert "forced/gain/box_iou" in capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "evaluation.jsonl").read_text().splitlines()]
    texts = {how: [r for r in rows if r["drawn"] == how] for how in ("forced_direct", "greedy")}
    assert [len(found) for found in texts.values()] == [5, 5]
    for row in texts["forced_direct"]:
        assert row["completions"][0]["text"].startswith(EMPTY)
        assert row["prompt"].endswith("assistant\n")  # what was begun stands in the completion


def test_the_always_thinking_partner_differs_in_nothing_else() -> None:
    always = [
        "data.train.shapes.template=think_answer",
        "sft.sources.shapes.template=think_answer",
        "sft.thought_dropout=0",
    ]
    one, other = load("think_or_not"), load("think_or_not", always)
    assert one.rewards == other.rewards and one.rollout == other.rollout
    assert one.optimizer == other.optimizer
    assert one.model_copy(update={"data": other.data, "sft": other.sft}) == other
