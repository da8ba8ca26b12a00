"""Completions in chunks: what each chunk sees, the forward and the loss of all of them, and whole runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from helpers import small
from helpers.copy_engine import CopyEngine, RunningCopy
from helpers.shared_forward import numbers
from helpers.small import advantages
from vlmrl import plugins
from vlmrl.algorithms.base import LossInputs
from vlmrl.assemble.lifecycle import train
from vlmrl.config import parse
from vlmrl.config.exclusions import refuse_parts
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.evaluate import evaluate_model
from vlmrl.forward.packing import pack
from vlmrl.interaction import saved_completions
from vlmrl.interaction.chunks import Chunking
from vlmrl.interaction.driver import Driver
from vlmrl.runs.rollout_rows import TrainerLogprobs
from vlmrl.schema import PromptBatch

FIRST, CHUNKS = 10, Chunking(count=3, carry=6, head=2)
GROUP = Sampling(4, FIRST, 0.9, seed=3)


@pytest.fixture(scope="module")
def made():
    """A policy for which a fifth of all tokens end a completion, so that some have fewer chunks."""
    policy = small.policy()
    policy.temperature = 0.9
    policy.stop_ids = (*policy.stop_ids, *range(40, 60))
    return policy


class Threads(CopyEngine):
    """Hands over group by group, from a thread."""

    def start(self, policy):
        return RunningThreads(self, policy)


class RunningThreads(RunningCopy):
    def _generate(self, batch, sampling, finished, chance):
        drawn = self._hf.generate(batch, sampling)
        for number, group in enumerate(drawn.completions):
            if finished is not None:
                finished(number, group)
        return drawn


def drawn(made, images=(1, 0, 2), engine=None, sampling=GROUP, chunking=CHUNKS):
    run = Driver(engine or Hf(), {}, chunking=chunking).start(made)
    prompts = tuple(small.prompt(made, n, images=count) for n, count in enumerate(images))
    return run.generate(PromptBatch(prompts), sampling)


@pytest.fixture(scope="module")
def rollouts(made):
    return drawn(made)


def every(rollouts):
    pairs = zip(rollouts.batch.prompts, rollouts.completions, strict=True)
    return [(prompt, said) for prompt, group in pairs for said in group]


def carried(before, head, carry):
    """The slow reference: the first ids and the last ones of all that followed the question."""
    return [*before[:head], *before[len(before) - (carry - head) :]]


def test_a_chunk_begins_with_the_first_and_the_last_tokens_of_the_one_before(made, rollouts):
    counts = set()
    for _, said in every(rollouts):
        seen, kept = [], []
        for turn, chunk in zip(said.turns, said.chunks, strict=True):
            assert list(chunk.encoded.ids) == [*kept, *turn.token_ids]
            assert len(turn.token_ids) <= FIRST - len(kept)
            seen = [*kept, *turn.token_ids]
            kept = carried(seen, CHUNKS.head, CHUNKS.carry)
        assert said.token_ids == tuple(i for turn in said.turns for i in turn.token_ids)
        ended = said.token_ids[-1] in made.stop_ids
        assert said.finish_reason == ("stop" if ended else "length")
        assert ended or (len(said.chunks), len(seen)) == (CHUNKS.count, FIRST)
        assert not {*said.token_ids[:-1]} & {*made.stop_ids}
        counts.add(len(said.chunks))
    assert counts == {1, 2, 3}


def test_the_text_is_that_of_all_tokens_in_their_order(made, rollouts):
    for _, said in every(rollouts):
        words = [token for token in said.token_ids if token not in made.stop_ids]
        assert said.text == made.tokenizer.decode(words)


def test_log_probs_are_those_of_the_question_and_what_was_carried_over(made):
    rollouts = drawn(made, images=(0, 0))
    for prompt, said in every(rollouts):
        for sequence in said.sequences:
            ids = [*prompt.encoded.ids, *sequence.suffix.encoded.ids]
            with torch.no_grad(), made.generating():
                logits = made.base(input_ids=torch.tensor([ids])).logits[0].float()
            table = (logits / 0.9).log_softmax(-1)
            own = range(len(ids) - len(sequence.token_ids), len(ids))
            slow = [table[at - 1, ids[at]].item() for at in own]
            assert sequence.logprobs == pytest.approx(slow, abs=1e-5)


@pytest.mark.parametrize("sharing", [False, True])
def test_one_forward_gives_the_log_probs_of_every_chunk(made, rollouts, sharing):
    (batch,) = packed(rollouts, sharing=sharing)
    for micro in batch.micro:
        logprobs = numbers(made, micro, sharing)[0]
        assert (logprobs - micro.sampling_logprobs)[micro.mask].abs().max() < 1e-5
    assert sum(len(m.group) for m in batch.micro) == sum(len(s.chunks) for _, s in every(rollouts))
    assert sum(int(m.mask.sum()) for m in batch.micro) == batch.num_tokens
    assert batch.num_rollouts == 12


def packed(rollouts, values=None, sharing=False, micro_tokens=10**6):
    given = values or advantages(rollouts)
    return pack(
        rollouts, given, updates=1, micro_tokens=micro_tokens, max_tokens=18, sharing=sharing
    )


def slow_loss(how, chunks, num_rollouts, num_tokens, longest):
    """GRPO of chunks, a number at a time: `chunks` by rollout, of (new, old, advantage) by token."""
    total = 0.0
    for rollout in chunks:
        size, own = sum(len(chunk) for chunk in rollout), 0.0
        for chunk in rollout:
            for new, old, advantage in chunk:
                ratio = math.exp(new - old)
                own -= min(ratio * advantage, min(max(ratio, 0.8), 1.26) * advantage)
        total += {"sequence": own / size, "token": own, "sum": own, "constant": own / longest}[how]
    return total / (num_tokens if how == "token" else num_rollouts)


@pytest.mark.parametrize("how", ["sequence", "token", "sum", "constant"])
@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("micro_tokens", [10**6, 100])
def test_the_loss_is_that_of_whole_rollouts(made, rollouts, how, by_token, micro_tokens):
    given = advantages(rollouts)
    longest = max(said.num_tokens for _, said in every(rollouts))
    if by_token:
        noise = torch.randn(*rollouts.shape, longest, generator=torch.Generator().manual_seed(1))
        given = replace(given, values=noise)
    (batch,) = packed(rollouts, given, micro_tokens=micro_tokens)
    grpo = plugins.build("algorithm", "grpo", {"clip_high": 0.26, "aggregation": how})
    shift, loss = 0.3, 0.0
    for micro in batch.micro:
        old = micro.sampling_logprobs
        new = old + shift * torch.sin(micro.token_ids.float())
        rows = (new, old, old, None, micro.advantages, micro.mask, micro.weights)
        totals = (batch.num_tokens, batch.num_rollouts, batch.max_tokens)
        inputs = LossInputs(*rows, *totals, extra=micro.extra)
        loss += grpo.loss(inputs).loss.item()
    slow = []
    for p, group in enumerate(rollouts.completions):
        for g, said in enumerate(group):
            values, at, own = given.values[p, g].reshape(-1).tolist(), 0, []
            for turn in said.turns:
                of_chunk = []
                for token, old in zip(turn.token_ids, turn.logprobs, strict=True):
                    new = old + shift * math.sin(token)
                    of_chunk.append((new, old, values[at] if by_token else values[0]))
                    at += 1
                own.append(of_chunk)
            slow.append(own)
    tokens = sum(said.num_tokens for _, said in every(rollouts))
    assert loss == pytest.approx(slow_loss(how, slow, 12, tokens, 18), rel=1e-4)


def test_neither_company_nor_threads_change_what_is_drawn(made, rollouts):
    def ids(rollouts):
        return [[(c.token_ids, c.text, c.finish_reason) for c in g] for g in rollouts.completions]

    assert ids(drawn(made, (1,))) == ids(rollouts)[:1]
    assert ids(drawn(made, engine=Threads())) == ids(rollouts)


def test_a_limit_that_leaves_a_later_chunk_nothing_gives_whole_completions(made):
    short = drawn(made, sampling=replace(GROUP, max_tokens=6))
    assert {len(said.chunks) for _, said in every(short)} == {1}


def test_a_completion_comes_back_equal_from_a_checkpoint(made, rollouts):
    for prompt, said in every(rollouts):
        fields = json.loads(json.dumps(saved_completions.to_json(said, {})))
        back = saved_completions.from_json(made, prompt, fields, {})
        assert replace(back, chunks=()) == replace(said, chunks=())
        for ours, theirs in zip(back.chunks, said.chunks, strict=True):
            assert (ours.turns, ours.encoded.ids) == (theirs.turns, theirs.encoded.ids)
            assert torch.equal(ours.encoded.position_ids, theirs.encoded.position_ids)


def test_the_stored_log_probs_are_of_all_chunks(made, rollouts):
    class Observed:
        observe = None

    noted, policy = TrainerLogprobs(), Observed()
    (batch,) = packed(rollouts)
    with noted.noting(policy, rollouts, True):
        for micro in batch.micro:
            policy.observe(micro, micro.sampling_logprobs)
    for p, group in enumerate(rollouts.completions):
        for g, said in enumerate(group):
            assert noted.by_place[p, g] == pytest.approx(said.logprobs)


def config_of(folder, **more):
    return {
        "run": {"dir": str(folder), "steps": 2, "save_every": 1},
        "resume": "auto",
        "model": {"build": {"family": "qwen2_5_vl"}},
        "data": {"train": [{"card": "shapes"}]},
        "rollout": {
            "prompts": 2,
            "group_size": 4,
            "max_tokens": 10,
            "chunks": {"count": 3, "carry": 6, "head": 2},
        },
        "rewards": [{"verifier": "box_iou"}],
        "control": {"random_rewards": 0.5},
        "evaluation": None,
        **more,
    }


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"rollout": {"max_tokens": 8, "chunks": {"carry": 8}}}, "carry: expected fewer"),
        ({"rollout": {"max_tokens": 8, "chunks": {"carry": 4, "head": 4}}}, "head: expected fewer"),
        ({"data": {"train": [{"card": "shapes", "tools": ["crop"]}]}}, "'shapes' has tools"),
        ({"strategies": ["majority"]}, "strategy 'majority'"),
        ({"algorithm": "gspo"}, "algorithm 'gspo' with these options weighs whole"),
        (
            {"algorithm": {"name": "grpo", "options": {"correction_level": "sequence"}}},
            "algorithm 'grpo' with these options weighs whole",
        ),
    ],
)
def test_what_cannot_be_in_chunks_is_refused(tmp_path, more, wanted):
    with pytest.raises(UserError, match=wanted):
        refuse_parts(parse(config_of(tmp_path, **more)))


def test_shaping_by_length_knows_the_length_of_all_chunks(tmp_path):
    assert parse(config_of(tmp_path)).rollout.longest == 10 + 2 * 4


@pytest.mark.slow
def test_a_run_in_chunks_goes_on_from_a_checkpoint_as_if_never_stopped(tmp_path):
    def lines(name, *steps):
        for step in steps:
            stated = config_of(tmp_path / name)
            stated["run"]["steps"] = step
            assert train(parse(stated))["steps"] == step
        return (tmp_path / name / "rollouts/step-2.jsonl").read_text().splitlines()

    straight = lines("straight", 2)
    assert lines("resumed", 1, 2) == straight
    last = json.loads((tmp_path / "straight/metrics.jsonl").read_text().splitlines()[-1])
    said = [c for row in map(json.loads, straight) for c in row["completions"]]
    written = [sum(s["by"] == "policy" for s in c["segments"]) for c in said]
    assert {segment["by"] for c in said for segment in c["segments"][1::2]} == {"carried"}
    assert last["rollout/chunks"] == sum(written) / len(written) > 2
    lines_of_tokens = (tmp_path / "straight/tokens/step-2.jsonl").read_text().splitlines()
    for stored in json.loads(lines_of_tokens[0])["completions"]:
        assert stored["trainer"] == pytest.approx(stored["engine"], abs=1e-3)
    weights = [
        (tmp_path / n / "checkpoints/step-2/model.safetensors") for n in ("straight", "resumed")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    found = evaluate_model(str(tmp_path / "straight"), "shapes:val", limit=2)
    assert found["metrics"]["rollout/chunks"] > 2
    assert found["manifest"]["chunks"] == {"count": 3, "carry": 6, "head": 2}
