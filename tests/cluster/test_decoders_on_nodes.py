"""Decoders on the nodes of a Ray cluster: media are those of the local pool, whatever becomes of a node.

Also media that go to graders: by hash, fetched once for a node.
"""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.audios import muxed, tone
from helpers.ray_cluster import arguments, finish, launched
from helpers.runs import metric_lines
from helpers.videos import write_video
from vlmrl.cluster.decoder_pool import DecoderPool, maker_of
from vlmrl.cluster.grader_pool import RESOURCE, RayPool, pool_maker, start_graders
from vlmrl.cluster.large_bytes.folder import Folder
from vlmrl.cluster.large_bytes.lending import name_of
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.media.decode import DecodeJob, Outcome, decode_in_order
from vlmrl.media_types import Audio, Decoded, Video
from vlmrl.schema import Media, Sample, Truth
from vlmrl.system.deadline_pool import DeadlinePool, TimedPool, result

pytestmark = [pytest.mark.ray, pytest.mark.slow]

STORE = 100 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without decoders, and a driver."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def node(cluster: Any) -> Iterator[Any]:
    """Adds nodes with room for an actor of two workers each, and removes them."""
    added: list[Any] = []

    def add(**more: Any) -> Any:
        resources = {RESOURCE: 2}
        added.append(cluster.add_node(resources=resources, object_store_memory=STORE, **more))
        return added[-1]

    yield add
    for one in added:
        if one in cluster.worker_nodes:
            cluster.remove_node(one)


def rows(folder: Path) -> list[Media]:
    """Write images, videos and audio, two of them bytes of a row, and files that cannot be decoded."""
    rng = np.random.default_rng(0)
    for name, size in {"small.png": (20, 30), "large.png": (300, 200)}.items():
        noise = rng.integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(noise).save(folder / name)
    stamps = [40 * n for n in range(50)]
    write_video(folder / "a.mp4", stamps, size=(160, 120))
    write_video(folder / "b.mp4", stamps[:20], size=(320, 240))
    (folder / "cut.mp4").write_bytes((folder / "b.mp4").read_bytes()[:300])
    (folder / "heard.wav").write_bytes(muxed("wav", "pcm_f32le", tone(440, 1.0), 16000))
    names = ["a.mp4", "small.png", "cut.mp4", "b.mp4", "large.png", "missing.mp4", "heard.wav"]
    kinds = {"png": "image", "mp4": "video", "wav": "audio"}
    media = [Media(kinds[name[-3:]], path=str(folder / name)) for name in names]  # type: ignore[arg-type]
    return [
        *media,
        Media("image", data=(folder / "large.png").read_bytes()),
        Media("video", data=(folder / "a.mp4").read_bytes()),
    ]


def decoded(media: list[Media], folder: Path, pool: TimedPool) -> list[Outcome]:
    jobs = [
        DecodeJob(number, Sample(f"row-{number}", "s", (medium,), Truth()), Access(str(folder)))
        for number, medium in enumerate(media)
    ]
    found = []
    for _, outcome in decode_in_order(jobs, pool, 8, 2**30):
        assert outcome is not None
        found.append(outcome)
    return found


def plain(outcome: Outcome) -> Any:
    """Return an outcome as values that compare to the bit."""
    if isinstance(outcome, UserError):
        return type(outcome), str(outcome)
    return [_plain(medium) for medium in outcome]


def _plain(medium: Decoded) -> Any:
    if isinstance(medium, Audio):
        return medium.samples.tobytes(), medium.samples.dtype, medium.rate
    if isinstance(medium, Video):
        shown = medium.frames
        return shown.tobytes(), shown.dtype, shown.shape, medium.metadata, medium.original
    return medium.tobytes(), medium.mode, medium.size


def local(media: list[Media], folder: Path) -> list[Any]:
    with DeadlinePool(2) as pool:
        return [plain(outcome) for outcome in decoded(media, folder, pool)]


def test_media_of_decoders_are_those_of_the_local_pool(node: Any, tmp_path: Path) -> None:
    media = rows(tmp_path)
    node(), node()
    actors = start_graders(2, 2, "same", "decoder")
    pool = maker_of(pool_maker(2, "same", "decoder"), DeadlinePool)(2, None, None)
    assert isinstance(pool, DecoderPool)
    expected = local(media, tmp_path)
    assert [plain(o) for o in decoded(media, tmp_path, pool)] == expected
    assert pool.repeated == sum(isinstance(row, tuple) for row in expected) == 2
    pool.close()
    assert [plain(o) for o in decoded(media, tmp_path, pool)] == expected  # begun anew
    pool.close()
    end(actors)


def end(actors: list[Any]) -> None:
    import ray

    for actor in actors:
        ray.kill(actor)


def test_a_decoder_whose_node_is_killed_costs_no_row(
    cluster: Any, node: Any, tmp_path: Path
) -> None:
    media = [medium for medium in rows(tmp_path) if "b.mp4" in medium.name] * 60
    dying, _ = node(), node()
    actors = start_graders(2, 2, "killed", "decoder")
    pools: list[RayPool] = []

    def make() -> RayPool:
        pools.append(RayPool(actors, 2, kind="decoder"))
        while len(pools[0]._up) < 2:
            time.sleep(0.1)
        return pools[0]

    pool = DecoderPool(make, DeadlinePool(2))
    jobs = [
        DecodeJob(n, Sample(f"{n}", "s", (m,), Truth()), Access(str(tmp_path)))
        for n, m in enumerate(media)
    ]
    found = []
    for number, (job, outcome) in enumerate(decode_in_order(jobs, pool, 16, 2**30)):
        if number == 5:
            cluster.remove_node(dying, allow_graceful=False)
        assert job.key == number and outcome is not None
        found.append(plain(outcome))
    assert found == local(media[:1], tmp_path) * 60
    assert pools[0].lost > 0 and pool.repeated == 0
    pool.close()
    end(actors)


def test_media_of_a_row_go_to_a_node_of_graders_once(node: Any, tmp_path: Path) -> None:
    own = tmp_path / "of-node"
    own.mkdir()
    node(env_vars={"TMPDIR": str(own)})
    actors = start_graders(1, 2, "media")
    pool = RayPool(actors, 2)
    data = os.urandom(300_000)
    sample = Sample("row", "s", (Media("image", data=data), "What?"), Truth(number=1.0))
    look = operator.attrgetter("media")
    calls = [pool.submit(look, sample, deadline=30.0) for _ in range(20)]
    assert max(len(call.packed) for call in pool._open) < 2000
    server = pool._lender._server
    assert server is not None
    asked, find = [], server.find
    server.find = lambda name: asked.append(name) or find(name)  # type: ignore[func-returns-value]
    assert [result(call) for call in calls] == [sample.media] * 20
    assert asked == [name_of(data)] and not pool._lender._held
    folder = own / f"vlmrl-media-{os.getuid()}"
    assert Folder(folder).read(name_of(data)) == data
    pool.close()
    end(actors)


def test_a_launched_run_with_a_decoder_is_that_of_one_process(
    cluster: Any, node: Any, tmp_path: Path
) -> None:
    own = tmp_path / "of-node"
    own.mkdir()
    node(num_cpus=1, env_vars={"TMPDIR": str(own)})
    given = [
        arguments(tmp_path / name, "run.steps=2", "data.workers=1")
        for name in ("alone", "launched")
    ]
    subprocess.run([sys.executable, "-m", "vlmrl", "train", *given[0]], check=True)
    with launched(cluster, 1, given[1], "cluster.decoders=1") as process:
        finish(process)
    assert metric_lines(tmp_path / "launched") == metric_lines(tmp_path / "alone")
    sizes = {path.stat().st_size for path in own.glob("vlmrl-media-*/*")}
    assert 3 * 84 * 84 in sizes  # images that were decoded there
