"""A process that speaks the protocol of `vlmrl.engines.serve` without vLLM: run as a script.

It takes weights by tcp as a server does, and writes tokens that depend on the seed alone. Each request for
completions adds a line to the file named by `--record`: port, version of the weights, seed. With `--hold` the
first one is answered when that file is there.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VOCABULARY = 320
SECONDS = 0.05
"""How long a request takes."""

parser = argparse.ArgumentParser()
parser.add_argument("--record", type=Path)
parser.add_argument("--hold", type=Path)
parser.add_argument("--host")
parser.add_argument("--port", type=int)
parser.add_argument("--model", type=Path)
parser.add_argument("--max-model-len", type=int)
parser.add_argument("--weight-transfer-config", type=json.loads)


def written(seed: int, completion: int, length: int, banned: set[int]) -> list[int]:
    """The tokens of a completion."""
    allowed = [token for token in range(VOCABULARY) if token not in banned]
    return [allowed[(seed + 7 * completion + place) % len(allowed)] for place in range(length)]


def require_whole(rollouts: Any, sampling: Any, policy: Any, version: int) -> None:
    """Check that every prompt has its own completions, once, by weights of this version."""
    from vlmrl.system.seeds import seed_of

    banned = {*map(int, policy.banned), *policy.stop_ids}
    expected = [
        [
            tuple(written(seed_of(sampling.seed, p) >> 1, g, sampling.max_tokens, banned))
            for g in range(sampling.n)
        ]
        for p in range(len(rollouts.batch))
    ]
    assert [[c.token_ids for c in group] for group in rollouts.completions] == expected
    versions = {c.versions for group in rollouts.completions for c in group}
    assert versions == {((version, sampling.max_tokens),)}


class StandIn:
    """What a server knows: its model, and the version of its weights once it has some."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.version = "none"
        self.lock = threading.Lock()
        self.held = arguments.hold

    def answer(self, path: str, body: Any) -> Any:
        """What is sent back, as JSON."""
        if path == "/get_world_size":
            return {"world_size": 1}
        if path == "/collective_rpc":
            return {"results": [self.describe() if body["method"] == "describe" else None]}
        if path == "/update_weights":
            self.receive(body["update_info"])
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/inference/v1/generate":
            return self.generate(body)
        return {}

    def describe(self) -> dict[str, Any]:
        config = json.loads((self.arguments.model / "config.json").read_text())
        text = config.get("text_config", config)
        return {
            "model_type": config["model_type"],
            **{key: text[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size")},
            "max_model_len": self.arguments.max_model_len,
            "logprobs_mode": "raw_logprobs",
            "transfer": self.arguments.weight_transfer_config["backend"],
            "quantization": None,
            "kv_cache_dtype": "auto",
            "speculative_tokens": 0,
        }

    def receive(self, update: dict[str, Any]) -> None:
        from vlmrl.engines.vllm_parts import transfer

        listed = (update[key] for key in ("names", "dtypes", "shapes", "digests"))
        for _ in transfer.receive_by_tcp(transfer.Meeting(**update["meeting"]), *listed):
            pass

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        fields = body["sampling_params"]
        with self.lock, self.arguments.record.open("a") as record:
            record.write(f"{self.arguments.port} {self.version} {fields['seed']}\n")
        began = self.version
        with self.lock:
            held, self.held = self.held, None
        while held is not None and not held.exists():
            time.sleep(SECONDS)
        time.sleep(SECONDS)
        banned = {*map(int, fields["logit_bias"]), *fields["stop_token_ids"]}
        length = fields["max_tokens"]
        runs = [(began, 0, 1), (self.version, 1, length)]
        if began == self.version:
            runs = [(began, 0, length)]
        spans = [{"version": v, "start": start, "end": end} for v, start, end in runs]
        choices = [
            {
                "token_ids": written(fields["seed"], number, length, banned),
                "logprobs": {"content": [{"logprob": -1.0}] * length},
                "finish_reason": "length",
                "weight_versions": spans,
            }
            for number in range(fields["n"])
        ]
        return {"prompt_token_ids": body["token_ids"], "choices": choices}


class Handler(BaseHTTPRequestHandler):
    """Answers with JSON; without the token, only `/health`."""

    owner: StandIn

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length) or b"null")
        given = self.headers.get("Authorization") == f"Bearer {os.environ['VLMRL_SERVER_TOKEN']}"
        if not given and path != "/health":
            self.send_error(401)
            return
        found = json.dumps(self.owner.answer(path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


class Listener(ThreadingHTTPServer):
    """Takes as many connections at once as an engine opens."""

    request_queue_size = 256


def die_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.3)
    os._exit(1)


if __name__ == "__main__":
    watch = threading.Thread(target=die_with, args=(int(os.environ["VLMRL_SERVER_PARENT"]),))
    watch.daemon = True
    watch.start()
    known, _ = parser.parse_known_args()
    Handler.owner = StandIn(known)
    Listener((known.host, known.port), Handler).serve_forever()
