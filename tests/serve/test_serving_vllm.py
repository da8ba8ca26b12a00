"""`vlmrl serve` with vLLM: its own server answers, with an image in the request, and asks for the token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from helpers.chat_calls import call, question, save_small_model
from helpers.runs import ROOT


@pytest.mark.nightly
def test_vllm_serves_a_checkpoint(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLMRL_SERVER_TOKEN": "secret"}
    environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
    command = [sys.executable, "-m", "vlmrl", "serve", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, env=environment)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    asked = question(model="tiny", temperature=0)
    try:
        until = time.monotonic() + 900
        while time.monotonic() < until and process.poll() is None:
            try:
                assert call(url, asked)[0] == 401
                break
            except OSError:  # it does not listen yet
                time.sleep(1)
        status, found = call(url, asked, Authorization="Bearer secret")
        assert status == 200 and isinstance(found["choices"][0]["message"]["content"], str)
        graded = f"http://127.0.0.1:{port}/inference/v1/generate"
        fields = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 1.0}
        body = {"token_ids": [5, 6, 7], "content_parts": [], "sampling_params": fields}
        assert call(graded, body)[0] == 401
        status, found = call(graded, body, Authorization="Bearer secret")
        assert status == 200 and found["prompt_logprobs"][0] is None
        for token, table in zip((6, 7), found["prompt_logprobs"][1:], strict=True):
            assert table[str(token)]["logprob"] <= 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
