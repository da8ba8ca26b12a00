"""`vlmrl export`: adapters and merged weights generate the run's own tokens elsewhere; the card; refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
import yaml
from peft import AutoPeftModel, PeftModel
from PIL import Image

import vlmrl.config
from helpers.runs import TINY
from helpers.small import CORPUS, model_config
from vlmrl.assemble import lifecycle
from vlmrl.data.prompt import make_prompt
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.errors import UserError
from vlmrl.features.export.export import _rewards, export_run, without_paths
from vlmrl.models.loading import load_model
from vlmrl.policy import adapter_folder
from vlmrl.policy.policy import Policy
from vlmrl.schema import Media, PromptBatch, Sample, Truth

# The cold start moves the weights; the rewards of one step of untrained text do not.
SHORT = [
    *TINY,
    "run.steps=1",
    "run.save_every=1",
    "sft.max_steps=2",
    "sft.lr=3e-2",
    "evaluation.limit=4",
    "rewards=[box_iou, {verifier: format, weight: 0.5}]",
    "evaluation.metric=box_iou",
]
AUTO = transformers.AutoModelForImageTextToText
QUESTION = "Where is the red shape?"
IMAGE = Image.effect_noise((56, 56), 80).convert("RGB")


def train(folder: Path, *more: str) -> Path:
    config = vlmrl.config.load("quickstart", [*SHORT, f"run.dir={folder}", *more])
    lifecycle.train(config)
    return folder


def of_base(base: Path, *more: str) -> list[str]:
    lora = "model.lora={rank: 4, alpha: 16, towers: [vision, language]}"
    return ["model.build=null", f"model.path={base}", lora, *more]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model of its own: a checkpoint folder with a model card."""
    folder = tmp_path_factory.mktemp("private-models") / "Small-VL"
    model, processor, _ = load_model(model_config(), CORPUS, seed=0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Small-VL\n")
    return folder


@pytest.fixture(scope="module")
def lora_run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "lora", *of_base(base))


@pytest.fixture(scope="module")
def built_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "built")


def plain_tokens(model: Any, folder: Path) -> list[int]:
    """What transformers alone makes of model and processor, greedily."""
    processor = transformers.AutoProcessor.from_pretrained(folder)
    content = [{"type": "image", "image": IMAGE}, {"type": "text", "text": QUESTION}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    made = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    return made[0, inputs["input_ids"].shape[1] :].tolist()


def policy_of(run: Path) -> Policy:
    """The policy as the run left it: with LoRA the base model with its adapter, never merged."""
    tree = json.loads((run / "config.json").read_text())["model"]
    last = run / "checkpoints/step-1"
    if tree["lora"] is None:
        tree |= {"path": str(last), "build": None}
    settings = vlmrl.config.ModelConfig(**tree)
    made = Policy(*load_model(settings), settings)
    if state := adapter_folder.load(last):
        made.restore(state)
    return made


def own_tokens(run: Path) -> list[int]:
    """What the run's own engine generates greedily."""
    made = policy_of(run)
    sample = Sample("0", "noise", (Media("image", data=b"-"), QUESTION), Truth())
    batch = PromptBatch((make_prompt(sample, [IMAGE], made.family, made.processor),))
    engine = Hf().start(made)
    rollouts = engine.generate(batch, Sampling(n=1, max_tokens=12, greedy=True))
    return list(rollouts.completions[0][0].token_ids)


# ------------------------------------------------------------------------------------------ weights


def test_a_checkpoint_of_a_lora_run_holds_a_peft_adapter(lora_run: Path, base: Path) -> None:
    folder = lora_run / "checkpoints/step-1" / adapter_folder.FOLDER
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 16)
    assert config["base_model_name_or_path"] == str(base)
    model = PeftModel.from_pretrained(AUTO.from_pretrained(base), folder)
    state = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    loaded = {n: p for n, p in model.state_dict().items() if ".lora_" in n}
    assert {n.replace(".default.", ".") for n in loaded} == set(state)
    assert any(p.abs().max() > 0 for n, p in state.items() if ".lora_B." in n)
    assert plain_tokens(model, base) == own_tokens(lora_run)
    assert plain_tokens(AutoPeftModel.from_pretrained(folder), base) == own_tokens(lora_run)


def test_an_exported_adapter_writes_the_runs_tokens(
    lora_run: Path, base: Path, tmp_path: Path
) -> None:
    out = export_run(str(lora_run), out=tmp_path / "adapter")
    names = {"adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer.json"}
    assert names <= {p.name for p in out.iterdir()}
    assert not list(out.rglob("trainer")) and not (out / "model.safetensors").exists()
    plain = AUTO.from_pretrained(base)
    before = plain_tokens(plain, base)
    after = plain_tokens(PeftModel.from_pretrained(plain, out), out)
    assert after == own_tokens(lora_run)
    assert after != before


@pytest.mark.parametrize("which", ["lora_run", "built_run"])
def test_merged_weights_write_the_runs_tokens_in_plain_transformers(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(which)
    out = export_run(str(run / "checkpoints/step-1"), "merged", out=tmp_path / "merged")
    assert plain_tokens(AUTO.from_pretrained(out), out) == own_tokens(run)
    whole = run / "checkpoints/step-1"
    assert plain_tokens(AUTO.from_pretrained(whole), whole) == own_tokens(run)


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_the_dtype_is_that_asked_for(form: Any, lora_run: Path, tmp_path: Path) -> None:
    out = export_run(str(lora_run), form, "bfloat16", tmp_path / "out")
    for file in out.glob("*.safetensors"):
        weights = safetensors.torch.load_file(file)
        assert weights and {w.dtype for w in weights.values()} == {torch.bfloat16}
    if form == "merged":
        assert AUTO.from_pretrained(out).dtype == torch.bfloat16


def test_shards_are_cast_one_by_one_and_their_index_stays_true(
    built_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(built_run, tmp_path / "run")
    last = run / "checkpoints/step-1"
    model = AUTO.from_pretrained(last)
    (last / "model.safetensors").unlink()
    (last / "trainer/checksums.json").unlink()
    state = json.loads((last / "trainer/state.json").read_text())
    (last / "trainer/state.json").write_text(json.dumps({**state, "format": 1}))
    model.save_pretrained(last, max_shard_size="500KB")
    out = export_run(str(last), dtype="bfloat16", out=tmp_path / "out")
    assert len(list(out.glob("*.safetensors"))) > 1
    index = json.loads((out / "model.safetensors.index.json").read_text())
    again = AUTO.from_pretrained(out)
    assert index["metadata"]["total_size"] == 2 * sum(p.numel() for p in again.parameters())
    for name, value in model.state_dict().items():
        assert value.bfloat16().equal(again.state_dict()[name]), name


# --------------------------------------------------------------------------------------------- card


def test_the_card_says_what_the_run_was(lora_run: Path, tmp_path: Path) -> None:
    out = export_run(str(lora_run), "merged", out=tmp_path / "grounder")
    text = (out / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header["library_name"] == "transformers"
    assert header["pipeline_tag"] == "image-text-to-text"
    result = json.loads((lora_run / "evals/step-1.json").read_text())
    low, high = result["intervals"]["box_iou"]
    assert f"{result['metrics']['box_iou']:.4f} [{low:.4f}, {high:.4f}]" in text
    for said in ("# grounder", "`Small-VL`: cc-by-4.0", "data `shapes`: Apache-2.0", "1 steps"):
        assert said in text
    assert "| shapes | `format` | 0.5 |" in text
    assert "AutoModelForImageTextToText.from_pretrained" in text
    settings = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert settings["model"]["lora"]["rank"] == 4
    assert settings["model"]["path"] == "Small-VL"
    assert "- transformers " in text


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_no_path_and_no_secret_leaves(
    form: Any, lora_run: Path, base: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(lora_run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["tracking"] = {"tensorboard": False, "wandb": {"project": "p", "api_key": "s3cret"}}
    config["data"]["media_root"] = "/home/joe/My Secret Data/images"
    (run / "config.json").write_text(json.dumps(config))
    out = export_run(str(run), form, out=tmp_path / "out")
    private = [b"s3cret", b"/home/joe", str(base.parent).encode(), str(tmp_path).encode()]
    private += [str(Path(__file__).parents[2]).encode(), str(lora_run).encode()]
    for file in out.rglob("*"):
        data = file.read_bytes()
        assert not [word for word in private if word in data], file


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/joe/data/train.jsonl", "train.jsonl"),
        ("~/data/my rows", "my rows"),
        ("../mine/x.jsonl", "x.jsonl"),
        ("C:\\Users\\joe\\x.jsonl", "x.jsonl"),
        ("/home/joe/checks.py:score", "checks.py:score"),
        ("Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"),
        ("<answer>{a}</answer>", "<answer>{a}</answer>"),
        ("see /data/a/b.md for it", "see b.md for it"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("1/2", "1/2"),
    ],
)
def test_of_a_local_path_the_name_is_kept(text: str, kept: str) -> None:
    assert without_paths({"a": [text]}) == {"a": [kept]}


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_a_damaged_checkpoint_is_one_line(harm: str, built_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(built_run, tmp_path / "run")
    file = run / "checkpoints/step-1/model.safetensors"
    if harm == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"model\.safetensors (is missing|has \d+ bytes)") as caught:
        export_run(str(run / "checkpoints/step-1"), out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_what_is_no_run_is_refused(tmp_path: Path, base: Path) -> None:
    for path in (tmp_path / "nowhere", base):
        with pytest.raises(UserError, match="expected a run folder or a checkpoint"):
            export_run(str(path))


def test_a_form_that_the_run_does_not_have_is_refused_with_the_reason(
    built_run: Path, lora_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"model\.lora is not set"):
        export_run(str(built_run), "adapter")
    run = shutil.copytree(lora_run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["model"]["quantization"] = "nf4"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="merging needs the base model in full"):
        export_run(str(run), "merged")
    assert (export_run(str(run)) / "adapter_model.safetensors").is_file()


def test_a_folder_in_use_is_left_alone(built_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(UserError, match="is there already"):
        export_run(str(built_run), out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_an_upload_without_a_token_is_refused_before_anything_is_written(
    built_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UserError, match="no token for the hub: run `hf auth login`"):
        export_run(str(built_run), out=tmp_path / "out", push="me/mine")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--push"):
        export_run(str(built_run), out=tmp_path / "out", push="not a name")


def test_a_hub_out_of_reach_is_one_line_and_the_files_stay(
    built_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_none")  # tests run with HF_HUB_OFFLINE=1
    with pytest.raises(UserError, match=r"export --push me/mine: .*the files are in") as caught:
        export_run(str(built_run), out=tmp_path / "out", push="me/mine")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out/README.md").is_file()


def test_a_card_says_how_rewards_count_in_each_other_and_shows_schedules() -> None:
    weight = "{schedule: [[0, 0.5], [0.5, 1]]}"
    rewards = f"rewards=[box_iou, {{verifier: format, weight: {weight}, multiplies: box_iou}}]"
    table = _rewards(vlmrl.config.load("quickstart", [rewards]))
    assert "| `box_iou` | 1 |  |" in table
    assert "'schedule': [(0.0, 0.5), (0.5, 1.0)]} | `multiplies: box_iou` |" in table
