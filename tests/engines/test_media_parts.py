"""Media in files that servers read: each once, by content, for as long as a request names it."""

import base64
import threading
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
from PIL import Image

from helpers.videos import video
from vlmrl.engines.vllm_parts.requests import MediaFolder, lend, make_shared
from vlmrl.errors import UserError
from vlmrl.schema.media import Audio

AUDIO = Audio(np.linspace(-1, 1, 800, dtype=np.float32), 16_000)


def image(value, side=28):
    return Image.fromarray(np.full((side, side, 3), value, np.uint8))


def file_of(part):
    return Path(url2pathname(urlsplit(part["url"]).path))


def bytes_of(part):
    """What a server gets of a part, by file or within the request."""
    if part["url"].startswith("file:"):
        return file_of(part).read_bytes()
    return base64.b64decode(part["url"].partition(",")[2])


@pytest.mark.parametrize("medium", [image(7), video(4), AUDIO], ids=["image", "video", "audio"])
def test_a_file_holds_what_the_request_would(tmp_path, medium):
    with lend([medium], None) as inline, lend([medium], MediaFolder(tmp_path)) as by_file:
        assert by_file[0]["url"].startswith("file:///")
        assert bytes_of(by_file[0]) == bytes_of(inline[0])
        assert by_file[0]["type"] == inline[0]["type"]


def test_equal_media_are_written_once_and_others_apart(tmp_path):
    folder = MediaFolder(tmp_path / "made" / "here")
    with folder.lend([image(1), image(2), image(1)]) as first, folder.lend([image(1)]) as second:
        assert first[0] == first[2] == second[0] != first[1]
    written = file_of(first[0]).stat().st_mtime_ns
    with folder.lend([image(1)]) as later:
        assert file_of(later[0]).stat().st_mtime_ns == written
    assert len(list((tmp_path / "made" / "here").iterdir())) == 2


def test_what_nobody_names_makes_room_oldest_first_and_what_is_named_stays(tmp_path):
    size = len(bytes_of(_inline(image(0))))
    folder = MediaFolder(tmp_path, limit=3 * size)
    for value in (0, 1, 2, 0):  # 1 is the one not used for longest
        with folder.lend([image(value)]) as parts:
            last = file_of(parts[0])
    with folder.lend([image(3)]):
        assert last.exists() and len(list(tmp_path.iterdir())) == 3
    with ExitStack() as stack:
        held = [stack.enter_context(folder.lend([image(v)]))[0] for v in (4, 5, 6)]
        with folder.lend([image(7)]) as parts:
            assert parts == [_inline(image(7))]  # no room: within the request
        assert all(bytes_of(part) == bytes_of(_inline(image(4 + n))) for n, part in enumerate(held))
    with folder.lend([image(7)]) as parts:
        assert file_of(parts[0]).exists()


def test_a_full_disk_sends_the_medium_within_the_request(tmp_path):
    folder = MediaFolder(tmp_path / "media")
    (tmp_path / "media").rmdir()  # nothing can be written any more
    with folder.lend([image(1)]) as parts:
        assert parts == [_inline(image(1))]


def test_many_threads_find_every_file_that_they_name(tmp_path):
    size = len(bytes_of(_inline(image(0))))
    folder, wrong = MediaFolder(tmp_path, limit=4 * size), []

    def work(seed):
        for value in np.random.default_rng(seed).integers(0, 8, 200):
            with folder.lend([image(value)]) as parts:
                if bytes_of(parts[0]) != bytes_of(_inline(image(value))):
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(list(tmp_path.iterdir())) <= 4


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UserError, match=r"media_folder: .*nowhere"):
        make_shared(tmp_path / "nowhere")
    assert make_shared(None) is None


def _inline(medium):
    with lend([medium], None) as parts:
        return parts[0]
