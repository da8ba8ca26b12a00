"""`vlmrl watch`: what its server answers, to whom, and under which content policy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from helpers.report_page import Page, completion, config, row
from vlmrl.errors import UserError
from vlmrl.features.report.watch_server import WatchedRuns, build_watch_app, watch
from vlmrl.runs import run_folder
from vlmrl.system import files
from vlmrl.system.processes import TOKEN

HERE = ("testserver",)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, reward in (("one", 0.25), ("two & <b>", 0.5)):
        run_folder.write_config(tmp_path / name, config())
        for step in (1, 2):
            line = {"step": step, "reward/mean": reward * step, "time/update": 1.0}
            files.append_line(run_folder.metrics_path(tmp_path / name), line)
    return tmp_path


@pytest.fixture
def client(runs: Path) -> TestClient:
    return TestClient(build_watch_app(WatchedRuns(runs), None, HERE))


def asked(**seen: str) -> dict[str, str]:
    return {"seen": json.dumps(seen)}


def test_a_page_runs_exactly_our_script_and_loads_nothing(
    client: TestClient, tmp_path: Path
) -> None:
    for address in ("/", "/run/one"):
        reply = client.get(address)
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        (script,) = re.findall(r"<script>(.*?)</script>", reply.text, re.S)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
        saved = tmp_path / "page.html"
        saved.write_text(reply.text)
        for tag, attributes in Page(saved).tags:
            assert tag not in {"link", "iframe", "object", "embed", "base"}
            assert not [key for key in attributes if key.startswith("on") or key == "src"]


def test_what_is_new_of_a_run_is_given_once(client: TestClient, runs: Path) -> None:
    first = client.get("/run/one/changes", params=asked(status="", Reward="")).json()
    assert set(first) == {"status", "Reward"} and "2 of 100" in first["status"][1]
    seen = {name: key for name, (key, _) in first.items()}
    assert client.get("/run/one/changes", params=asked(**seen)).json() == {}
    line = {"step": 3, "reward/mean": 0.9, "time/update": 1.0}
    files.append_line(run_folder.metrics_path(runs / "one"), line)
    again = client.get("/run/one/changes", params=asked(**seen)).json()
    assert set(again) == {"status", "Reward"} and "3 of 100" in again["status"][1]


def test_runs_are_compared_and_the_chosen_ones_alone(client: TestClient) -> None:
    found = client.get("/changes", params=asked(runs="", compared="")).json()
    assert all(
        "two &amp; &lt;b&gt;" in html and "two & <b>" not in html for _, html in found.values()
    )
    assert found["compared"][1].count('class="line"') == 2
    chosen = {**asked(compared=""), "run": ["one", "no such run"], "across": "samples"}
    alone = client.get("/changes", params=chosen).json()["compared"][1]
    assert alone.count('class="line"') == 1 and "completions sampled" in alone
    assert "by their steps" in client.get("/changes", params={**chosen, "across": "<x>"}).text


@pytest.mark.parametrize("name", ["none", "..%2Fone", "%2E%2E", "two"])
def test_only_runs_that_are_in_the_folder_have_a_page(client: TestClient, name: str) -> None:
    assert client.get(f"/run/{name}").status_code == 404
    assert client.get(f"/run/{name}/changes").status_code == 404


@pytest.mark.parametrize("seen", ["{", "[]", "7", "[" * 20_000])
def test_nonsense_is_answered_as_nothing_seen(client: TestClient, seen: str) -> None:
    assert client.get("/run/one/changes", params={"seen": seen}).json() == {}


def test_a_single_run_is_shown_at_once_and_a_run_may_begin_later(runs: Path) -> None:
    alone = TestClient(build_watch_app(WatchedRuns(runs / "one"), None, HERE))
    assert alone.get("/").url.path == "/run/one"
    client = TestClient(build_watch_app(WatchedRuns(runs), None, HERE))
    waiting = client.get("/run/three<b>")
    assert (
        waiting.status_code == 404 and "data-waiting" in waiting.text and "<b>" not in waiting.text
    )
    run_folder.write_config(runs / "three", config())
    assert client.get("/run/three").status_code == 200


def test_a_folder_may_become_a_run_and_a_run_may_go(runs: Path) -> None:
    (runs / "later").mkdir()
    client = TestClient(build_watch_app(WatchedRuns(runs / "later"), None, HERE))
    assert "Compared" in client.get("/").text
    run_folder.write_config(runs / "later", config())
    assert client.get("/").url.path == "/run/later"
    (runs / "later").rename(runs / "aside")
    gone = client.get("/run/later/changes", params=asked(status="")).json()
    assert "the run folder is gone" in gone["status"][1]
    several = TestClient(build_watch_app(WatchedRuns(runs), None, HERE))
    assert "aside" in several.get("/changes", params=asked(runs="")).json()["runs"][1]
    (runs / "aside").rename(runs / "again")
    listed = several.get("/changes", params=asked(runs="")).json()["runs"][1]
    assert "again" in listed and "aside" not in listed
    assert several.get("/run/aside/changes").json()["error"] == "no run 'aside' here"


def test_the_prompts_that_an_address_chooses_are_given(client: TestClient, runs: Path) -> None:
    rows = [row("a", [completion(0.5)]), row("b", [completion(0.5, answer=None)])]
    files.write_lines(run_folder.rollouts_path(runs / "one", 2), rows)
    both = client.get("/run/one/changes", params=asked(rollouts="")).json()["rollouts"]
    seen = asked(rollouts=both[0])
    chosen = client.get("/run/one/changes", params={**seen, "failure": "unread"}).json()["rollouts"]
    assert "2 of 2 prompts" in both[1] and "1 of 2 prompts" in chosen[1]
    assert client.get("/run/one/changes", params=seen).json() == {}


def test_a_foreign_host_name_and_a_wrong_token_are_refused(runs: Path) -> None:
    app = build_watch_app(WatchedRuns(runs), "secret", HERE)
    client = TestClient(app)
    for address in ("/", "/changes", "/run/one", "/run/one/changes"):
        refused = client.get(address)
        assert refused.status_code == 401 and "Basic" in refused.headers["www-authenticate"]
        assert client.get(address, auth=("me", "wrong")).status_code == 401
        assert client.get(address, headers={"Authorization": "Basic é".encode()}).status_code == 401
        assert client.get(address, auth=("anyone", "secret")).status_code == 200
        bearer = {"Authorization": "Bearer secret"}
        assert client.get(address, headers=bearer).status_code == 200
        assert client.get(address, headers={**bearer, "Host": "evil.test"}).status_code == 400
        assert client.post(address, headers=bearer).status_code == 405


def test_other_machines_need_a_token_and_a_folder_must_be_there(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(UserError, match=f"set {TOKEN} to a secret"):
        watch(runs, "0.0.0.0", 0)
    with pytest.raises(UserError, match="expected a run folder or a folder of runs"):
        watch(runs / "nothing", "127.0.0.1", 0)


WITHOUT_TORCH = """
import json, sys
from starlette.testclient import TestClient
from vlmrl.cli.app import app
from vlmrl.features.report.watch_server import WatchedRuns, build_watch_app
from pathlib import Path

folder = Path(sys.argv[1])
app(["report", str(folder / "one")], standalone_mode=False)
client = TestClient(build_watch_app(WatchedRuns(folder), None, ("testserver",)))
parts = ("status", "sentence", "curve", "layout", "Reward", "Time")
found = client.get("/run/one/changes", params={"seen": json.dumps(dict.fromkeys(parts, ""))})
print(sorted(found.json()), sorted({"torch", "transformers", "datasets"} & set(sys.modules)))
"""


def test_report_and_live_page_load_no_torch(runs: Path) -> None:
    # It takes longer to import than the pages take to make.
    command = [sys.executable, "-c", WITHOUT_TORCH, str(runs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    made, loaded = done.stdout.splitlines()[-1].split("] ")
    assert "'Reward'" in made and loaded == "[]"
