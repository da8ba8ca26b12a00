"""Benchmarks through `vllm_server`, killed and resumed: no answered row is asked again; one prefill a row."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helpers.faulty_proxy import FaultyProxy
from helpers.published import ROWS, write_published
from helpers.small import policy
from helpers.vllm_engine import SMALL

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from vlmrl.benchmarking.scoring import find_results
from vlmrl.config import PluginRef
from vlmrl.engines import serve
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.features.benchmarks.run import evaluate_benchmarks
from vlmrl.features.benchmarks.session import Plan

pytestmark = pytest.mark.nightly

NAMES = ("chartqa", "ai2d", "pope")
GENERATE = "/inference/v1/generate"
TOKENS = 4


class CountingProxy(FaultyProxy):
    """Keeps the bodies of requests for completions, and tells when there are enough."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[dict] = []
        self.stops_at = 10**9
        self.reached = threading.Event()

    def _forward(self, handler, body):
        if handler.path.startswith(GENERATE):
            self.asked.append(json.loads(body))
            if len(self.asked) >= self.stops_at:
                self.reached.set()
                threading.Event().wait(30)  # no answer before the kill
                return None
        return super()._forward(handler, body)


@pytest.fixture(scope="module")
def server():
    """A server on this machine, of a small model."""
    made = policy()
    engine = VllmServer(enforce_eager=True, **SMALL).start(made)
    yield engine._servers[0]
    engine.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "step-1"
    policy().save(str(folder))
    return folder


@pytest.fixture
def proxy(server, monkeypatch, tmp_path):
    monkeypatch.setenv(serve.TOKEN, server.token)
    for name in NAMES:
        write_published(tmp_path / "data", name, "test", ROWS[name])
    made = CountingProxy(server.url)
    yield made
    made.close()


def plan(proxy, out, **more):
    engine = PluginRef(name="vllm_server", options={"urls": [proxy.url], **SMALL})
    return Plan("lmms_eval", out.parent / "data", out, engine, 4, 2, TOKENS, **more)


def figures(out):
    return {
        name: (one.result.figures, one.result.groups, [row.text for row in one.result.rows])
        for name, one in find_results(out).items()
    }


def killed(checkpoint, proxy, out: Path) -> None:
    """Evaluate in a process of its own, and kill it while it waits for an answer."""
    options = ",".join(f"{key}={value}" for key, value in SMALL.items())
    engine = f"vllm_server(urls=[{proxy.url}],{options})"
    asked = ["--benchmark", ",".join(NAMES), "--protocol", "lmms_eval", "--limit", "4"]
    asked += ["--batch-size", "2", "--max-tokens", str(TOKENS), "--engine", engine]
    asked += ["--data-root", str(out.parent / "data"), "--out", str(out)]
    command = [sys.executable, "-m", "vlmrl", "eval", str(checkpoint), *asked]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not proxy.reached.wait(1.0):
        assert process.poll() is None, process.stderr.read()
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stderr.close()


def test_a_killed_evaluation_asks_no_answered_row_again(proxy, checkpoint, tmp_path):
    evaluate_benchmarks(str(checkpoint), NAMES, plan(proxy, tmp_path / "whole"))
    assert len(proxy.asked) == 12
    proxy.asked, proxy.stops_at = [], 7  # in the second benchmark, after two of its four answers
    out = tmp_path / "killed"
    killed(checkpoint, proxy, out)
    kept = [len(file.read_text().splitlines()) for file in sorted(out.glob("*/answers.jsonl"))]
    assert kept == [2, 4]  # ai2d, chartqa
    proxy.asked, proxy.stops_at = [], 10**9
    evaluate_benchmarks(str(checkpoint), NAMES, plan(proxy, out))
    assert len(proxy.asked) == 12 - sum(kept)
    assert figures(out) == figures(tmp_path / "whole")
    assert {row["sampling_params"]["temperature"] for row in proxy.asked} == {0.0}


def counted(server):
    """What the server counted: tokens of prompts, and those of them that it found computed."""
    text = server.call("GET", "/metrics", None, 5.0, "test")
    names = ("prompt_tokens", "prompt_tokens_cached")
    found = [re.search(rf"^vllm:{n}_total{{.*}} (.*)$", text, re.MULTILINE)[1] for n in names]
    return [float(number) for number in found]


def test_k_samples_of_a_row_are_one_request_and_one_prefill(server, proxy, checkpoint, tmp_path):
    before = counted(server)
    samples = 5
    sampled = plan(proxy, tmp_path / "sampled", samples=samples)
    evaluate_benchmarks(str(checkpoint), ["chartqa"], sampled)
    prompts, cached = (b - a for a, b in zip(before, counted(server), strict=True))
    assert [row["sampling_params"]["n"] for row in proxy.asked] == [1] * 4 + [samples] * 4
    length, rest = divmod(prompts, 4 * (1 + samples))
    assert rest == 0 and length > SMALL["block_size"]
    # vLLM shares whole blocks: all that a sample computes of its prompt is the unfinished last one.
    shared = length // SMALL["block_size"] * SMALL["block_size"]
    assert cached == 4 * samples * shared
