"""Weights come unit by unit: all of them, once, and no rank of a large model would hold the whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from helpers.small import policy
from vlmrl import plugins
from vlmrl.config import LoraConfig, ModelConfig
from vlmrl.engines.vllm_parts.transfer import HeldWeights
from vlmrl.models.loading import fingerprint, load_model
from vlmrl.policy import fsdp, weights
from vlmrl.system import distributed

# ------------------------------------------------------------------------------------ one process


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_units_hold_every_weight_once_and_layers_whole(name: str) -> None:
    made = policy(name)
    found = list(made.units())
    names = [name for unit in found for name in unit]
    assert len(names) == len(set(names))
    assert sum(weights.bytes_of(unit) for unit in found) == sum(
        p.nbytes for p in made.base.parameters()
    )
    assert set(names) | set(weights.find_tied_names(made.base)) == set(made.base.state_dict())
    for path in made.family.decoder_layers:
        for number, layer in enumerate(made.base.get_submodule(path)):
            own = {f"{path}.{number}.{leaf}" for leaf, _ in layer.named_parameters()}
            assert own in [set(unit) for unit in found]
    live = dict(made.base.named_parameters())
    assert all(w.data_ptr() == live[n].data_ptr() for unit in found for n, w in unit.items())


@pytest.mark.parametrize("name", plugins.names("family"))
def test_vllm_is_given_the_same_names_by_units_as_at_once(name: str) -> None:
    made = policy(name)
    at_once = made.family.export_names(made.weights())
    names = [n for unit in made.units(every_name=True) for n in made.family.export_names(unit)]
    assert len(names) == len(set(names)) and set(names) == set(at_once)
    tied = weights.find_tied_names(made.base)
    for unit in made.units(every_name=True):
        assert all(unit[first] is unit[n] for n, first in tied.items() if n in unit)


@pytest.mark.parametrize(
    "name", ["qwen2_5_vl", "gemma3", "qwen2_audio", "qwen3_vl_moe", "glm4v_moe", "qwen3_omni_moe"]
)
def test_weights_are_counted_without_being_made(name: str) -> None:
    made = policy(name)
    assert made.weight_bytes() == sum(w.nbytes for w in made.weights().values())
    with_adapter = policy(name, lora=LoraConfig(rank=4))
    assert with_adapter.weight_bytes() == made.weight_bytes()


def test_held_weights_are_the_last_given_with_every_name_of_tied_ones(tmp_path: Path) -> None:
    held = HeldWeights(tmp_path)
    head = torch.randn(3, 2)
    held.replace([{"old": torch.randn(4)}])
    held.replace(
        [{"embed": head, "head": head}, {}, {"a": torch.randn(4, 4).T, "b": torch.ones(())}]
    )
    found = dict(held.tensors())
    assert list(found) == list(held.kinds) == ["embed", "a", "b"]
    assert held.names("embed") == ["embed", "head"] and held.names("a") == ["a"]
    assert torch.equal(found["embed"], head) and found["b"] == 1
    assert held.kinds["embed"] == (torch.float32, (3, 2))
    assert sorted(tmp_path.iterdir()) == sorted(held.files)
    held.clear()
    assert not list(tmp_path.iterdir()) and not list(held.tensors())


def test_an_adapter_is_merged_as_peft_does_or_left_out() -> None:
    made = policy(lora=LoraConfig(rank=4, towers=["vision", "language"]))
    before = {
        name: w.clone() for unit in made.units(adapters="left out") for name, w in unit.items()
    }
    with torch.no_grad():
        for name, parameter in made.named.items():
            if ".lora_B." in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    found = {name: w for unit in made.units() for name, w in unit.items()}
    layers = {n: m for n, m in made.base.named_modules() if hasattr(m, "get_delta_weight")}
    assert found.keys() == before.keys() == policy().base.state_dict().keys()
    for name, weight in found.items():
        layer = layers.get(name.removesuffix(".weight"))
        delta = layer.get_delta_weight("default") if layer is not None else 0.0
        assert torch.equal(weight, before[name] + delta), name


@pytest.mark.parametrize(
    "name", ["qwen2_5_vl", "gemma3", "qwen2_audio", "qwen3_vl_moe", "glm4v_moe", "qwen3_omni_moe"]
)
def test_a_model_written_in_parts_is_read_as_one(name: str, tmp_path: Path) -> None:
    made = policy(name)
    made.save_frame(str(tmp_path))
    dealt = weights.deal_parts(made.units(), made.weight_bytes(), max_bytes=200_000)
    named = ((number, made.family.published(made.base, part)) for number, part in dealt)
    weights.name_parts(tmp_path, len(weights.write_parts(tmp_path, named)))
    parts = sorted(tmp_path.glob("model-*-of-*.safetensors"))
    assert len(parts) > 2 and not list(tmp_path.glob(".part*"))
    again = load_model(ModelConfig(path=str(tmp_path))).model.state_dict()
    assert again.keys() == made.base.state_dict().keys()
    assert all(torch.equal(again[n], w) for n, w in made.base.state_dict().items())


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3", "qwen2_5_omni", "internvl"])
def test_a_part_of_the_whole_is_the_file_that_transformers_writes(
    name: str, tmp_path: Path
) -> None:
    made = policy(name)
    made.save(str(tmp_path / "theirs"))
    weights.write_parts(tmp_path / "ours", made.parts())
    theirs, ours = tmp_path / "theirs/model.safetensors", tmp_path / "ours/.part-0"
    assert ours.read_bytes() == theirs.read_bytes()


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=20), world=st.integers(1, 5))
def test_every_unit_is_dealt_to_one_rank_and_no_rank_gets_much_more_than_its_share(sizes, world):
    units = [{str(n): torch.full((size,), float(n))} for n, size in enumerate(sizes)]
    total, found = 4 * sum(sizes), []
    for rank in range(world):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributed, "_rank", rank)
            patch.setattr(distributed, "_world", world)
            own = dict(weights.deal_parts(units, total))
        assert all(number % world == rank for number in own)
        found += own.items()
    found.sort(key=lambda pair: pair[0])
    assert [number for number, _ in found] == list(range(len(found)))
    assert [n for _, part in found for n in part] == [str(n) for n in range(len(sizes))]
    for _, part in found:
        size = sum(w.nbytes for w in part.values())
        assert size <= -(-total // world) or len(part) == 1


def test_slices_of_parts_are_read_by_rows(tmp_path: Path) -> None:
    given = [{f"w{n}": torch.randn(10, 4)} for n in range(5)]
    weights.save_parts(tmp_path / "all.safetensors", given, max_bytes=400)
    found = weights.open_slices(tmp_path / "all.safetensors")
    assert len(list(tmp_path.iterdir())) == 3
    for unit in given:
        for name, weight in unit.items():
            assert torch.equal(found[name][3:7], weight[3:7])


def test_a_fingerprint_tells_weights_apart(tmp_path: Path) -> None:
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(seed)
        (tmp_path / folder).mkdir()
        weights.save_parts(tmp_path / folder / "model.safetensors", [{"w": torch.randn(3000, 300)}])
    first, same, other = (fingerprint(str(tmp_path / folder)) for folder in "abc")
    assert first == same != other
    assert fingerprint("") == fingerprint("no/such-model") == ""


# ------------------------------------------------------------------------------------ large models

VISION = {"depth": 32, "hidden_size": 1280, "num_heads": 16}


def qwen2_5_vl(vision_intermediate: int, **text: int) -> Any:
    made = transformers.Qwen2_5_VLConfig(
        text_config={"vocab_size": 152064, **text},
        vision_config={
            **VISION,
            "intermediate_size": vision_intermediate,
            "out_hidden_size": text["hidden_size"],
        },
        tie_word_embeddings=False,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration, made, "qwen2_5_vl"


def text(hidden: int, layers: int, intermediate: int, heads: int, keys: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
    }


def qwen3_vl_moe(experts: int, **text: int) -> Any:
    made = transformers.Qwen3VLMoeConfig(
        text_config={
            **text,
            "vocab_size": 151936,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": experts,
        },
        vision_config={
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": text["hidden_size"],
            "deepstack_visual_indexes": [8, 16, 24],
        },
        tie_word_embeddings=False,
    )
    return transformers.Qwen3VLMoeForConditionalGeneration, made, "qwen3_vl_moe"


LARGE = {
    "Qwen2.5-VL-7B": (lambda: qwen2_5_vl(3420, **text(3584, 28, 18944, 28, 4)), 8.29e9, 8),
    "Qwen2.5-VL-32B": (lambda: qwen2_5_vl(3456, **text(5120, 64, 27648, 40, 8)), 33.45e9, 8),
    "Qwen2.5-VL-72B": (lambda: qwen2_5_vl(3456, **text(8192, 80, 29568, 64, 8)), 73.41e9, 16),
    "Qwen3-VL-30B-A3B": (lambda: qwen3_vl_moe(768, **text(2048, 48, 6144, 32, 4)), 31.07e9, 8),
    "Qwen3-VL-235B-A22B": (lambda: qwen3_vl_moe(1536, **text(4096, 94, 12288, 64, 4)), 235.7e9, 64),
}
"""What builds the config, the published number of parameters, and GPUs to train on."""


@pytest.fixture
def one_of_many(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Become a rank of a world whose other ranks do not exist."""

    def become(rank: int, world: int) -> Any:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        monkeypatch.setattr(distributed, "_rank", rank)
        monkeypatch.setattr(distributed, "_world", world)
        return init_device_mesh("cpu", (world,))

    yield become
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_no_rank_would_hold_a_large_model(name: str, one_of_many: Any) -> None:
    build, published, world = LARGE[name]
    kind, config, family_name = build()
    family = plugins.build("family", family_name)
    with torch.device("meta"):
        model = kind(config)
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(published, rel=0.002)
    mesh = one_of_many(world - 1, world)
    sizes = [sum(w.numel() for w in unit.values()) for unit in weights.units_of(model, family)]
    assert sum(sizes) == count
    forecast = {
        n: len(range(*fsdp.rows_of(p).indices(len(p)))) for n, p in model.named_parameters()
    }
    layers = [layer for path in family.decoder_layers for layer in model.get_submodule(path)]
    fsdp.slice_weights(model, layers, ModelConfig(path="x", dtype="bfloat16"), mesh, set())
    local = {n: p.to_local() for n, p in model.named_parameters()}
    assert {n: len(p) for n, p in local.items()} == forecast
    share = sum(p.numel() for p in local.values())
    assert share <= count / world
    # While weights are sent in bfloat16: a slice in float32 with both moments, and two units.
    held = 12 * share + 2 * 2 * max(sizes)
    assert held < 80e9
    assert 2 * 2 * max(sizes) + 4 * share < 0.8 * 2 * count
