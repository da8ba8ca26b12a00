"""An exported model in vLLM, without vlmrl around it: it writes the tokens that transformers writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from helpers.small import loaded, prompt
from vlmrl.commands.export_files import write_merged
from vlmrl.engines.vllm_parts.vllm_import import import_vllm


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
    ids = list(prompt(model, images=0).encoded.ids)
    plain = transformers.AutoModelForImageTextToText.from_pretrained(out)
    made = plain.generate(input_ids=torch.tensor([ids]), max_new_tokens=8, do_sample=False)
    vllm = import_vllm()
    small = {"max_model_len": 256, "max_num_seqs": 1, "gpu_memory_utilization": 0.1}
    served = vllm.LLM(str(out), enforce_eager=True, **small)
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=8)
    (found,) = served.generate([{"prompt_token_ids": ids}], sampling)
    assert list(found.outputs[0].token_ids) == made[0, len(ids) :].tolist()
