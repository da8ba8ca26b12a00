"""A mirror behind the S3 protocol: moto's server on the loopback through s3fs; skipped without them."""

from __future__ import annotations

import os

import pytest

from helpers.mirrored import begin, contents, write_step
from vlmrl.errors import UserError
from vlmrl.policy.mirror.download import download_newest
from vlmrl.policy.mirror.manifests import attempts, manifests
from vlmrl.policy.mirror.store import open_store

pytestmark = pytest.mark.nightly


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of a server that lives as long as the test."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    import boto3

    boto3.client("s3").create_bucket(Bucket="mine")
    yield "s3://mine/runs/tiny"
    server.stop()


def test_checkpoints_go_to_a_bucket_and_come_back(bucket, tmp_path, monkeypatch):
    from vlmrl.policy.mirror import contents as module

    monkeypatch.setattr(module, "MAX_READ", 10_000)
    run, said = tmp_path / "run", []
    copier, owned = begin(run, bucket, keep=2, tell=said.append)
    for step in (1, 2, 3):
        write_step(run, step, size=12_000_000)  # several parts of an upload
        copier.follow(1)
        copier.finish()
    owned.release()
    store = open_store(bucket)
    found = manifests(store, attempts(store))
    assert [manifest.checkpoint for manifest in found] == ["step-1", "step-2", "step-3"]
    assert not any("failed" in line for line in said)
    fresh = tmp_path / "fresh"
    assert download_newest(store, fresh, None, said.append) == fresh / "checkpoints/step-3"
    expected = contents(run)
    old = ("checkpoints/step-1/", "checkpoints/step-2/")
    assert contents(fresh) == {k: v for k, v in expected.items() if not k.startswith(old)}
    large = next(n for n in store.objects(found[-1].folder) if n.endswith("model.safetensors"))
    store.write(large, b"torn")
    again = download_newest(store, tmp_path / "again", None, said.append)
    assert again.name == "step-2" and "step-3 is damaged" in said[-2]


def test_a_bucket_that_is_not_there_is_one_line(bucket, tmp_path):
    with pytest.raises(UserError, match=r"s3://missing/runs/tiny/.* cannot be written") as refused:
        begin(tmp_path / "run", "s3://missing/runs/tiny")
    assert "testing-secret" not in str(refused.value)
