"""A mirror in a store: what is there is whole, kept and deleted as the run folder's, and goes on byte-equal;
a store that fails is told of and ends nothing."""

from __future__ import annotations

import errno
import io
import re
import secrets
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from helpers.killed_forks import folders_of
from helpers.mirrored import begin, contents, restore, write_step
from vlmrl import config
from vlmrl.errors import UserError
from vlmrl.runs import mirror
from vlmrl.runs.mirror import Mirror, Store


class Limited(MemoryFileSystem):
    """A store that refuses all writes while it is full."""

    protocol = "limited"
    store: dict = {}
    pseudo_dirs = [""]
    full = False
    full_at = None

    def _open(self, path, mode="rb", **rest):
        full = self.full or (self.full_at is not None and self.full_at in path)
        if full and mode == "wb":
            raise OSError(errno.ENOSPC, "No space left, says key AKIAIOSFODNN7EXAMPLE")
        return super()._open(path, mode, **rest)


fsspec.register_implementation("limited", Limited, clobber=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(mirror, "AGAIN_S", 0.01)


@pytest.fixture
def url():
    return f"memory://{secrets.token_hex(4)}/runs/tiny"


def copied(run, url, *steps, keep=9, best=None):
    """Write these steps and copy each; return what was said."""
    said = []
    copier = begin(run, url, keep, said.append)
    for step in steps:
        write_step(run, step)
        copier.follow(best)
        copier.finish()
    return said


def checkpoints(url):
    """Return the names of the copies with a manifest that are checkpoints."""
    names = (name for name in Store(url).names() if name.endswith(".json") and name[0] == "s")
    return sorted(name.partition(".")[0] for name in names)


def object_of(url, step, path="model.safetensors"):
    """Return the name of an object of a step's copy."""
    copy = next(n for n in Store(url).names() if n.startswith(f"step-{step}.") and "json" not in n)
    return f"{copy}/checkpoints/step-{step}/{path}"


def put(url, name, data):
    Store(url).write(name, io.BytesIO(data))


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_fresh_folder_gets_the_newest_checkpoint_and_the_logs(kind, tmp_path, url):
    url = url if kind == "memory" else f"file://{tmp_path}/store/tiny"
    copied(tmp_path / "run", url, 1, 2)
    fresh = tmp_path / "fresh"
    assert restore(fresh, url) == fresh / "checkpoints/step-2"
    expected = contents(tmp_path / "run")
    assert contents(fresh) == {
        k: v for k, v in expected.items() if not k.startswith("checkpoints/step-1/")
    }


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
        assert restore(tmp_path / "fresh", url)
        file.write("now")
    assert own.read_text() == "now"
    assert (tmp_path / "fresh/logs/attempt-2/rank-0.log").read_text() == "earlier"


def test_a_local_checkpoint_that_is_as_far_stays(tmp_path, url):
    copied(tmp_path / "run", url, 1)
    local = write_step(tmp_path / "other", 1, size=7)
    assert Mirror(url, tmp_path / "other", 9, print).restore(local) == local
    assert (local / "model.safetensors").stat().st_size == 7


def test_the_last_ones_and_the_best_are_kept_and_nothing_beside_them(tmp_path, url):
    copied(tmp_path / "run", url, 1, 2, keep=2, best=2)
    put(url, "step-9.0001/metrics.jsonl", b"of a process that was killed")
    copied(tmp_path / "run", url, 3, 4, 5, keep=2, best=2)
    assert checkpoints(url) == ["step-2", "step-4", "step-5"]
    names = set(Store(url).names())
    copies = {name for name in names if not name.endswith(".json")}
    assert names == copies | {f"{copy}.json" for copy in copies} | {"writer.json"}
    assert len(copies) == 4


def test_a_copy_without_a_manifest_or_with_a_torn_one_is_none(tmp_path, url):
    copied(tmp_path / "run", url, 1, 2)
    copy = object_of(url, 2).partition("/")[0]
    manifest = Store(url).read(f"{copy}.json")
    put(url, f"{copy}.json", manifest[: len(manifest) // 2])
    said = []
    assert restore(tmp_path / "torn", url, said.append).name == "step-1"
    assert f"step-2 is damaged and passed over: {copy}.json cannot be read" in said[0]
    Store(url).delete(f"{copy}.json")
    assert restore(tmp_path / "without", url, said.append).name == "step-1"
    copied(tmp_path / "other", url, 3)
    assert checkpoints(url) == ["step-1", "step-3"]


def test_a_damaged_checkpoint_is_passed_over_by_name_and_never_all_of_them(tmp_path, url):
    copied(tmp_path / "run", url, 1, 2, 3)
    store, said = Store(url), []
    first, second, third = (object_of(url, step) for step in (1, 2, 3))
    put(url, third, store.read(third)[:-1] + b"!")
    store.delete(second)
    assert restore(tmp_path / "fresh", url, said.append).name == "step-1"
    assert f"step-3 is damaged and passed over: {third} was changed" in said[0]
    assert f"step-2 is damaged and passed over: {url}/{second} is missing" in said[1]
    put(url, first, b"")
    with pytest.raises(
        UserError, match=r"all checkpoints are damaged .*has 0 bytes, expected 1000"
    ):
        restore(tmp_path / "third", url, said.append)
    assert not list((tmp_path / "third").rglob("*step*"))


def test_damaged_logs_are_told_of_and_the_checkpoint_comes_back_without_them(tmp_path, url):
    copied(tmp_path / "run", url, 1)
    logs, said = next(n for n in Store(url).names() if re.fullmatch(r"run\.\d+", n)), []
    put(url, f"{logs}/metrics.jsonl", b"other")
    assert restore(tmp_path / "fresh", url, said.append).name == "step-1"
    assert f"{logs} is damaged and passed over" in said[0]
    assert not (tmp_path / "fresh/metrics.jsonl").exists()


def test_a_manifest_cannot_name_files_outside_of_the_run(tmp_path, url):
    copied(tmp_path / "run", url, 1)
    said = []
    name = object_of(url, 1).partition("/")[0] + ".json"
    for path in (b'"../model.safetensors"', b'"/model.safetensors"'):
        manifest = Store(url).read(name).replace(b'"checkpoints/step-1/model.safetensors"', path)
        put(url, name, manifest)
        with pytest.raises(UserError, match="outside of the run"):
            restore(tmp_path / "fresh/run", url, said.append)
    assert not list(tmp_path.rglob("fresh/**/model.safetensors"))


def test_a_full_store_is_told_each_time_and_at_the_end_and_the_next_checkpoint_tries_again(
    tmp_path, monkeypatch
):
    url, run, said = f"limited://{secrets.token_hex(4)}/tiny", tmp_path / "run", []
    copier = begin(run, url, tell=said.append)
    monkeypatch.setattr(Limited, "full", True)
    write_step(run, 1)
    copier.follow(None)
    with pytest.raises(
        UserError, match=r"not copied to its end \(newest there .*: none\).*No space"
    ):
        copier.finish()
    failures = [line for line in said if "copying the run failed" in line]
    assert len(failures) >= mirror.TRIES and not any("AKIA" in line for line in said)
    with pytest.raises(UserError, match=r"writer\.json: cannot be written: .*No space"):
        begin(run, url)
    monkeypatch.setattr(Limited, "full", False)
    write_step(run, 2)
    copier.follow(None)
    copier.finish()
    assert restore(tmp_path / "fresh", url).name == "step-2"


def test_half_a_copy_leaves_nothing_that_would_take_the_room_of_the_next(tmp_path, monkeypatch):
    url, run = f"limited://{secrets.token_hex(4)}/tiny", tmp_path / "run"
    copier = begin(run, url)
    write_step(run, 1)
    monkeypatch.setattr(Limited, "full_at", "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors: cannot be written: .*No space"):
        copier.finish()
    assert not [name for name in Store(url).names() if name.startswith("step-")]


def test_a_local_disk_that_is_full_is_named_and_not_the_store(tmp_path, monkeypatch, url):
    copied(tmp_path / "run", url, 1)

    def full(self, source, target, **rest):
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr(MemoryFileSystem, "get_file", full)
    with pytest.raises(
        UserError, match=r"^/.*fresh/\.mirror\.part/.*: cannot be written: No space"
    ):
        restore(tmp_path / "fresh", url)


def test_a_local_file_that_was_damaged_is_not_copied_as_whole(tmp_path, url):
    home = write_step(tmp_path / "run", 1)
    (home / "model.safetensors").write_bytes(b"damaged")
    copier = begin(tmp_path / "run", url)
    with pytest.raises(UserError, match=r"model\.safetensors was changed after it was written"):
        copier.finish()
    assert checkpoints(url) == []


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
        Store("s3://bucket/runs")
    with pytest.raises(UserError, match="fsspec does not know nowhere://"):
        Store("nowhere://bucket/runs")


@pytest.mark.slow
def test_killed_within_any_write_a_fresh_machine_goes_on_from_a_whole_checkpoint(tmp_path):
    folders = folders_of("mirrored", tmp_path)
    reached = []
    for folder in folders:
        fresh = folder / "fresh"
        found = restore(fresh, f"file://{folder}/store")
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
    kept, real = f"run.mirror=file://{tmp_path}/store", lifecycle.Interrupt
    monkeypatch.setattr(lifecycle, "Interrupt", stop_after(5))
    assert not train("lost", kept)["finished"]
    monkeypatch.setattr(lifecycle, "Interrupt", real)
    with pytest.raises(UserError, match=r"has a run with step-\d: go on with it \(resume=auto\)"):
        train("anew", kept)
    assert train("fresh", kept, "resume=auto")["finished"]
    assert final_state(tmp_path / "fresh/tiny") == final_state(tmp_path / "undisturbed/tiny")
    assert metric_lines(tmp_path / "fresh/tiny") == metric_lines(tmp_path / "undisturbed/tiny")
    names = {path.name for path in (tmp_path / "fresh/tiny/checkpoints").iterdir()}
    assert len(names) == 2
    url = f"file://{tmp_path}/store/tiny"
    assert set(checkpoints(url)) == names | {"sft-2"}
    assert list((tmp_path / "store/tiny").glob("run.*/summary.json"))
    assert train("again", kept, "resume=auto")["finished"]
    assert not Path(tmp_path / "again/tiny/report.html").exists()
