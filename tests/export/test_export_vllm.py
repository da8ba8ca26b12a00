"""An exported model in vLLM, without vlmrl around it: it writes the tokens that transformers writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from helpers.small import loaded, prompt
from vlmrl.engines.vllm_parts.adapted_vllm import import_vllm
from vlmrl.features.export.export import write_merged


@pytest.mark.nightly
def test_vllm_loads_the_folder_and_writes_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    model = loaded("qwen2_5_vl")
    whole, out = tmp_path / "checkpoint", tmp_path / "out"
    model.model.save_pretrained(whole)
    model.processor.save_pretrained(whole)
    out.mkdir()
    write_merged(whole, out, "float32")
    plain = transformers.AutoModelForImageTextToText.from_pretrained(out)
    shown = [prompt(model, images=images).encoded for images in (0, 1)]
    made = [
        plain.generate(
            input_ids=torch.tensor([each.ids]), **each.tensors, max_new_tokens=8, do_sample=False
        )[0, len(each.ids) :].tolist()
        for each in shown
    ]
    vllm = import_vllm()
    small = {"max_model_len": 256, "max_num_seqs": 1, "gpu_memory_utilization": 0.1}
    served = vllm.LLM(str(out), enforce_eager=True, **small)
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=8)
    requests = [{"prompt_token_ids": list(each.compact_ids)} for each in shown]
    requests[1]["multi_modal_data"] = {"image": list(prompt(model, images=1).media)}
    found = served.generate(requests, sampling)
    assert [list(each.outputs[0].token_ids) for each in found] == made
