"""The page that starts runs: whom it answers, what it says of a config and writes, and what it begins."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from helpers.runs import ROOT
from helpers.started import TINY_CONFIG
from vlmrl.errors import UserError
from vlmrl.features.report.started_runs import StartedRuns
from vlmrl.features.report.watch_server import WatchedRuns, build_watch_app, watch
from vlmrl.policy import checkpoint
from vlmrl.runs import run_folder, run_lock
from vlmrl.system.processes import TOKEN

HOST = "testserver"
BEARER = {"Authorization": "Bearer secret"}
OURS = {**BEARER, "Origin": f"http://{HOST}"}
ACTIONS = ("open", "check", "save", "forecast", "run", "stop", "resume")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    runs = Path("runs")
    app = build_watch_app(WatchedRuns(runs), None, (HOST,), (StartedRuns(runs), "secret"))
    return TestClient(app)


def ask(client: TestClient, action: str, **body: Any) -> Any:
    """What the page is answered; for a refusal, its text."""
    reply = client.post(f"/start/{action}", json=body, headers=OURS)
    content = reply.json()
    return content if reply.status_code == 200 else content["error"]["message"]


# ------------------------------------------------------------------------------------- whom it answers


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_the_token_in_a_header_and_json_of_this_page(
    client: TestClient, tmp_path: Path, action: str
) -> None:
    address = f"/start/{action}"
    body = {"name": "mine.yaml", "text": "extends: quickstart\n", "shipped": "quickstart"}
    here = {"Origin": f"http://{HOST}"}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer é".encode()}):
        assert client.post(address, json=body, headers={**here, **headers}).status_code == 401
    # A browser adds a password by itself, to requests of other pages as well: it is no token.
    assert client.post(address, json=body, headers=here, auth=("me", "secret")).status_code == 401
    for origin in ("http://evil.test", f"https://{HOST}", "null", f"http://{HOST}:1"):
        headers = {**BEARER, "Origin": origin}
        assert client.post(address, json=body, headers=headers).status_code == 403
    assert client.post(address, json=body, headers=BEARER).status_code == 403
    foreign = {**BEARER, "Origin": "http://evil.test", "Host": "evil.test"}
    assert client.post(address, json=body, headers=foreign).status_code == 400
    plain = {**OURS, "Content-Type": "text/plain"}
    assert client.post(address, content=b"{}", headers=plain).status_code == 415
    assert client.get(address, headers=OURS).status_code == 405
    assert client.post(address, json=[], headers=OURS).status_code == 400
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_without_the_token_the_page_says_nothing_of_this_machine(
    client: TestClient, tmp_path: Path
) -> None:
    (tmp_path / "private_name.yaml").write_text("extends: quickstart\n")
    page = client.get("/start")
    assert page.status_code == 200 and "private_name" not in page.text and "secret" not in page.text
    assert "script-src 'sha256-" in page.headers["content-security-policy"]
    assert "'unsafe-eval'" not in page.headers["content-security-policy"]
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        refused = client.get("/start/state", headers=headers)
        assert refused.status_code == 401 and "private_name" not in refused.text
    assert client.get("/start/state", auth=("me", "secret")).status_code == 401
    state = client.get("/start/state", headers=BEARER).json()
    assert state["files"] == ["private_name.yaml"] and "quickstart" in state["shipped"]
    assert client.get("/start/state", headers=BEARER, params={"seen": state["key"]}).json() == {}


def test_runs_are_started_where_that_was_asked_for_and_from_this_machine_alone(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = TestClient(build_watch_app(WatchedRuns(Path("runs")), None, (HOST,)))
    assert reading.get("/start").status_code == 404 and "/start" not in reading.get("/").text
    assert reading.post("/start/run", json={}, headers=OURS).status_code == 404
    assert 'href="/start"' in client.get("/").text
    monkeypatch.setenv(TOKEN, "secret")
    with pytest.raises(UserError, match=re.escape("ssh -L 8010:127.0.0.1:8010")):
        watch(tmp_path / "runs", "0.0.0.0", 8010, start=True)
    (tmp_path / "runs" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="expects a folder of runs, got a run"):
        watch(tmp_path / "runs", "127.0.0.1", 8010, start=True)


# ----------------------------------------------------------------------------- what it says of a config

WRONG = {
    "unknown": (
        "optimizer:\n  lrr: 1\n",
        "line 4</button> <code>optimizer.lrr",
        "did you mean &#39;lr&#39;?",
    ),
    "value": ("run: {steps: five}\n", "line 3</button> <code>run.steps", "found &#39;five&#39;"),
    "verifier": ("rewards: [box_iuo]\n", "rewards", "did you mean &#39;box_iou&#39;?"),
    "twice": ("extends: x\n", "mine.yaml, line 3", "is already set in line 2"),
    "no yaml": ("run:\n\tsteps: 5\n", "line 4</button> mine.yaml, line 4", "not with tabs"),
    "base": ("", "extends", "did you mean &#39;quickstart&#39;?"),
}
"""A mistake -> the text that follows `extends: quickstart` in line 2, and what is said of it, and where."""


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_said_beside_its_key_with_its_line(client: TestClient, name: str) -> None:
    text, where, what = WRONG[name]
    base = "quickstat" if name == "base" else "quickstart"
    found = ask(client, "check", name="mine.yaml", text=f"# mine\nextends: {base}\n{text}")
    assert found["count"] == 1
    (line,) = [line for line in found["keys"].splitlines() if what in line]
    assert where in line


def test_keys_have_their_help_and_overrides_are_checked(client: TestClient) -> None:
    text = "extends: quickstart\noptimizer: {lr: 1.0e-4}\n"
    found = ask(
        client, "check", name="mine.yaml", text=text, overrides="run.steps=50 'run.name=a b'"
    )
    assert found["count"] == 0 and "Learning rate after the warm-up." in found["keys"]
    assert found["commands"]["train"] == "vlmrl train mine.yaml run.steps=50 'run.name=a b'"
    for overrides, what in (
        ("run.stepz=5", "run.stepz: unknown key"),
        ("steps", "write key=value"),
        ("'run.name=x", "No closing quotation"),
        ("--debug", "write key=value"),
    ):
        found = ask(client, "check", name="mine.yaml", text=text, overrides=overrides)
        assert found["count"] == 1 and what in found["keys"]


def test_texts_stay_texts(client: TestClient, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    text = f'extends: quickstart\n"{hostile}": 1\nrun: {{name: "{hostile}"}}\n'
    found = ask(client, "check", name="mine.yaml", text=text)
    assert "<script" not in found["keys"] and "&lt;script&gt;alert(1)" in found["keys"]
    (tmp_path / "runs" / f"{hostile.replace('/', ' ')}.log").write_text(hostile)
    (tmp_path / "runs" / "mine.log").write_text(hostile)
    (tmp_path / "runs" / ".mine.started").write_text(
        f'{{"arguments": ["{hostile}"], "pid": 0, "started": 0}}'
    )
    runs = client.get("/start/state", headers=BEARER).json()["runs"]
    assert "<script" not in runs and runs.count("&lt;script&gt;alert(1)") >= 2


# ------------------------------------------------------------------------------------- what it writes


def test_a_config_begins_from_a_shipped_one_under_a_free_name(client: TestClient) -> None:
    first = ask(client, "open", shipped="quickstart")
    assert first["name"] == "mine.yaml" and "box_iou" in first["base"]
    assert ask(client, "check", **first)["count"] == 0
    digest = ask(client, "save", **first)["digest"]
    opened = ask(client, "open", name="mine.yaml")
    assert (opened["text"], opened["digest"]) == (first["text"], digest)
    assert ask(client, "open", shipped="quickstart")["name"] == "mine2.yaml"
    assert "no shipped config" in ask(client, "open", shipped="../quickstart")
    assert "cannot be read" in ask(client, "open", name="nothing.yaml")


def test_a_file_is_kept_unless_it_is_known_or_to_be_replaced(
    client: TestClient, tmp_path: Path
) -> None:
    digest = ask(client, "save", name="mine.yaml", text="a: 1\n")["digest"]
    assert "is there already" in ask(client, "save", name="mine.yaml", text="a: 2\n")
    assert "is there already" in ask(client, "save", name="mine.yaml", text="a: 2\n", replace="yes")
    assert (tmp_path / "mine.yaml").read_bytes() == b"a: 1\n"
    ask(client, "save", name="mine.yaml", text="a: é\n", digest=digest)
    assert (tmp_path / "mine.yaml").read_text("utf-8") == "a: é\n"
    (tmp_path / "mine.yaml").write_text("an editor was here\n")
    assert "is there already" in ask(client, "save", name="mine.yaml", text="a: 3\n", digest=digest)
    ask(client, "save", name="mine.yaml", text="a: 3\n", replace=True)
    assert (tmp_path / "mine.yaml").read_bytes() == b"a: 3\n"


@pytest.mark.parametrize(
    "name",
    [
        "../out.yaml",
        "/tmp/out.yaml",
        "a/b.yaml",
        ".hidden.yaml",
        "mine.py",
        "",
        "a\n.yaml",
        "-.yaml",
    ],
)
def test_names_stay_in_the_folder(client: TestClient, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    for action in ("save", "open"):
        assert "without a folder" in ask(client, action, name=name, text="a: 1\n")
    assert sorted(tmp_path.rglob("*")) == before


# ------------------------------------------------------------------------------------- what it begins


def test_what_cannot_run_is_refused_before_it_begins(client: TestClient, tmp_path: Path) -> None:
    ask(client, "save", name="mine.yaml", text="extends: quickstart\nrun: {name: mine}\n")
    refused = {
        "run.stepz=5": "run.stepz: unknown key; did you mean 'steps'?",
        "run.dir=elsewhere/mine": "write run.dir=runs/mine",
        "run.dir=runs/a/b": "expected a folder in runs",
        "--json": "write key=value",
    }
    for overrides, what in refused.items():
        assert what in ask(client, "run", name="mine.yaml", overrides=overrides)
    with run_lock.own(tmp_path / "runs" / "mine"):
        held = ask(client, "run", name="mine.yaml")
        assert "another run is writing to this folder" in held and str(os.getpid()) in held
    for name in ("", "../mine", ".mine", "none"):
        for action in ("stop", "resume"):
            assert isinstance(ask(client, action, name=name), str)
    assert not [*(tmp_path / "runs").glob("*.log"), *(tmp_path / "runs").glob(".*.started")]


def test_a_run_of_a_launch_or_of_another_machine_is_not_stopped_from_here(
    client: TestClient, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "mine"
    with run_lock.own(folder):
        run_lock.begin_attempt(folder)
        assert "no process to stop on this machine" in ask(client, "stop", name="mine")


def test_a_process_of_another_run_with_the_same_number_is_left_alone(
    client: TestClient, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        record = f'{{"arguments": ["mine.yaml"], "pid": {other.pid}, "started": 1.0}}'
        (tmp_path / "runs" / ".mine.started").write_text(record)
        assert "no process to stop on this machine" in ask(client, "stop", name="mine")
        assert other.poll() is None
        other.kill()


class RealServer:
    """`vlmrl watch --start` in a folder, asked over HTTP as its page does."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "vlmrl", "watch", "--start", "--port", "0"]
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        environment = {key: value for key, value in os.environ.items() if key != TOKEN} | path
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        found = re.search(r"(http://\S+)/start#(\S+)", self.process.stdout.readline())
        assert found is not None
        self._at = found[1]
        self._headers = {"Authorization": f"Bearer {found[2]}", "Origin": found[1]}

    def get(self, address: str, body: dict[str, str] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._at}{address}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as refusal:
            return refusal.read().decode()

    def ask(self, action: str, **body: str) -> Any:
        content = json.loads(self.get(f"/start/{action}", body))
        return content["error"]["message"] if "error" in content else content

    def wait(self, text: str) -> str:
        """Wait until the page shows a text among the runs; return what it shows of them."""
        for _ in range(2400):
            runs = str(json.loads(self.get("/start/state"))["runs"])
            if text in runs:
                return runs
            time.sleep(0.1)
        raise AssertionError(f"no {text} in {runs}")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def state(name: str, state: str) -> str:
    return f'data-name="{name}" data-state="{state}"'


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], RealServer]]:
    servers: list[RealServer] = []

    def begin() -> RealServer:
        servers.append(RealServer(tmp_path))
        return servers[-1]

    yield begin
    for server in servers:
        if server.process.poll() is None:
            server.end()


@pytest.mark.slow
def test_a_run_is_started_followed_stopped_and_resumed_and_outlives_the_server(
    serve: Callable[[], RealServer], tmp_path: Path
) -> None:
    server, folder = serve(), tmp_path / "runs" / "mine"
    server.ask("save", name="mine.yaml", text=TINY_CONFIG)
    long = "run.steps=2000 evaluation.every=2000"
    assert server.ask("run", name="mine.yaml", overrides=long) == {"run": "mine"}
    assert "another run is writing" in server.ask("run", name="mine.yaml")
    server.wait(state("mine", "running"))
    server.end()  # the run goes on
    server = serve()
    runs = server.wait(state("mine", "running"))
    assert "vlmrl train mine.yaml run.steps=2000" in runs and 'data-ask="resume"' not in runs
    while not run_folder.metrics_path(folder).exists():
        time.sleep(0.1)
    for _ in range(2):  # the second sends no signal, which would end the run without saving
        assert server.ask("stop", name="mine") == {"run": "mine"}
    runs = server.wait('data-ask="resume" data-run="mine"')
    done = len(run_folder.read_metrics(folder))
    last = checkpoint.latest(folder)
    assert last is not None and last.name == f"step-{done}" and done < 2000
    assert "resume=auto" in (tmp_path / "runs" / "mine.log").read_text()
    assert f"vlmrl train mine.yaml {long} resume=auto" in runs
    assert server.ask("resume", name="mine") == {"run": "mine"}
    while len(run_folder.read_starts(folder)) < 2:
        time.sleep(0.1)
    server.ask("stop", name="mine")
    runs = server.wait('data-ask="resume" data-run="mine"')
    assert "exit code" not in runs
    assert len(run_folder.read_metrics(folder)) >= done


@pytest.mark.slow
def test_a_run_ends_and_one_that_cannot_begin_says_why(
    serve: Callable[[], RealServer], tmp_path: Path
) -> None:
    server = serve()
    server.ask("save", name="mine.yaml", text=TINY_CONFIG)
    server.ask("run", name="mine.yaml", overrides="run.steps=2")
    bad = "run.name=bad data.media_root=no/such"
    assert server.ask("run", name="mine.yaml", overrides=bad) == {"run": "bad"}
    runs = server.wait(state("bad", "did not begin"))
    assert "exit code 2" in runs and "no file or folder" in runs
    runs = server.wait(state("mine", "finished"))
    assert "2 of 2" in runs and 'data-ask="resume" data-run="mine"' not in runs
    followed = json.loads(server.get("/run/mine/changes?seen=%7B%22status%22:%22%22%7D"))
    assert "2 of 2" in followed["status"][1]
    log = (tmp_path / "runs" / "mine.log").read_text()
    assert "$ vlmrl train mine.yaml run.steps=2\n" in log and "step 2/2" in log
    assert (tmp_path / "runs" / "mine" / "summary.json").is_file()
