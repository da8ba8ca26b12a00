"""Engine `vllm_server` with real servers: parity, safety, faults, and no process left behind."""

import base64
import dataclasses
import http.client
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import torch
from PIL import Image

from helpers.faulty_proxy import FaultyProxy, altered
from helpers.prompts import VIDEO_CASES, ask
from helpers.small import advantages, mixed_batch, policy, prompt
from helpers.vllm_engine import SMALL, served, set_options, tokens

pytest.importorskip("vllm.version", reason="needs vLLM: make test-vllm")

from vlmrl.config import LoraConfig
from vlmrl.engines import serve
from vlmrl.engines.base import Sampling
from vlmrl.engines.hf import Hf
from vlmrl.engines.vllm_parts import transfer
from vlmrl.engines.vllm_parts.server import Server
from vlmrl.engines.vllm_parts.transfer import vllm_client
from vlmrl.engines.vllm_server import VllmServer
from vlmrl.errors import UserError
from vlmrl.forward.packing import pack
from vlmrl.monitoring.run_checks import make_probe_prompts, measure_parity
from vlmrl.parts.families.qwen2_5_vl import Qwen25Vl
from vlmrl.schema import PromptBatch

DRAW = Sampling(n=3, max_tokens=8, seed=4)
GENERATE = "/inference/v1/generate"


def change(made, seed=0, scale=0.05):
    """Other weights, not far from those that every policy of these tests starts with."""
    noise = torch.Generator().manual_seed(seed)
    start = policy(made.config.build.family, made.config.lora)
    with torch.no_grad():
        for weight, first in zip(made.trainable, start.trainable, strict=True):
            weight.copy_(first + scale * torch.randn(weight.shape, generator=noise))
    made.version += 1


def packed(rollouts, max_tokens):
    (batch,) = pack(
        rollouts, advantages(rollouts), updates=1, micro_tokens=10**6, max_tokens=max_tokens
    )
    (micro,) = batch.micro
    return micro


def gap(made, rollouts, max_tokens=8):
    """Largest |Δ log p| between rollouts and the policy."""
    micro = packed(rollouts, max_tokens)
    with torch.no_grad():
        ours, _ = made.logprobs(micro)
    return (ours - micro.sampling_logprobs)[micro.mask].abs().max()


def tokens_written(server):
    text = server.call("GET", "/metrics", None, 5.0, "test")
    return float(re.search(r"^vllm:generation_tokens_total{.*} (.*)$", text, re.MULTILINE)[1])


def processes_of(server):
    process = psutil.Process(server.pid)
    return [process, *process.children(recursive=True)]


def vital(processes):
    """Those without which a server cannot go on: not Python's own helper."""
    return [p for p in processes if "resource_tracker" not in " ".join(p.cmdline())]


@pytest.fixture(scope="module")
def child():
    with served() as pair:
        yield pair


@pytest.fixture
def found(child, monkeypatch):
    """Starts engines that find the child's server; gives the child its weights back at the end."""
    made, owner = child
    (server,) = owner._servers
    monkeypatch.setenv(serve.TOKEN, server.token)
    engines = []

    def find(policy, url=None, **options):
        chosen = VllmServer(urls=[url or server.url], start_timeout_s=10, **SMALL, **options)
        engines.append(chosen.start(policy))
        return engines[-1]

    yield find
    for engine in engines:
        engine.close()
    owner.sync(made)


@pytest.fixture
def proxied(child, found):
    """The policy, an engine that found the child's server through a proxy, and the proxy."""
    made, owner = child
    proxy = FaultyProxy(owner._servers[0].url)
    engine = found(made, proxy.url)
    yield made, engine, proxy
    proxy.close()


# ---------------------------------------------------------------------------------- same numbers


def test_log_probs_equal_the_trainers_before_and_after_every_sync(child):
    made, engine = child
    prompts = [*mixed_batch(made).prompts, *make_probe_prompts(made)]
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    for step in range(3):
        change(made, step)
        assert measure_parity(engine, made, prompts).max_abs > 1e-2  # it does not know yet
        engine.sync(made)
        assert measure_parity(engine, made, prompts).max_abs < 1e-5


@pytest.mark.parametrize(
    "family", ["qwen3_vl", pytest.param("qwen2_vl", marks=pytest.mark.nightly)]
)
def test_the_other_families_arrive_too_full_and_merged(family, monkeypatch):
    made = policy(family)
    engine = VllmServer(enforce_eager=True, max_videos=2, **SMALL).start(made)
    (server,) = engine._servers
    change(made)
    engine.sync(made)
    videos = [ask(made, *media()) for media in VIDEO_CASES.values()]
    assert measure_parity(engine, made, [*make_probe_prompts(made), *videos]).max_abs < 1e-5
    monkeypatch.setenv(serve.TOKEN, server.token)
    adapted = policy(family, lora=LoraConfig(rank=4, alpha=8))
    other = VllmServer(urls=[server.url], max_videos=2, **SMALL).start(adapted)
    assert measure_parity(other, adapted, [*make_probe_prompts(adapted), *videos]).max_abs < 1e-5
    change(adapted)
    other.sync(adapted)
    assert measure_parity(other, adapted, [*make_probe_prompts(adapted), *videos]).max_abs < 1e-5
    other.close()
    engine.close()


def test_a_lora_policy_arrives_merged(found):
    made = policy(lora=LoraConfig(rank=4, alpha=8, towers=["language", "vision"]))
    engine = found(made)
    change(made)
    engine.sync(made)
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


@pytest.mark.nightly
def test_an_adapter_arrives_at_every_sync_and_at_a_new_server():
    made = policy(lora=LoraConfig(rank=4, alpha=8))
    engine = VllmServer(enforce_eager=True, lora="adapter", **SMALL).start(made)
    prompts = make_probe_prompts(made)
    for step in range(2):
        change(made, step)
        assert measure_parity(engine, made, prompts).max_abs > 1e-2
        engine.sync(made)
        assert measure_parity(engine, made, prompts).max_abs < 1e-5
    os.killpg(engine._servers[0].pid, signal.SIGKILL)
    assert measure_parity(engine, made, prompts).max_abs < 1e-5
    engine.close()


def test_an_adapter_for_servers_elsewhere_is_refused():
    with pytest.raises(ValueError, match="lora 'adapter' needs servers that the run starts"):
        VllmServer(urls=["http://10.0.0.2:8000"], lora="adapter")


def test_weights_by_tcp_arrive_too(child, found):
    made, _ = child
    engine = found(made, transfer="tcp")
    for step in range(2):
        change(made, step)
        engine.sync(made)
        assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


@pytest.mark.nightly
def test_two_servers_get_weights_by_tcp_and_one_that_dies_meanwhile_is_replaced(
    monkeypatch, caplog
):
    made = policy()
    engine = VllmServer(enforce_eager=True, transfer="tcp", num_servers=2, **SMALL).start(made)
    prompts = [*mixed_batch(made).prompts, *make_probe_prompts(made)]  # for both servers
    send, before = transfer.send_by_tcp, [server.pid for server in engine._servers]

    def deadly(listener, meeting, expected, over, tensors):
        def watched():
            for number, tensor in enumerate(tensors):
                if number == 5 and len(expected) == 2:
                    for process in vital(processes_of(engine._servers[0])):
                        process.kill()
                yield tensor

        send(listener, meeting, expected, over, watched())

    for step, sender in enumerate([send, deadly, send]):
        monkeypatch.setattr(transfer, "send_by_tcp", sender)
        change(made, step)
        assert measure_parity(engine, made, prompts).max_abs > 1e-2
        engine.sync(made)
        assert measure_parity(engine, made, prompts).max_abs < 1e-5
    assert "cannot reach" not in caplog.text
    assert not {*before} & {server.pid for server in engine._servers}  # the one behind it, too
    engine.close()


def test_vllms_own_client_posts_what_json_cannot_hold():
    """Handles of CUDA memory, for transfer ipc: tuples of bytes and types."""

    class Recorded(Server):
        def sync(self, path, body=None):
            self.posted = path, json.loads(json.dumps(body))

    server = Recorded("http://127.0.0.1:1", "token", 1.0)
    handles = [{"GPU-1": (int, b"handle", (2, 3))}]
    vllm_client(server).update_weights({"names": ["x"], "ipc_handles": handles})
    path, body = server.posted
    assert path == "/update_weights"
    sent = base64.b64decode(body["update_info"]["ipc_handles_pickled"])
    assert pickle.loads(sent) == handles


def test_greedy_tokens_equal_the_hf_engines(child):
    made, engine = child
    reference = Hf().start(made)
    draw = Sampling(n=2, max_tokens=8, greedy=True)
    batch = mixed_batch(made)
    assert tokens(engine.generate(batch, draw)) == tokens(reference.generate(batch, draw))


def test_log_probs_are_those_at_the_temperature(child):
    made, engine = child
    made.temperature = 0.6
    draw = Sampling(n=4, max_tokens=8, temperature=0.6, top_k=50, top_p=0.9, seed=1)
    assert gap(made, engine.generate(mixed_batch(made), draw)) < 1e-5
    made.temperature = 1.0
    assert gap(made, engine.generate(mixed_batch(made), DRAW)) < 1e-5


def test_the_same_seed_draws_the_same_and_another_seed_does_not(child):
    made, engine = child
    batch = mixed_batch(made)
    draws = [tokens(engine.generate(batch, Sampling(n=4, max_tokens=6, seed=s))) for s in (5, 5, 6)]
    assert draws[0] == draws[1] != draws[2]


def test_weights_that_change_in_flight_are_noted_token_by_token_and_exact(child):
    made, engine = child
    stops, made.stop_ids = made.stop_ids, ()
    before, old = policy(), made.version
    before.base.load_state_dict(made.base.state_dict())
    draw = Sampling(n=4, max_tokens=400, seed=1)
    batch = PromptBatch((prompt(made, 1),))
    begin = tokens_written(engine._servers[0])
    done = []
    thread = threading.Thread(target=lambda: done.append(engine.generate(batch, draw)))
    thread.start()
    while tokens_written(engine._servers[0]) < begin + 40:
        time.sleep(0.01)
    change(made, seed=9)
    engine.sync(made)
    thread.join()
    (rollouts,) = done
    flat = [c for group in rollouts.completions for c in group]
    spans = {tuple(version for version, _ in c.versions) for c in flat}
    assert (old, old + 1) in spans, f"the update came too early or too late: {spans}"
    assert spans <= {(old,), (old, old + 1), (old + 1,)}
    micro = packed(rollouts, 400)
    with torch.no_grad():
        scores = {old: before.logprobs(micro)[0], old + 1: made.logprobs(micro)[0]}
    for row, c in enumerate(flat):
        start = 0
        for version, count in c.versions:
            part = slice(start, start + count)
            ours = scores[version][row, part]
            assert (ours - torch.tensor(c.logprobs[part])).abs().max() < 5e-5
            start += count
    made.stop_ids = stops


# ----------------------------------------------------------------------------------------- safety


def status_of(server, method, path, token=None):
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    connection.request(method, path, b"{}", headers)
    return connection.getresponse().status


def test_nothing_but_the_health_is_open_without_the_token(child):
    (server,) = child[1]._servers
    guarded = [GENERATE, "/update_weights", "/start_weight_update", "/collective_rpc", "/pause"]
    guarded += ["/v1/models", "/metrics", "/reset_prefix_cache", "//update_weights", "/docs"]
    for path in guarded:
        for token in (None, "", "wrong", server.token + "x"):
            assert status_of(server, "POST", path, token) == 401, path
    assert status_of(server, "GET", "/health") == 200
    assert status_of(server, "GET", "/v1/models", server.token) == 200


def test_the_token_is_on_no_command_line(child):
    (server,) = child[1]._servers
    assert server.token not in " ".join(psutil.Process(server.pid).cmdline())


def test_it_listens_on_the_loopback_only(child):
    processes = processes_of(child[1]._servers[0])
    sockets = [c for p in processes for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert {c.laddr.ip for c in sockets} == {"127.0.0.1"}


def test_a_server_of_another_model_is_refused(found):
    with pytest.raises(UserError, match=r"expected model_type 'qwen2_vl', got 'qwen2_5_vl'"):
        found(policy("qwen2_vl"))


def test_a_wrong_or_missing_token_is_told(found, monkeypatch):
    monkeypatch.delenv(serve.TOKEN)
    with pytest.raises(UserError, match="set VLMRL_SERVER_TOKEN"):
        found(policy())
    monkeypatch.setenv(serve.TOKEN, "guess")
    with pytest.raises(UserError, match="401"):
        found(policy())


# ----------------------------------------------------------------------- faults, one at a time


def short(answer):
    answer["choices"][0]["token_ids"].pop()


def stale(answer):
    for choice in answer["choices"]:
        for span in choice["weight_versions"]:
            span["version"] = "99999"


def other_token(answer):
    answer["choices"][0]["token_ids"][0] = 10**6


def nan(answer):
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = float("nan")


def hang(reply):
    time.sleep(4)
    return reply


FAULTS = {
    "dropped": lambda reply: None,
    "status 500": lambda reply: (500, b"EngineDeadError"),
    "cut off": lambda reply: (200, reply[1][: len(reply[1]) // 2]),
    "no text": lambda reply: (200, b"\xff\xfe"),
    "too few tokens": altered(short),
    "another version": altered(stale),
    "a token that is none": altered(other_token),
    "no number": altered(nan),
    "too few completions": altered(lambda answer: answer["choices"].pop()),
    "another form": altered(lambda answer: answer.pop("choices")),
    "hang": hang,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_a_fault_took_is_asked_for_again_and_comes_out_the_same(fault, proxied):
    made, engine, proxy = proxied
    batch = mixed_batch(made)
    whole = tokens(engine.generate(batch, DRAW))
    set_options(engine, generate_timeout_s=2)
    asked = proxy.seen.count(GENERATE)
    proxy.breaks(GENERATE, fault)
    again = engine.generate(batch, DRAW)
    assert tokens(again) == whole
    assert proxy.seen.count(GENERATE) > asked + len(batch)
    assert gap(made, again) < 1e-5


def test_a_prompt_that_is_lost_again_and_again_stops_the_run_with_its_name(proxied):
    made, engine, proxy = proxied
    proxy.breaks(GENERATE, altered(short), times=100)
    with pytest.raises(
        UserError, match=r"sample '\d' was lost 3 times: .* tokens \(limit 8\) with"
    ):
        engine.generate(mixed_batch(made), DRAW)


def test_a_time_out_names_its_stage(proxied):
    made, engine, proxy = proxied
    set_options(engine, generate_timeout_s=1, max_restarts=0)
    proxy.breaks(GENERATE, hang, times=4)
    with pytest.raises(
        UserError, match=r"media: generation: server .* no answer in .* generate_timeout_s"
    ):
        engine.generate(mixed_batch(made), DRAW)


@pytest.mark.parametrize("path", ["/pause", "/update_weights", "/finish_weight_update", "/resume"])
def test_an_update_that_fails_is_done_again_whole(path, proxied):
    made, engine, proxy = proxied
    change(made)
    proxy.breaks(path, lambda reply: (500, b"half-way"))
    engine.sync(made)
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


def test_an_update_that_fails_again_and_again_stops_the_run(proxied):
    made, engine, proxy = proxied
    proxy.breaks("/update_weights", lambda reply: (500, b"half-way"), times=4)
    with pytest.raises(UserError, match=r"gave up after 3 tries: sync: server .* status 500: half"):
        engine.sync(made)


def test_other_prompt_tokens_than_the_trainers_stop_the_run(proxied):
    made, engine, proxy = proxied
    proxy.breaks(GENERATE, altered(lambda answer: answer["prompt_token_ids"].pop()))
    with pytest.raises(UserError, match=r"sample '\d': \d+ prompt tokens in the trainer, \d+ in"):
        engine.generate(mixed_batch(made), DRAW)
    assert "/abort_requests" in proxy.seen


def test_a_refused_picture_is_named(child):
    made, engine = child
    before = engine._servers[0].pid
    flat = dataclasses.replace(prompt(made, 5), media=(Image.new("RGB", (3000, 2)),))
    with pytest.raises(UserError, match=r"sample '5': generation: server .* refuses .*\(400\)"):
        engine.generate(PromptBatch((prompt(made), flat)), DRAW)
    engine.generate(PromptBatch((prompt(made),)), DRAW)
    assert engine._servers[0].pid == before  # it is not the server's fault


# --------------------------------------------------------------------- faults of the real process


class HalfWay(Qwen25Vl):
    """A family whose weights break off in the middle: from the language model on."""

    def export_names(self, named):
        unknown = {f"model.no_such_layer.{name}": weight for name, weight in named.items()}
        first = next(iter(named))
        return super().export_names(named) if first.startswith("model.visual.") else unknown


def test_an_update_that_breaks_off_in_the_server_spoils_nothing_once_it_is_done_again(child, found):
    made, _ = child
    engine = found(made)
    change(made, seed=1)
    family, made.family = made.family, HalfWay()
    set_options(engine, max_restarts=0)
    with pytest.raises(UserError, match=r"gave up after 1 tries: sync: .* status 500"):
        engine.sync(made)
    made.family = family
    engine.sync(made)
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


@pytest.mark.nightly
def test_a_server_whose_update_breaks_off_is_replaced(child):
    made, engine = child
    before, replace = engine._servers[0].pid, engine._store.held.replace
    change(made, seed=2)

    def hold_the_half_first(units):
        units = [dict(unit) for unit in units]
        replace(map(HalfWay().export_names, units))
        engine._update(engine._servers)
        replace(units)

    engine._store.held.replace = hold_the_half_first
    engine.sync(made)
    engine._store.held.replace = replace
    assert engine._servers[0].pid != before and not psutil.pid_exists(before)
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5


def test_a_server_that_hangs_meets_the_deadline_and_is_replaced(child):
    made, engine = child
    batch = mixed_batch(made)
    whole = tokens(engine.generate(batch, DRAW))
    _, *workers = processes_of(engine._servers[0])
    for worker in workers:
        worker.suspend()
    set_options(engine, generate_timeout_s=10)
    assert tokens(engine.generate(batch, DRAW)) == whole
    set_options(engine, generate_timeout_s=1800)
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.nightly
def test_a_server_whose_engine_dies_within_an_update_is_not_waited_for(child, caplog):
    made, engine = child
    _, *workers = vital(processes_of(engine._servers[0]))
    for worker in workers:
        worker.suspend()
    change(made, seed=3)
    update = threading.Thread(target=engine.sync, args=(made,))
    update.start()
    time.sleep(1)  # it waits for the pause
    for worker in workers:
        worker.kill()
    update.join()
    assert measure_parity(engine, made, make_probe_prompts(made)).max_abs < 1e-5
    assert "server" in caplog.text and "no answer in" not in caplog.text


def test_weights_that_are_not_the_announced_ones_are_refused_by_name(child, found, caplog):
    made, _ = child
    engine = found(made, transfer="tcp")
    set_options(engine, max_restarts=0)
    announced = engine._store.transfer._list

    def announce_another():
        listed = announced()
        return listed | {"digests": [*listed["digests"][:3], "00" * 32, *listed["digests"][4:]]}

    engine._store.transfer._list = announce_another
    with pytest.raises(UserError, match="gave up after 1 tries"):
        engine.sync(made)
    name = announced()["names"][3]
    assert f"weight {name!r}: the bytes that came are not those" in caplog.text


def test_a_server_that_dies_within_a_broadcast_is_no_longer_trusted(
    child, found, monkeypatch, caplog
):
    made, owner = child
    engine = found(made, transfer="tcp")
    set_options(engine, max_restarts=0, start_timeout_s=1)
    send = transfer.send_by_tcp

    def deadly(listener, meeting, expected, over, tensors):
        def watched():
            for number, tensor in enumerate(tensors):
                if number == 5:
                    for process in vital(processes_of(owner._servers[0])):
                        process.kill()
                yield tensor

        send(listener, meeting, expected, over, watched())

    monkeypatch.setattr(transfer, "send_by_tcp", deadly)
    with pytest.raises(UserError, match="gave up after 1 tries"):
        engine.sync(made)
    assert "sync: server" in caplog.text


@pytest.mark.nightly
def test_servers_killed_at_random_moments_lose_no_prompt_and_no_weights(child):
    made, engine = child
    chance = random.Random(0)
    killed = []

    def kill(delay):
        time.sleep(delay)
        killed.append(engine._servers[0].pid)
        chance.choice(vital(processes_of(engine._servers[0]))).kill()

    for step in range(8):
        batch = PromptBatch(tuple(prompt(made, 10 * step + i) for i in range(6)))
        killer = threading.Thread(target=kill, args=(chance.uniform(0, 0.4),))
        if step in (2, 5):
            killer.start()
        rollouts = engine.generate(batch, Sampling(n=4, max_tokens=24, seed=step))
        assert rollouts.batch is batch and rollouts.shape == (6, 4)
        assert gap(made, rollouts, 24) < 1e-5
        assert {v for g in rollouts.completions for c in g for v, _ in c.versions} == {made.version}
        if killer.ident:
            killer.join()
        change(made, step, scale=0.01)
        engine.sync(made)
    assert len({*killed, engine._servers[0].pid}) == 3  # each kill meant another server


# ------------------------------------------------------------------------------- nothing is left

SCRIPT = """
import sys, time
sys.path.insert(0, "{tests}")
from helpers.small import policy
from vlmrl.engines.vllm_server import VllmServer
if __name__ == "__main__":
    engine = VllmServer(enforce_eager=True, **{options!r}).start(policy())
    print(engine._servers[0].pid, engine._store.folder, flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "end",
    [pytest.param("time.sleep(999)", marks=pytest.mark.nightly), "raise RuntimeError('crash')"],
)
def test_no_process_and_no_file_outlives_the_trainer(end, tmp_path):
    script = tmp_path / "trainer.py"
    tests = Path(__file__).parents[1]
    script.write_text(SCRIPT.format(tests=tests, options=SMALL, end=end))
    trainer = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    pid, folder = trainer.stdout.readline().split()
    server = psutil.Process(int(pid))
    family = [server, *server.children(recursive=True)]
    if "sleep" in end:
        assert len(family) > 1 and os.path.isdir(folder)
        trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive
    assert not os.path.exists(folder)


def test_close_ends_the_server_and_may_be_called_twice(child):
    _, engine = child
    family = processes_of(engine._servers[0])
    folder = engine._store.folder
    engine.close()
    engine.close()
    assert not psutil.wait_procs(family, timeout=5)[1]
    assert not os.path.exists(folder)
