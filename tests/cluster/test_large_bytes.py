"""Large bytes of calls and results: lent out by HTTP, read by hash, kept on the disk of a machine."""

from __future__ import annotations

import http.client
import os
import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.videos import video
from vlmrl.cluster.large_bytes.folder import Folder
from vlmrl.cluster.large_bytes.lending import Server, name_of
from vlmrl.cluster.large_bytes.packing import LEAST, Desk, Lender
from vlmrl.media_types import Audio
from vlmrl.schema import Media, Sample, Truth

HERE = "127.0.0.1"
LARGE = os.urandom(LEAST)


class Machine:
    """A folder that is lent out, and the desk of a process there."""

    def __init__(self, folder: Path, limit: int = 2**30) -> None:
        self.folder = Folder(folder, limit)
        self.server = Server(self.folder.read, HERE)
        self.desk = Desk(self.folder, self.server.url, self.server.token)

    def files(self) -> set[str]:
        return {p.name for p in self.folder.path.iterdir() if p.suffix != ".lock"}


def count_requests(lender: Lender) -> Counter[str]:
    """Return how often each name is asked for, from now on."""
    assert lender._server is not None
    asked: Counter[str] = Counter()
    find = lender._server.find

    def counted(name: str) -> bytes | None:
        asked[name] += 1
        return find(name)

    lender._server.find = counted
    return asked


def sample(data: bytes) -> Sample:
    return Sample("row", "s", (Media("image", data=data), "What?"), Truth(number=1.0))


def test_a_call_carries_the_hash_of_its_media_and_the_machine_fetches_them_once(
    tmp_path: Path,
) -> None:
    machine, lender = Machine(tmp_path / "kept"), Lender(HERE)
    calls = [lender.pack((len, (sample(LARGE), n))) for n in range(8)]
    assert all(len(packed) < 2000 and LARGE not in packed for packed, _ in calls)
    asked = count_requests(lender)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(machine.desk.unpack, [packed for packed, _ in calls]))
    assert found == [(len, (sample(LARGE), n)) for n in range(8)]
    assert asked == {name_of(LARGE): 1} and machine.files() == {name_of(LARGE)}
    lender.close()


def test_bytes_are_lent_out_until_the_last_call_with_them_is_done(tmp_path: Path) -> None:
    lender = Lender(HERE)
    (first, one), (_, two) = lender.pack([LARGE]), lender.pack([bytes(bytearray(LARGE))])
    reader = Machine(tmp_path / "kept", limit=0).desk  # keeps nothing
    lender.give_back(one)
    assert reader.unpack(first) == [LARGE]
    lender.give_back(two)
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:\d+: HTTP 404 for " + name_of(LARGE)):
        reader.unpack(first)
    lender.close()


def test_results_come_back_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (90, 110, 3), np.uint8)
    heard = Audio(rng.standard_normal(20_000).astype(np.float32), 16_000)
    decoded = [video(6, size=(64, 48)), Image.fromarray(noise), heard]
    machine, lender = Machine(tmp_path / "kept"), Lender(HERE)
    packed = machine.desk.pack(decoded)
    assert len(packed) < 4000 and len(machine.files()) == 3
    seen, image, audio = lender.unpack(packed)
    assert np.array_equal(seen.frames, decoded[0].frames) and seen.frames.dtype == np.uint8
    assert seen.times == decoded[0].times and seen.metadata == decoded[0].metadata
    assert np.array_equal(np.asarray(image), noise)
    assert np.array_equal(audio.samples, heard.samples) and audio.samples.dtype == np.float32
    seen.frames[0] = 0  # as of what was decoded here


def test_a_folder_keeps_what_was_used_last_within_its_limit(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "kept", limit=3 * LEAST)
    written = [os.urandom(LEAST) for _ in range(4)]
    names = [name_of(data) for data in written]
    for data, name in zip(written[:3], names, strict=False):
        folder.write(data, name)
        os.utime(folder.path / name, (names.index(name), names.index(name)))
    assert folder.read(names[0]) == written[0]  # used
    folder.write(written[3], names[3])
    assert [folder.read(name) is not None for name in names] == [True, False, True, True]
    with pytest.raises(OSError, match="no room for"):
        folder.write(bytes(4 * LEAST), "0" * 64)
    assert not list(folder.path.glob("*.part"))


def test_bytes_that_were_damaged_on_the_disk_are_fetched_again(tmp_path: Path) -> None:
    machine, lender = Machine(tmp_path / "kept"), Lender(HERE)
    packed, _ = lender.pack([LARGE])
    assert machine.desk.unpack(packed) == [LARGE]
    path = machine.folder.path / name_of(LARGE)
    path.write_bytes(LARGE[:-1] + bytes([LARGE[-1] ^ 1]))
    assert machine.folder.read(name_of(LARGE)) is None
    assert machine.desk.unpack(packed) == [LARGE] and path.read_bytes() == LARGE
    path.write_bytes(LARGE[:100])
    assert machine.desk.unpack(packed) == [LARGE]
    lender.close()


def test_a_result_goes_along_where_the_disk_has_no_room(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "kept", limit=0)
    packed = machine.desk.pack([LARGE])
    assert LARGE in packed and Lender(HERE).unpack(packed) == [LARGE]
    assert machine.files() == set()


def test_nothing_is_lent_out_without_the_token_or_outside_of_the_folder(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "kept")
    (tmp_path / "secret").write_bytes(LARGE)
    packed = pickle.loads(pickle.dumps(machine.desk)).pack([LARGE])
    assert Lender(HERE).unpack(packed) == [LARGE]

    def status(path: str, token: str) -> int:
        connection = http.client.HTTPConnection(*machine.server.server_address[:2])
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status

    token, name = machine.server.token, name_of(LARGE)
    assert status(f"/{name}", token) == 200
    assert status(f"/{name}", "") == status(f"/{name}", token[:-1]) == 403
    for path in ("/../secret", "/", "/" + "0" * 64, f"/{name}/..", f"/{name[:-1]}\0"):
        assert status(path.replace("\0", "%00"), token) == 404


def test_bytes_of_another_hash_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("vlmrl.cluster.large_bytes.lending.PAUSE_S", 0.0)
    server = Server(lambda name: b"others", HERE)
    lying = Desk(Folder(tmp_path / "a"), server.url, server.token).pack([LARGE])
    with pytest.raises(OSError, match="expected bytes with SHA-256"):
        Lender(HERE).unpack(lying)
    server.close()
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:\d+: .*refused"):
        Lender(HERE).unpack(lying)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="another user's"):
        Folder(tmp_path / "kept")


def test_a_closed_lender_ends_its_threads() -> None:
    before = threading.active_count()
    lender = Lender(HERE)
    lender.pack([LARGE])
    assert threading.active_count() == before + 1
    lender.close()
    for thread in threading.enumerate()[before:]:
        thread.join(5.0)
    assert threading.active_count() == before
