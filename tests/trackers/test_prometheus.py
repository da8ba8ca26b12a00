"""What Prometheus reads of a run while it trains: every number, legal names, counters that go on."""

from __future__ import annotations

import math
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from helpers import scraper
from helpers.runs import ROOT, TINY
from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.runs import metrics as glossary
from vlmrl.runs.tracker import TrackedRun, Tracker
from vlmrl.system.files import read_lines

pytest.importorskip("prometheus_client")

Shown = dict[tuple[str, frozenset[tuple[str, str]]], float]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(text: str) -> tuple[Shown, dict[str, tuple[str, str]]]:
    """The samples by name and labels, and (kind, help) by name, as Prometheus' own parser reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    samples, families = {}, {}
    for family in text_string_to_metric_families(text):
        families[family.name] = family.type, family.documentation
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples
            samples[key] = sample.value
    return samples, families


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({"run": "first", **labels}.items())


@pytest.fixture
def port() -> int:
    return free_port()


def started(port: int, folder: Path, step: int = 0) -> Tracker:
    tracker: Tracker = plugins.build("tracker", "prometheus", {"port": port})
    tracker.start(TrackedRun("first", folder, {}, step, glossary.find))
    return tracker


def test_names_help_and_labels_are_those_of_the_glossary(port: int, tmp_path: Path) -> None:
    tracker = started(port, tmp_path)
    metrics = {
        "reward/mean": 0.5,
        "source/cell photos/reward": 0.25,
        'source/a "b"\\c\n/box_iou': 0.75,
        "loss/total": math.nan,
        "schedule/optimizer.lr": math.inf,
        "my own/ünusual": 3.0,
    }
    try:
        tracker.log("rl", 1, metrics)
        tracker.log("sft", 4, {"loss": 2.0})
        evaluated = {"reward": 0.125, "shapes/box_iou": 0.5, "sampled/mode/think/length": 7.0}
        tracker.log_evaluation(1, evaluated)
        samples, families = read(scraper.scrape(port))
    finally:
        tracker.close()
    expected = {
        key("vlmrl_reward_mean"): 0.5,
        key("vlmrl_source_reward", source="cell photos"): 0.25,
        key("vlmrl_source_verifier", source='a "b"\\c\n', verifier="box_iou"): 0.75,
        key("vlmrl_schedule_key", key="optimizer.lr"): math.inf,
        key("vlmrl_other", metric="my own/ünusual"): 3.0,
        key("vlmrl_sft_loss"): 2.0,
        key("vlmrl_evaluation_reward"): 0.125,
        key("vlmrl_evaluation_metric", source="shapes", metric="box_iou"): 0.5,
        key("vlmrl_evaluation_sampled_mode_length", mode="think"): 7.0,
        key("vlmrl_run_steps_total"): 1,
        key("vlmrl_run_sft_steps_total"): 4,
    }
    assert {k: samples[k] for k in expected} == expected
    assert math.isnan(samples[key("vlmrl_loss_total_value")])
    assert families["vlmrl_reward_mean"] == ("gauge", glossary.STEP["reward/mean"])
    assert families["vlmrl_run_steps"][0] == "counter"


def test_every_name_of_the_glossary_is_legal_and_its_own() -> None:
    from vlmrl.parts.trackers.prometheus import legal_name

    known = [
        *glossary.STEP,
        *glossary.of_algorithms(),
        *glossary.of_samplers_and_strategies(),
        *(f"sft/{name}" for name in glossary.SFT),
        *(f"evaluation/{name}" for name in glossary.EVALUATION),
    ]
    labels = {name: frozenset(re.findall("<(.+?)>", name)) for name in known}
    names = {(legal_name(name), labels[name]) for name in known}
    assert len(names) == len(set(known))
    assert all(re.fullmatch("[a-z_][a-z0-9_]*", name) for name, _ in names)
    by_name = {name for name, _ in names}
    assert len(by_name) == len(names), "one name has one set of labels"


def test_nobody_can_write_and_the_port_is_free_at_the_end(port: int, tmp_path: Path) -> None:
    tracker = started(port, tmp_path)
    try:
        before = scraper.scrape(port)
        for method in ("POST", "PUT", "DELETE"):
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", b"x", method=method)
            with pytest.raises(urllib.error.HTTPError, match="405"):
                urllib.request.urlopen(asked, timeout=30)
        assert scraper.scrape(port) == before
    finally:
        tracker.close()
    started(port, tmp_path).close()


def test_a_port_in_use_is_one_line(port: int, tmp_path: Path) -> None:
    first = started(port, tmp_path)
    try:
        with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{port}: Address already"):
            started(port, tmp_path)
    finally:
        first.close()


def test_it_listens_on_the_loopback_alone(port: int, tmp_path: Path) -> None:
    tracker = started(port, tmp_path)
    try:
        listening = Path("/proc/net/tcp").read_text().split("\n")[1:]
        local = [line.split()[1] for line in listening if line.split()[3:4] == ["0A"]]
        assert [address for address in local if address.endswith(f":{port:04X}")] == [
            f"0100007F:{port:04X}"
        ]
    finally:
        tracker.close()


def train(folder: Path, port: int, *more: str) -> None:
    tracking = (
        f"tracking={{tensorboard: false, prometheus: {{port: {port}}}, "
        f"'{scraper.__file__}:Scraper': {{port: {port}}}}}"
    )
    few = ["run.name=first", f"run.dir={folder}", "sft=null", "evaluation.every=9", tracking]
    command = [sys.executable, "-m", "vlmrl", "train", "quickstart", *TINY, *few, *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tracker 'prometheus'" not in done.stdout


@pytest.mark.nightly
def test_a_run_is_scraped_while_it_trains_and_counters_go_on(port: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, port, "run.steps=2")
    with pytest.raises(urllib.error.URLError):
        scraper.scrape(port)
    train(folder, port, "run.steps=3", "resume=auto")

    def at(name: str) -> Shown:
        return read((folder / f"scraped-{name}.txt").read_text())[0]

    lines = read_lines(folder / "metrics.jsonl")
    tokens = phases = 0.0
    for step, line in enumerate(lines, start=1):
        shown = at(f"rl-{step}")
        for name in ("reward/mean", "rollout/length", "update/grad_norm", "time/update"):
            assert shown[key("vlmrl_" + name.replace("/", "_"))] == line[name]
        assert (
            shown[key("vlmrl_source_verifier", source="shapes", verifier="varied")]
            == (line["source/shapes/varied"])
        )
        tokens, phases = tokens + line["update/tokens"], phases + line["time/update"]
        assert shown[key("vlmrl_run_steps_total")] == step
        assert shown[key("vlmrl_run_loss_tokens_total")] == tokens
        assert shown[key("vlmrl_run_seconds_total", phase="update")] == pytest.approx(phases)
        assert [labels for name, labels in shown if name == "vlmrl_other"] == []
    assert at("start-0")[key("vlmrl_run_steps_total")] == 0
    assert at("start-2")[key("vlmrl_run_steps_total")] == 2
    assert at("start-2")[key("vlmrl_run_loss_tokens_total")] > 0
    assert key("vlmrl_evaluation_reward") in at("evaluation-3")
