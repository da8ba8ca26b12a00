"""What our vLLM engines cost over vLLM itself: tokens a second, and the time of a weight update.

    .venv-vllm/bin/python performance/rollout.py --out performance/results/rollout.md

The same requests (prompts, images, sampling, seeds) go in turns to our engine and raw to the vLLM that
it holds (`LLM.generate`, or the server's own route by plain HTTP), with all caches emptied before
each. Seconds of the clock and of the CPU (all processes) are counted; where other programs use the
machine the latter tell more. A share is the median (and range) over rounds, each of one call of
either. Goal: at least 95 % of raw.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from PIL import Image
from tables import head

from vlmrl.config import BuildConfig, ModelConfig
from vlmrl.data.prompt import make_prompt
from vlmrl.engines.base import Sampling
from vlmrl.engines.vllm import RunningVllm, Vllm
from vlmrl.engines.vllm_parts.requests import lend, media_data, request, sampling_fields
from vlmrl.engines.vllm_server import RunningServers, VllmServer
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import Media, PromptBatch, Sample, Truth

TEXT = "Where is the red circle? Answer with a box."
ENGINE: dict[str, Any] = {"enforce_eager": True, "max_model_len": 2048, "block_size": 32}
ROUTE = "/inference/v1/generate"


def build(width: int, layers: int) -> Policy:
    """A Qwen2.5-VL of random weights; it writes as many tokens as it may."""
    text = {"hidden_size": width, "num_attention_heads": width // 32, "num_hidden_layers": layers}
    config = ModelConfig(build=BuildConfig(text={**text, "intermediate_size": 3 * width}))
    policy = Policy(*load_model(config, [TEXT] * 3), config)
    policy.stop_ids = ()
    return policy


def prompts(policy: Policy, count: int, sizes: Sequence[int]) -> PromptBatch:
    """Prompts of one square noise image each, of these sizes in turn."""
    draw = np.random.default_rng(0).integers
    sides = [sizes[number % len(sizes)] for number in range(count)]
    sample = Sample("noise", "noise", (Media("image", data=b"-"), TEXT), Truth())
    images = [Image.fromarray(draw(0, 255, (side, side, 3), np.uint8)) for side in sides]
    made = [make_prompt(sample, [p], policy.family, policy.processor) for p in images]
    return PromptBatch(tuple(made))


def raw_llm(engine: RunningVllm, policy: Policy, batch: PromptBatch, sampling: Sampling) -> None:
    """The requests straight to `LLM.generate`."""
    from vllm import SamplingParams

    requests = [
        {
            "prompt_token_ids": list(p.encoded.compact_ids),
            "multi_modal_data": media_data(p),
        }
        for p in batch.prompts
    ]
    params = [
        SamplingParams(**sampling_fields(policy, sampling, number), flat_logprobs=True)
        for number in range(len(batch))
    ]
    engine._llm.generate(requests, params, use_tqdm=False)


def raw_http(
    engine: RunningServers, policy: Policy, batch: PromptBatch, sampling: Sampling
) -> None:
    """The requests straight to the server's route, all at once."""
    (server,) = engine._servers
    address = urlsplit(server.url)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}

    def post(number: int) -> Any:
        prompt = batch.prompts[number]
        with lend(prompt.media, None) as media:
            body = request(prompt, sampling_fields(policy, sampling, number), media)
        connection = http.client.HTTPConnection(str(address.hostname), address.port)
        connection.request("POST", ROUTE, json.dumps(body), headers)
        return json.loads(connection.getresponse().read())

    with ThreadPoolExecutor(len(batch)) as pool:
        list(pool.map(post, range(len(batch))))


def empty_llm(engine: RunningVllm) -> None:
    """Forget prefixes, image features and prepared images."""
    inner = engine._llm.llm_engine
    assert inner.reset_prefix_cache()
    inner.reset_encoder_cache()
    inner.reset_mm_cache()


def empty_server(engine: RunningServers) -> None:
    """Forget prefixes, image features and prepared images."""
    (server,) = engine._servers
    for cache in ("prefix", "encoder", "mm"):
        server.post(f"/reset_{cache}_cache", None, 60.0, "benchmark")


def processes(engine: RunningVllm | RunningServers) -> list[psutil.Process]:
    """All that work for a generation."""
    own = psutil.Process()
    return [own, *(own.children(recursive=True) if isinstance(engine, RunningServers) else [])]


def seconds(do: Callable[[], Any], who: Sequence[psutil.Process]) -> tuple[float, float]:
    """Clock and CPU seconds of a call."""

    def spent() -> float:
        return sum(t.user + t.system for t in (p.cpu_times() for p in who))

    cpu, wall = spent(), time.perf_counter()
    do()
    return time.perf_counter() - wall, spent() - cpu


def compare(
    engine: RunningVllm | RunningServers,
    policy: Policy,
    batch: PromptBatch,
    sampling: Sampling,
    rounds: int,
) -> str:
    """A line of the table: our engine against the raw calls, in turns."""
    raw: Any = raw_http if isinstance(engine, RunningServers) else raw_llm
    empty: Any = empty_server if isinstance(engine, RunningServers) else empty_llm
    ways = {
        "ours": lambda: engine.generate(batch, sampling),
        "raw": lambda: raw(engine, policy, batch, sampling),
    }
    who = processes(engine)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            empty(engine)
            took = seconds(ways[name], who)
            if number:  # the first warms up
                found[name].append(took)
    tokens = len(batch) * sampling.n * sampling.max_tokens
    speed = {name: tokens / statistics.median(t[0] for t in took) for name, took in found.items()}
    pairs = list(zip(found["raw"], found["ours"], strict=True))
    wall, cpu = (sorted(raw[i] / ours[i] for raw, ours in pairs) for i in (0, 1))
    return (
        f"| {type(engine).__name__} | {tokens} | {speed['ours']:.0f} | {speed['raw']:.0f} | "
        f"{statistics.median(wall):.1%} ({wall[0]:.0%} to {wall[-1]:.0%}) | "
        f"{statistics.median(cpu):.1%} ({cpu[0]:.0%} to {cpu[-1]:.0%}) |"
    )


def sync_line(engine: RunningVllm | RunningServers, policy: Policy, rounds: int, name: str) -> str:
    """A line of the table of weight updates."""
    times = [seconds(lambda: engine.sync(policy), [])[0] for _ in range(rounds)]
    megabytes = policy.weight_bytes() / 2**20
    return f"| {name} | {megabytes:.1f} | {1000 * statistics.median(times):.0f} |"


def table(lines: Sequence[str]) -> str:
    """Lines of cells as a Markdown table; the first is the head."""
    return "\n".join([*head(lines[0]), *lines[1:]])


def main() -> None:
    """Measure and print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--pixels", type=int, nargs="+", default=[168], help="sides of the images, in turn"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engines", nargs="+", default=["vllm", "file", "tcp"])
    parser.add_argument("--out", type=Path)
    o = parser.parse_args()
    policy = build(o.width, o.layers)
    batch = prompts(policy, o.prompts, o.pixels)
    sampling = Sampling(n=o.group, max_tokens=o.tokens, seed=1)
    speed = ["| engine | tokens | ours, tokens/s | raw, tokens/s | share | share by CPU |"]
    updates = ["| weights by | MiB | ms |"]
    for name in o.engines:
        chosen: Any = Vllm(**ENGINE) if name == "vllm" else VllmServer(**ENGINE, transfer=name)
        engine = chosen.start(policy)
        try:
            if name != "tcp":  # the transfer has no part in the speed
                speed.append(compare(engine, policy, batch, sampling, o.rounds))
            updates.append(sync_line(engine, policy, o.rounds, name))
        finally:
            engine.close()
    text = f"{table(speed)}\n\n{table(updates)}"
    print(text)
    if o.out:
        o.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
