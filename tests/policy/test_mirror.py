"""A mirror in a store: what is there is whole, kept and deleted as the run folder's, written by one
process, and goes on byte-equal; a store that fails is told of and ends nothing."""

from __future__ import annotations

import errno
import os
import secrets
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from helpers.killed_forks import folders_of
from helpers.mirrored import begin, contents, write_step
from vlmrl import config
from vlmrl.errors import UserError
from vlmrl.policy.mirror import claim, uploads
from vlmrl.policy.mirror.download import download_newest
from vlmrl.policy.mirror.manifests import attempts, manifests, read_manifest
from vlmrl.policy.mirror.store import open_store


class Limited(MemoryFileSystem):
    """A store that refuses all writes while it is full."""

    protocol = "limited"
    store: dict = {}
    pseudo_dirs = [""]
    full = False

    def pipe_file(self, path, value, mode="overwrite", **rest):
        if self.full and not path.endswith("alive"):
            raise OSError(errno.ENOSPC, "No space left, says key AKIAIOSFODNN7EXAMPLE")
        super().pipe_file(path, value, mode, **rest)


fsspec.register_implementation("limited", Limited, clobber=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(uploads, "AGAIN_S", 0.0)
    monkeypatch.setattr(claim, "LOOK_S", 0.01)
    monkeypatch.setattr(claim, "WATCH_S", 0.1)


@pytest.fixture
def url():
    return f"memory://{secrets.token_hex(4)}/runs/tiny"


def copied(run, url, *steps, keep=9, best=None):
    """Write these steps and copy each; return what was said."""
    said = []
    copier, owned = begin(run, url, keep, said.append)
    for step in steps:
        write_step(run, step)
        copier.follow(best)
        copier.finish()
    owned.release()
    return said


def objects(url):
    store = open_store(url)
    return [name for a in attempts(store) for name in store.objects(a.folder)]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_fresh_folder_gets_the_newest_checkpoint_and_the_logs(kind, tmp_path, url):
    url = url if kind == "memory" else f"file://{tmp_path}/store/tiny"
    copied(tmp_path / "run", url, 1, 2)
    found = download_newest(open_store(url), tmp_path / "fresh", None, print)
    assert found == tmp_path / "fresh/checkpoints/step-2"
    expected = contents(tmp_path / "run")
    expected = {k: v for k, v in expected.items() if not k.startswith("checkpoints/step-1/")}
    assert contents(tmp_path / "fresh") == expected


def test_a_large_file_is_not_read_at_once(tmp_path, url, monkeypatch):
    from vlmrl.policy.mirror import contents as module

    monkeypatch.setattr(module, "MAX_READ", 100)
    copied(tmp_path / "run", url, 1)
    download_newest(open_store(url), tmp_path / "fresh", None, print)
    assert contents(tmp_path / "fresh") == contents(tmp_path / "run")


def test_the_output_of_a_launch_that_goes_on_is_not_replaced_by_that_of_an_earlier_one(
    tmp_path, url
):
    for number in (1, 2):
        home = tmp_path / f"run/logs/attempt-{number}"
        home.mkdir(parents=True)
        (home / "rank-0.log").write_text("earlier")
    copied(tmp_path / "run", url, 1)
    own = tmp_path / "fresh/logs/attempt-1/rank-0.log"
    own.parent.mkdir(parents=True)
    with own.open("w") as file:
        assert download_newest(open_store(url), tmp_path / "fresh", None, print)
        file.write("now")
    assert own.read_text() == "now"
    assert (tmp_path / "fresh/logs/attempt-2/rank-0.log").read_text() == "earlier"


def test_a_local_checkpoint_that_is_as_far_stays(tmp_path, url):
    copied(tmp_path / "run", url, 1)
    local = write_step(tmp_path / "other", 1, size=7)
    assert download_newest(open_store(url), tmp_path / "other", local, print) == local
    assert (local / "model.safetensors").stat().st_size == 7


def test_the_last_ones_and_the_best_are_kept_and_nothing_that_none_of_them_has(tmp_path, url):
    copied(tmp_path / "run", url, 1, 2, keep=2, best=2)
    copied(tmp_path / "run", url, 3, 4, 5, keep=2, best=2)
    store = open_store(url)
    found = manifests(store, attempts(store))
    assert [manifest.checkpoint for manifest in found] == ["step-2", "step-4", "step-5"]
    used = {stored.name for m in found for stored in read_manifest(store, m).values()}
    own = f"{attempts(store)[-1].folder}/"
    claims = {own + "alive", own + "attempt.json"}
    assert set(objects(url)) == used | {manifest.name for manifest in found} | claims


def test_what_has_not_changed_is_copied_once(tmp_path, url):
    copied(tmp_path / "run", url, 1, 2)
    names = objects(url)
    assert sum(name.endswith("rollouts/step-1.jsonl") for name in names) == 1
    assert sum(name.endswith("metrics.jsonl") for name in names) == 2


def test_a_damaged_checkpoint_is_passed_over_by_name_and_never_all_of_them(tmp_path, url):
    copied(tmp_path / "run", url, 1, 2, 3)
    store, said = open_store(url), []
    third, second, first = (
        next(n for n in objects(url) if n.endswith(f"step-{step}/model.safetensors"))
        for step in (3, 2, 1)
    )
    store.write(third, store.read(third)[:-1] + b"!")
    store.delete([second])
    found = download_newest(store, tmp_path / "fresh", None, said.append)
    assert found.name == "step-1"
    assert f"step-3 is damaged and passed over: {third} was changed" in said[0]
    assert f"step-2 is damaged and passed over: {url}/{second} is missing" in said[1]
    store.write(first, b"")
    with pytest.raises(
        UserError, match=r"all checkpoints are damaged .*has 0 bytes, expected 1000"
    ):
        download_newest(store, tmp_path / "third", None, said.append)
    assert not list((tmp_path / "third").rglob("*step*"))


def test_a_manifest_cannot_name_files_outside_of_the_run(tmp_path, url):
    copied(tmp_path / "run", url, 1)
    store, said = open_store(url), []
    name = manifests(store, attempts(store))[-1].name
    store.write(name, store.read(name).replace(b'"metrics.jsonl"', b'"../metrics.jsonl"'))
    with pytest.raises(UserError, match="outside of the run"):
        download_newest(store, tmp_path / "fresh/run", None, said.append)
    assert not (tmp_path / "fresh/metrics.jsonl").exists()


def test_a_full_store_is_told_each_time_and_at_the_end_and_the_next_checkpoint_tries_again(
    tmp_path, monkeypatch
):
    url, run, said = f"limited://{secrets.token_hex(4)}/tiny", tmp_path / "run", []
    copier, owned = begin(run, url, tell=said.append)
    monkeypatch.setattr(Limited, "full", True)
    write_step(run, 1)
    copier.follow(None)
    with pytest.raises(
        UserError, match=r"not copied to its end \(newest there .*: none\).*No space"
    ):
        copier.finish()
    copier.require_ours()  # the run itself goes on
    assert len(said) >= uploads.TRIES and all("copying step-1 failed" in line for line in said)
    assert not any("AKIA" in line for line in said)
    monkeypatch.setattr(Limited, "full", False)
    write_step(run, 2)
    copier.follow(None)
    copier.finish()
    owned.release()
    assert download_newest(open_store(url), tmp_path / "fresh", None, print).name == "step-2"


def test_a_local_file_that_was_damaged_is_not_copied_as_whole(tmp_path, url):
    home = write_step(tmp_path / "run", 1)
    (home / "model.safetensors").write_bytes(b"damaged")
    copier, owned = begin(tmp_path / "run", url)
    with pytest.raises(UserError, match=r"model\.safetensors was changed after it was written"):
        copier.finish()
    owned.release()
    assert manifests(open_store(url), attempts(open_store(url))) == []


def test_a_second_process_is_refused_while_the_first_lives(tmp_path, url, monkeypatch):
    monkeypatch.setattr(claim, "BEAT_S", 0.01)
    monkeypatch.setattr(claim, "WATCH_S", 60.0)
    _, owned = begin(tmp_path / "run", url)
    with pytest.raises(UserError, match=rf"another run writes it \(process {os.getpid()} on "):
        begin(tmp_path / "other", url)
    owned.release()
    _, successor = begin(tmp_path / "other", url)
    assert successor.attempt.number == 2


def test_one_that_gave_no_sign_writes_nothing_more_once_it_has_a_successor(tmp_path, url):
    silent, _ = begin(tmp_path / "run", url)
    write_step(tmp_path / "run", 1)
    silent.follow(None)
    silent.finish()
    begin(tmp_path / "other", url)
    before = objects(url)
    write_step(tmp_path / "run", 2)
    silent.follow(None)
    with pytest.raises(UserError, match="writes it now, because this process gave no sign of life"):
        silent.finish()
    with pytest.raises(UserError, match="the run stops here"):
        silent.require_ours()
    assert objects(url) == before


@pytest.mark.parametrize(
    "given",
    ["s3://me:hunter22@bucket/runs", "s3://bucket/runs?key=hunter22", "hunter22", "a::s3://b/c"],
)
def test_a_url_that_may_hold_credentials_is_refused_and_not_repeated(given):
    with pytest.raises(UserError, match=r"run\.mirror: expected ") as refused:
        config.load("quickstart", [f"run.mirror='{given}'"])
    assert "hunter22" not in str(refused.value)


def test_a_missing_package_is_one_line_that_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"'s3fs' is not installed: pip install s3fs"):
        open_store("s3://bucket/runs")
    with pytest.raises(UserError, match="fsspec does not know nowhere://"):
        open_store("nowhere://bucket/runs")


@pytest.mark.slow
def test_killed_within_any_write_a_fresh_machine_goes_on_from_a_whole_checkpoint(tmp_path):
    folders = folders_of("mirrored", tmp_path)
    reached = []
    for folder in folders:
        fresh = folder / "fresh"
        found = download_newest(open_store(f"file://{folder}/store"), fresh, None, print)
        reached.append(0 if found is None else int(found.name[5:]))
        if found is not None:
            assert contents(found) == contents(folder / "run/checkpoints" / found.name)
            lines = (fresh / "metrics.jsonl").read_bytes()
            assert lines.startswith(b'{"step": 1}\n') and (folder / "run").exists()
    assert reached == sorted(reached) and set(reached) == {0, 1, 2}


@pytest.mark.slow
def test_a_run_goes_on_elsewhere_as_if_nothing_had_happened(tmp_path, monkeypatch):
    from helpers.interrupts import stop_after
    from helpers.runs import TINY, final_state, metric_lines
    from vlmrl.assemble import lifecycle

    more = ["evaluation=null", "sft.max_steps=2", "checks.parity_every=0"]

    def train(name, *rest):
        where = f"run.dir={tmp_path / name / 'tiny'}"
        return lifecycle.train(config.load("quickstart", [*TINY, *more, where, *rest]))

    train("undisturbed")
    mirror, real = f"run.mirror=file://{tmp_path}/store", lifecycle.Interrupt
    monkeypatch.setattr(lifecycle, "Interrupt", stop_after(5))
    assert not train("lost", mirror)["finished"]
    monkeypatch.setattr(lifecycle, "Interrupt", real)
    with pytest.raises(UserError, match=r"has a run with step-\d: go on with it \(resume=auto\)"):
        train("anew", mirror)
    assert train("fresh", mirror, "resume=auto")["finished"]
    assert final_state(tmp_path / "fresh/tiny") == final_state(tmp_path / "undisturbed/tiny")
    assert metric_lines(tmp_path / "fresh/tiny") == metric_lines(tmp_path / "undisturbed/tiny")
    names = {path.name for path in (tmp_path / "fresh/tiny/checkpoints").iterdir()}
    assert len(names) == 2
    store = open_store(f"file://{tmp_path}/store/tiny")
    there = manifests(store, attempts(store))
    assert {manifest.checkpoint for manifest in there} == names | {"sft-2"}
    assert "summary.json" in read_manifest(store, there[-1])
    assert train("again", mirror, "resume=auto")["finished"]
    assert not Path(tmp_path / "again/tiny/report.html").exists()
