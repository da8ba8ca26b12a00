"""Several processes do what one does: the same update, one run folder, one end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from helpers import ranks
from helpers.daily import due, marked
from helpers.kills import ACTING
from helpers.runs import TINY, metric_lines, torchrun
from vlmrl.assemble import lifecycle
from vlmrl.config import ModelConfig, load
from vlmrl.config.exclusions import refuse_parts
from vlmrl.engines.base import Capabilities
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.system.distributed import warn_of_network

ONE_STEP = [
    *TINY,
    "run.steps=1",
    "sft=null",
    "evaluation=null",
    "checks={media_ablation_every: 0, parity_every: 0}",
]
"""A step of GRPO and nothing else."""


@pytest.fixture(scope="module")
def by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one rank."""
    folder = tmp_path_factory.mktemp("one")
    ranks.continued(folder, None, "step-1")
    return folder


@pytest.fixture(scope="module")
def folder_of_two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, by_one: Path
) -> Path:
    """Where two ranks wrote what each case came to, and their checkpoints."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = due(request, ranks.CASES, ranks.DAILY)
    done = torchrun(str(Path(ranks.__file__)), str(folder), str(by_one), *cases, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def by_two(folder_of_two: Path) -> list[dict[str, Any]]:
    """What each case came to on two ranks, by rank."""
    paths = [folder_of_two / f"rank-{rank}.pt" for rank in range(2)]
    return [torch.load(path, weights_only=True) for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(ranks.CASES, ranks.DAILY))
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_give_the_update_of_one(strategy, name, by_two, tmp_path):
    alone = ranks.outcome(name, tmp_path)
    exact = ranks.CASES[name].model.get("dtype") != "bfloat16"
    close, relative = (1e-6, 1e-4) if exact else (1e-3, 2e-2)
    for found in (of_rank[strategy] for of_rank in by_two):
        assert found[name]["weights"].keys() == alone["weights"].keys()
        for key, value in alone["weights"].items():
            sharded = found[name]["weights"][key]
            # Bounds of Gemma 4's layers are infinite.
            gap = (sharded - value).abs().where(sharded != value, 0.0)
            assert gap.max() <= close, key
        for key, value in alone["metrics"].items():
            assert found[name]["metrics"][key] == pytest.approx(value, rel=relative, abs=1e-5), key


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    assert found.keys() == expected.keys()
    return all((found[k] - value).abs().max() <= 1e-6 for k, value in expected.items())


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_any_number_of_ranks(by_one, by_two, folder_of_two):
    expected = ranks.continued(by_one, "step-1", "step-2")
    for of_rank in by_two:
        for way, found in of_rank["continued"].items():
            assert close(found, expected), way
    assert close(ranks.continued(folder_of_two, "step-1", "step-2"), expected)
    saved, expected = (
        {
            name: weight
            for file in (folder / "checkpoints/step-1").glob("model*.safetensors")
            for name, weight in safetensors.torch.load_file(file).items()
        }
        for folder in (folder_of_two, by_one)
    )
    assert close(saved, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "adapter"])
def test_no_rank_holds_all_weights_where_they_are_gathered(name, by_two):
    for found in (of_rank["counted"][name] for of_rank in by_two):
        assert found["given"] == found["whole"] > 4 * found["largest"]
        assert found["largest"] <= found["held"] <= 2 * found["largest"] + found["adapters"] + 4096


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "adapter"])
def test_no_rank_holds_all_weights_at_a_sync_and_only_the_sender_copies_any(name, by_two):
    for rank, found in enumerate(of_rank["counted"][name] for of_rank in by_two):
        most = 2 * found["largest"] + found["adapters"] + 4096
        assert found["sync"]["held"] <= most and found["sync"]["left"] == 0
        assert found["sync"]["files"] == 0 or rank == 0
        assert found["taken"]["held"] <= most and found["taken"]["left"] == 0
        assert found["taken"]["given"] == found["whole"]
    sender, other = (of_rank["counted"][name] for of_rank in by_two)
    assert sender["whole"] < sender["sync"]["files"] < 1.1 * sender["whole"]
    assert sender["sync of whole"]["files"] == sender["sync"]["files"]
    assert other["sync of whole"]["held"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "adapter"])
def test_each_rank_holds_and_writes_its_share_of_a_checkpoint(name, by_two):
    ranks.require_shares(
        [of_rank["counted"][name]["parts"] for of_rank in by_two], by_two[0]["counted"][name]
    )


@pytest.mark.slow
def test_a_bfloat16_engine_gathers_half_as_many_bytes(by_two):
    for found in (of_rank["counted"]["even"] for of_rank in by_two):
        assert found["half"]["held"] <= found["largest"] + 0.5 * found["largest"] + 4096
        assert found["half"]["files"] < 0.6 * found["sync"]["files"] or not found["half"]["files"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ranks.READ)
def test_every_rank_reads_its_rows_of_a_model_and_no_more(name, by_two, folder_of_two):
    family, more = ranks.READ[name]
    config = ModelConfig(path=str(folder_of_two / family), **more)
    torch.manual_seed(0)
    alone = Policy(*load_model(config), config)
    for found in (of_rank["read"][name] for of_rank in by_two):
        assert found["in files"]
        # Its rows as read and as kept, and what is in no layer, which the first forward gathers.
        assert found["held"] <= 1.5 * found["slices"] + 2 * found["loose"] + 4096
        for kind, expected in (("weights", alone.weights()), ("adapter", alone.training_state())):
            assert found[kind].keys() == expected.keys()
            for key, value in expected.items():
                assert torch.equal(found[kind][key].float(), value), key
    again = load_model(ModelConfig(path=str(folder_of_two / f"{name}, saved by two")))
    for key, value in again.model.state_dict().items():
        assert torch.equal(value, alone.weights()[key]), key


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole run on two ranks: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("two") / "run"
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={folder}", *TINY)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_a_run_of_two_ranks_is_the_run_of_one_until_it_draws(run_of_two, tmp_path):
    folder, said = run_of_two
    alone = tmp_path / "run"
    lifecycle.train(load("quickstart", [f"run.dir={alone}", *TINY]))
    assert said.count("evaluation at step 0") == 1
    here, there = lines(folder / "sft.jsonl"), lines(alone / "sft.jsonl")
    assert [x["step"] for x in here] == [x["step"] for x in there]
    assert [x["loss"] for x in here] == pytest.approx([x["loss"] for x in there], rel=1e-5)
    first = [json.loads((f / "evals/step-0.json").read_text()) for f in (folder, alone)]
    for measured in ("metrics", "intervals"):
        greedy = [
            {k: v for k, v in f[measured].items() if not k.startswith("sampled/")} for f in first
        ]
        assert greedy[0] == greedy[1]
    files = {p.name for p in alone.iterdir()}
    assert {p.name for p in folder.iterdir()} == files | {"ranks.json"}
    assert len(metric_lines(folder)) == 5
    asked = [[x["id"] for x in lines(f / "rollouts/step-1.jsonl")] for f in (folder, alone)]
    assert asked[0] == asked[1]
    row = lines(folder / "rollouts/step-1.jsonl")[1]
    assert (folder / "rollouts/media" / row["media"][0]["thumbnail"]).is_file()


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(run_of_two, tmp_path):
    folder, _ = run_of_two
    more = [f"run.dir={folder}", *TINY, "run.steps=6", "resume=auto"]
    assert lifecycle.train(load("quickstart", more))["finished"]
    more += ["run.steps=7", "distributed.strategy=fsdp2"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", *more)
    assert done.returncode == 0, done.stderr
    assert [x["step"] for x in metric_lines(folder)] == list(range(1, 8))
    states = [
        json.loads((folder / f"checkpoints/step-{n}/trainer/state.json").read_text())
        for n in (6, 7)
    ]
    assert [state["loader"]["draws"] for state in states] == [24, 28]


@pytest.mark.slow
def test_an_exception_on_one_rank_ends_all(tmp_path):
    part = tmp_path / "breaks.py"
    part.write_text(
        "import os\n"
        "from vlmrl.parts.algorithms.grpo import Grpo\n"
        "class Breaks(Grpo):\n"
        "    'Breaks on one rank.'\n"
        "    def advantages(self, rewards, rollouts, progress):\n"
        "        if os.environ['RANK'] == '1':\n"
        "            raise RuntimeError('it broke here')\n"
        "        return Grpo.advantages(self, rewards, rollouts)\n"
    )
    arguments = [f"run.dir={tmp_path / 'run'}", *TINY, f"algorithm={part}:Breaks"]
    arguments += ["evaluation=null", "sft=null"]
    done = torchrun("-m", "vlmrl", "train", "quickstart", *arguments)
    assert done.returncode != 0
    assert "failed: RuntimeError: it broke here" in done.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], r"rollout\.prompts: expected at least 8, .* got 4"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(more, message):
    with pytest.raises(UserError, match=message):
        refuse_parts(load("quickstart", [*TINY, *more]), world=8)


def test_an_engine_for_one_process_is_refused_in_several(monkeypatch):
    monkeypatch.setattr(Hf, "capabilities", Capabilities())
    with pytest.raises(UserError, match="engine 'hf' works in one process only, got 8"):
        refuse_parts(load("quickstart", ["engine=hf", "rollout.prompts=8"]), world=8)


@pytest.mark.parametrize(
    ("environment", "warned"),
    [
        ({}, False),
        ({"MASTER_ADDR": "127.0.0.1"}, False),
        ({"MASTER_ADDR": "node-7"}, True),
        ({"MASTER_ADDR": "10.0.0.7", "RANK": "1"}, False),
        ({"MASTER_ADDR": "10.0.0.7", "GLOO_SOCKET_IFNAME": "eth1"}, False),
    ],
)
def test_a_meeting_point_that_others_can_reach_is_warned_of_once(
    environment: dict[str, str], warned: bool
) -> None:
    said = warn_of_network(environment)
    assert (said is not None and environment["MASTER_ADDR"] in said) == warned


@pytest.mark.nightly
def test_completions_in_chunks_on_two_ranks_are_those_of_one(tmp_path):
    more = [
        *ONE_STEP,
        "run.rollouts_every=1",
        "rollout.max_tokens=8",
        "rollout.chunks={count: 3, carry: 4, head: 1}",
        "control.random_rewards=0.5",
    ]
    lifecycle.train(load("quickstart", [f"run.dir={tmp_path / 'one'}", *more]))
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={tmp_path / 'two'}", *more)
    assert done.returncode == 0, done.stderr
    of_one, of_two = (lines(tmp_path / name / "rollouts/step-1.jsonl") for name in ("one", "two"))
    assert [row["completions"] for row in of_two] == [row["completions"] for row in of_one]
    (alone,), (together,) = (metric_lines(tmp_path / name) for name in ("one", "two"))
    assert 0.5 < together.pop("update/useful_share") <= 1
    assert 1 < alone["rollout/chunks"] <= 3 and alone["update/grad_norm"] > 0
    assert together == pytest.approx(alone, rel=1e-3, abs=1e-6)


@pytest.mark.nightly
def test_rollouts_of_several_turns_on_two_ranks_are_those_of_one(tmp_path):
    engine = f"{Path(ranks.__file__).parent}/asking_engine.py:AskingHf"
    more = [
        *ONE_STEP,
        *ACTING,
        "run.rollouts_every=1",
        f"engine.name={engine}",
    ]
    lifecycle.train(load("quickstart", [f"run.dir={tmp_path / 'one'}", *more]))
    done = torchrun("-m", "vlmrl", "train", "quickstart", f"run.dir={tmp_path / 'two'}", *more)
    assert done.returncode == 0, done.stderr
    of_one, of_two = (lines(tmp_path / name / "rollouts/step-1.jsonl") for name in ("one", "two"))
    for rows in (of_one, of_two):
        for said in (said for row in rows for said in row["completions"]):
            for call in (call for s in said["segments"] for call in s.get("calls", ())):
                del call["seconds"]
    assert [row["completions"] for row in of_two] == [row["completions"] for row in of_one]
    (alone,), (together,) = (metric_lines(tmp_path / name) for name in ("one", "two"))
    timed = {"tool/crop/seconds": 0.0, "tool/move/seconds": 0.0}
    assert 0.5 < together.pop("update/useful_share") <= 1
    assert 1 < alone["rollout/turns"] < 3
    assert timed.keys() <= alone.keys() and "world/reward" in alone
    assert {**together, **timed} == pytest.approx({**alone, **timed}, rel=1e-3, abs=1e-6)
