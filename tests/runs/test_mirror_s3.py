"""A mirror behind the S3 protocol: moto's server on the loopback through s3fs; skipped without them."""

from __future__ import annotations

import io
import os

import pytest

from helpers.mirrored import begin, contents, restore, write_step
from vlmrl.errors import UserError
from vlmrl.runs.mirror import Store

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


def test_checkpoints_go_to_a_bucket_and_come_back(bucket, tmp_path):
    run, said = tmp_path / "run", []
    copier = begin(run, bucket, keep=2, tell=said.append)
    for step in (1, 2, 3):
        write_step(run, step, size=12_000_000)
        copier.follow(1)
        copier.finish()
    store = Store(bucket)
    manifests = [name for name in store.names() if name.endswith(".json") and name[0] == "s"]
    assert [name.partition(".")[0] for name in sorted(manifests)] == ["step-1", "step-2", "step-3"]
    assert not any("failed" in line for line in said)
    fresh = tmp_path / "fresh"
    assert restore(fresh, bucket, said.append) == fresh / "checkpoints/step-3"
    expected = contents(run)
    old = ("checkpoints/step-1/", "checkpoints/step-2/")
    assert contents(fresh) == {k: v for k, v in expected.items() if not k.startswith(old)}
    copy = max(manifests).removesuffix(".json")
    store.write(f"{copy}/checkpoints/step-3/model.safetensors", io.BytesIO(b"torn"))
    assert restore(tmp_path / "again", bucket, said.append).name == "step-2"
    assert "step-3 is damaged" in said[-2]


def test_a_bucket_that_is_not_there_is_one_line(bucket, tmp_path):
    with pytest.raises(UserError, match=r"s3://missing/runs/tiny/.* cannot be written") as refused:
        begin(tmp_path / "run", "s3://missing/runs/tiny")
    assert "testing-secret" not in str(refused.value)
