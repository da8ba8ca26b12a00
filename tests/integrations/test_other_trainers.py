"""Our verifiers in TRL, verl and ms-swift: the same scores, faults masked or raised."""

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vlmrl.system.torchvision_shim  # noqa: F401  (before transformers)
from helpers.small import loaded
from helpers.text_model import save_text_model
from vlmrl import plugins
from vlmrl.config import RewardConfig, ScoringConfig
from vlmrl.errors import UserError
from vlmrl.features.integrations.ms_swift import orm
from vlmrl.features.integrations.other_trainers import message_text
from vlmrl.features.integrations.trl import reward_function
from vlmrl.features.integrations.verl import compute_score, easy_r1_compute_score
from vlmrl.schema import Completion, Frame, Parsed, Sample, Truth
from vlmrl.scoring.scorer import Scorer

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "adaptors"
TRUTH = {"boxes": [[20, 10, 120, 60]]}
MEDIA = {"width": 200, "height": 100}
RIGHT = "<think>so</think><answer>[20, 10, 120, 60]</answer>"
HALF = "<think>so</think><answer>[20, 10, 70, 60]</answer>"
LOOSE = "<answer>[20, 10, 120, 60]</answer>"

MINE = """
def moody(answer):
    if answer == "bad":
        raise ValueError("no idea")
    return float(answer)

def scaled(answer, factor):
    return float(answer) * factor
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path}/mine.py"


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def columns(count: int, **more: Any) -> dict[str, Any]:
    return {"truth": [TRUTH] * count, "media": [MEDIA] * count, **more}


# ------------------------------------------------------------------------------------------- TRL


def test_a_trl_reward_function_pays_what_the_scorer_pays() -> None:
    reward = reward_function(["box_iou", "format"])
    assert reward.__name__ == "box_iou+format"
    got = reward(["?"] * 3, [chat(RIGHT), chat(HALF), LOOSE], **columns(3))
    assert got == pytest.approx([2.0, 1.5, 1.0])


def test_a_truth_may_be_json_text_and_a_picture_gives_its_size() -> None:
    from PIL import Image

    reward = reward_function("box_iou")
    text, picture = json.dumps({**TRUTH, "number": None}), Image.new("RGB", (200, 100))
    assert reward(["?"], [RIGHT], truth=[text], image=[picture]) == pytest.approx([1.0])
    assert reward(["?"], [RIGHT], truth=[text], images=[[picture]]) == pytest.approx([1.0])


def test_a_fault_becomes_none_and_curves_are_logged(mine: str) -> None:
    seen: dict[str, float] = {}
    reward = reward_function(f"{mine}:moody", ScoringConfig(fault_limit=1.0), template="none")
    truths = {"truth": [{"number": 1}] * 3}
    got = reward(["?"] * 3, ["0.5", "bad", "1"], log_metric=seen.__setitem__, **truths)
    assert got == [0.5, None, 1.0]
    assert seen == {"vlmrl/moody": 0.75, "vlmrl/masked": pytest.approx(1 / 3)}


def test_a_verifier_that_scores_nothing_at_first_stops_the_trainer_with_its_reason(
    mine: str,
) -> None:
    reward = reward_function(f"{mine}:moody", template="none")
    truths = {"truth": [{"number": 1}] * 2}
    with pytest.raises(
        UserError, match=r"none of 2 completions .* 2 of them: moody: ValueError: no idea"
    ):
        reward(["?"] * 2, ["bad", "bad"], **truths)
    assert reward(["?"] * 2, ["0.5", "bad"], **truths) == [0.5, None]
    assert reward(["?"] * 2, ["bad", "bad"], **truths) == [None, None]


def test_schedules_follow_the_foreign_trainers_steps(mine: str) -> None:
    step = {"factor": {"schedule": [[0, 0.1], [0.5, 0.9]]}}
    reward = reward_function(RewardConfig(verifier=f"{mine}:scaled", options=step), template="none")
    truths = {"truth": [{"number": 1}]}
    got = [
        reward(["?"], ["1"], trainer_state=SimpleNamespace(global_step=n, max_steps=10), **truths)
        for n in (0, 4, 5, 9)
    ]
    assert got == [[0.1], [0.1], [0.9], [0.9]]


def test_a_group_verifier_needs_whole_groups() -> None:
    with pytest.raises(UserError, match="give group_size"):
        reward_function(["box_iou", "length_kimi"])
    reward = reward_function(["box_iou", "length_kimi"], group_size=2)
    ids = {"completion_ids": [[1]] * 4}
    assert len(reward(["a", "a", "b", "b"], [RIGHT] * 4, **columns(4), **ids)) == 4
    with pytest.raises(UserError, match="a group has 1 completions here, not 2"):
        reward(["a", "b", "b", "a"], [RIGHT] * 4, **columns(4))
    other = [TRUTH, {"boxes": [[0, 0, 9, 9]]}] * 2
    with pytest.raises(UserError, match="a group has 1 completions here, not 2"):
        reward(["a"] * 4, [RIGHT] * 4, **columns(4, truth=other))


def test_a_bad_row_of_the_data_set_is_named() -> None:
    reward = reward_function("box_iou")
    with pytest.raises(UserError, match="truth has no key 'box'"):
        reward(["?"], [RIGHT], truth=[{"box": [1]}], media=[MEDIA])
    with pytest.raises(UserError, match="as JSON"):
        reward(["?"], [RIGHT], truth=["{"], media=[MEDIA])


def test_text_is_found_in_every_form_of_message() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message_text([{"role": "user", "content": parts}]) == "a b"
    assert message_text(chat("x")) == "x" == message_text("x")
    with pytest.raises(UserError, match="text or chat messages, got"):
        message_text(3)


@pytest.mark.slow
def test_trl_trains_with_our_reward_function(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    model = save_text_model(tmp_path / "model")
    sys.path.insert(0, str(EXAMPLES))
    try:
        logs = importlib.import_module("trl_grpo").main(model, str(tmp_path / "out"))
    finally:
        sys.path.remove(str(EXAMPLES))
    step = next(log for log in logs if "reward" in log)
    assert step["rewards/box_iou+format/mean"] == step["reward"] == 0.0
    assert step["vlmrl/box_iou"] == step["vlmrl/format"] == step["vlmrl/masked"] == 0.0


@pytest.mark.slow
def test_trl_trains_a_group_verifier_on_prompts_with_images(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset  # noqa: TID251  (TRL takes nothing else)
    from PIL import Image

    made = loaded("qwen2_5_vl")
    made.model.save_pretrained(tmp_path / "model")
    made.processor.save_pretrained(tmp_path / "model")
    rows = [
        {
            "prompt": [{"role": "user", "content": "Where is it?"}],
            "image": Image.new("RGB", (56, 56), colour),
            "truth": {"boxes": [[1, 2, 30, 40]]},
        }
        for colour in ("red", "blue")
    ]
    trainer = trl.GRPOTrainer(
        model=str(tmp_path / "model"),
        args=trl.GRPOConfig(
            str(tmp_path / "out"),
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=4,
            max_steps=1,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_list(rows),
        reward_funcs=reward_function(["box_iou", "length_kimi"], group_size=2),
    )
    trainer.train()
    step = next(log for log in trainer.state.log_history if "reward" in log)
    assert step["vlmrl/box_iou"] == step["vlmrl/masked"] == 0.0
    assert "vlmrl/length_kimi" in step


def test_trls_own_functions_are_verifiers_here() -> None:
    pytest.importorskip("trl")
    rewards = [
        RewardConfig(verifier="trl.rewards:think_format_reward"),
        RewardConfig(verifier="trl.rewards.other_rewards:get_soft_overlong_punishment", name="x"),
    ]
    with Scorer({"s": rewards[:1]}, ScoringConfig()) as scorer:
        texts = ["<think>a</think>b", "b"]
        group = [Completion(t, Parsed(t, None, "none", True, 1.0), Frame()) for t in texts]
        judged = scorer.judge([group], [Sample("1", "s", ("?",), Truth())])[0]
    assert [j.reward for j in judged] == [1.0, 0.0]
    # a factory is no reward function: what it asks for shows at once
    with pytest.raises(UserError, match="asks for"):
        Scorer({"s": rewards[1:]}, ScoringConfig())


# -------------------------------------------------------------------------------------- ms-swift


def test_an_orm_pays_what_the_scorer_pays() -> None:
    reward = orm(["box_iou", "format"])(args=None)
    assert type(reward).__name__ == "box_iou+format"
    messages = [[{"role": "user", "content": "?"}, *chat(RIGHT)]] * 2
    got = reward([RIGHT, HALF], **columns(2), messages=messages, prompt_id=["a", "a"])
    assert got == pytest.approx([2.0, 1.5])


def test_an_orm_groups_by_prompt_id() -> None:
    reward = orm(["box_iou", "length_kimi"], group_size=2)()
    assert len(reward([RIGHT, HALF] * 2, **columns(4), prompt_id=["a", "b", "a", "b"])) == 4
    with pytest.raises(UserError, match="a group has 1"):
        reward([RIGHT, HALF], **columns(2), prompt_id=["a", "b"])


def test_ms_swift_calls_our_orm(mine: str) -> None:
    algorithm = pytest.importorskip("swift.rl_core.grpo_algorithm")
    import torch
    from swift.rewards import orms
    from swift.rl_core.data import GRPOSample

    importlib.import_module("docs.examples.adaptors.ms_swift_plugin")
    faulty = orm(f"{mine}:moody", ScoringConfig(fault_limit=1.0), template="none")()
    rows = [
        {
            "messages": [{"role": "user", "content": "?"}, *chat(text)],
            **{"truth": TRUTH},
            "media": MEDIA,
        }
        for text in (RIGHT, HALF)
    ]
    samples = [GRPOSample.from_row(row) for row in rows]
    got = algorithm.compute_rewards_per_func(
        samples, [orms["vlmrl_box"](args=None), faulty], [None, None], torch.device("cpu")
    )
    assert got[:, 0].tolist() == pytest.approx([2.0, 1.5])
    assert got[:, 1].isnan().all()  # what the function cannot read is masked, not 0


# ----------------------------------------------------------------------------------- verl, EasyR1

GROUND_TRUTH = json.dumps({"truth": TRUTH, "media": MEDIA})


def test_compute_score_pays_what_the_scorer_pays() -> None:
    compute = compute_score(["box_iou", "format"])
    paid = compute(data_source="x", solution_str=HALF, ground_truth=GROUND_TRUTH, extra_info={})
    assert paid == {"score": pytest.approx(1.5), "fault": 0.0}


def test_where_nothing_can_be_masked_a_fault_raises_unless_told_otherwise(mine: str) -> None:
    truth = {"truth": {"number": 1}}
    with pytest.raises(RuntimeError, match="moody: ValueError: no idea"):
        compute_score(f"{mine}:moody", template="none")("x", "bad", truth)
    given = compute_score(f"{mine}:moody", template="none", on_fault=0.3)
    assert given("x", "bad", truth) == {"score": 0.3, "fault": 1.0}


def test_easy_r1_gets_a_batch_with_every_component() -> None:
    compute = easy_r1_compute_score(["box_iou", "format"])
    rows = [
        {"response": t, "response_length": 9, "ground_truth": GROUND_TRUTH} for t in (HALF, LOOSE)
    ]
    assert compute(rows) == [
        {"overall": pytest.approx(1.5), "fault": 0.0, "box_iou": pytest.approx(0.5), "format": 1.0},
        {"overall": pytest.approx(1.0), "fault": 0.0, "box_iou": pytest.approx(1.0), "format": 0.0},
    ]


def test_a_ground_truth_of_another_form_is_refused() -> None:
    with pytest.raises(UserError, match="expected a ground_truth object with truth and media"):
        compute_score("box_iou")("x", RIGHT, json.dumps(TRUTH))


def test_verls_reward_manager_calls_our_function() -> None:
    naive = pytest.importorskip("verl.experimental.reward_loop.reward_manager.naive")
    import torch
    from verl import DataProto
    from verl.utils.import_utils import load_extern_object

    compute = load_extern_object(str(EXAMPLES / "verl_reward.py"), "compute")
    tokenizer = SimpleNamespace(decode=lambda ids, **_: HALF)
    data = DataProto.from_dict(
        tensors={"responses": torch.ones(1, 4).long(), "attention_mask": torch.ones(1, 8).long()},
        non_tensors={
            "data_source": ["x"],
            "reward_model": [{"ground_truth": GROUND_TRUTH}],
            "extra_info": [{}],
        },
    )

    async def run() -> dict[str, Any]:
        manager = naive.NaiveRewardManager(SimpleNamespace(), tokenizer, compute)
        scored: dict[str, Any] = await manager.run_single(data)
        return scored

    assert asyncio.run(run())["reward_score"] == pytest.approx(1.5)


# ---------------------------------------------------------------------------------------- imports


@pytest.mark.slow
def test_no_verifier_and_no_adaptor_imports_torch() -> None:
    modules = [f"vlmrl.rewards.{name}" for name in plugins.names("verifier")]
    modules += [
        f"vlmrl.features.integrations.{name}"
        for name in ("other_trainers", "trl", "ms_swift", "verl")
    ]
    script = f"import sys, {', '.join([*modules, 'vlmrl.scoring.scorer'])}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
