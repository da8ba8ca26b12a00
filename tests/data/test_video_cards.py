"""Cards of videos: published file formats in small fixtures of ours, and the drawn videos."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.videos import write_video
from vlmrl.answers.geometry import span_iou
from vlmrl.config import SourceConfig, VideoConfig
from vlmrl.data.source import Source, open_source
from vlmrl.errors import UserError
from vlmrl.media.access import Reading
from vlmrl.media.decode import decode
from vlmrl.media.video import load_video
from vlmrl.schema import Box, Demo, Span
from vlmrl.schema.media import Video

READ = Reading(video=VideoConfig(fps=1.0, max_frames=16))


def opened(card: str, path: Path, split: str = "train", **options: Any) -> Source:
    config = SourceConfig(card=card, split=split, options={"path": str(path), **options})
    return open_source(config, reading=READ)


def shown(source: Source, row: int = 0) -> Video:
    (clip,) = decode(source.sample(row), source.access, source.reading)
    assert isinstance(clip, Video)
    return clip


def test_charades_sta(tmp_path: Path) -> None:
    (tmp_path / "Charades_v1_480").mkdir()
    write_video(tmp_path / "Charades_v1_480" / "AO8RW.mp4", [100 * n for n in range(20)])
    lines = [
        "AO8RW 0.0 1.5##a person is putting a book on a shelf.",
        "AO8RW 3 1##back.",
        "AO8RW 1##",
    ]
    (tmp_path / "charades_sta_train.txt").write_text("\n".join(lines) + "\n")
    source = opened("charades_sta", tmp_path)

    sample = source.sample(0)
    assert sample.truth.spans == (Span(0.0, 1.5),)
    assert sample.text == "When does this happen: a person is putting a book on a shelf?"
    assert shown(source).total == 20
    with pytest.raises(UserError, match=r"charades_sta_train\.txt:2: .*expected start <= end"):
        source.sample(1)
    with pytest.raises(UserError, match=r"txt:3: expected `VIDEO START END##sentence`"):
        source.sample(2)
    with pytest.raises(UserError, match="no split 'val'"):
        opened("charades_sta", tmp_path, "val")


def test_activitynet_captions(tmp_path: Path) -> None:
    clips = {
        "v_one": {
            "duration": 2.0,
            "timestamps": [[0.5, 1.0], [1.0, 2.4]],
            "sentences": [" A young woman speaks.", "She smiles."],
        },
        "v_bad": {"duration": 5.0, "timestamps": [], "sentences": ["Nothing."]},
        "v_none": [],
    }
    (tmp_path / "train.json").write_text(json.dumps(clips))
    (tmp_path / "videos").mkdir()
    write_video(tmp_path / "videos" / "v_one.mkv", [100 * n for n in range(20)])
    source = opened("activitynet_captions", tmp_path)

    assert [source.sample(n).id for n in range(2)] == ["v_one-0", "v_one-1"]
    assert source.sample(0).text == "When does this happen: A young woman speaks?"
    assert source.sample(1).truth.spans == (Span(1.0, 2.0),)  # annotators went past the end
    assert shown(source, 1).total == 20
    for row in (2, 3):
        with pytest.raises(UserError, match=r"train\.json: v_"):
            source.sample(row)


@pytest.mark.parametrize("older", [False, True], ids=["next_gqa", "next_qa"])
def test_next_gqa(tmp_path: Path, older: bool) -> None:
    options = ["water", "play", "sleep", "run", "sing"]
    names = ["video" if older else "video_id", "frame_count", "width", "height", "question"]
    names += ["answer", "qid", "type", *(f"a{n}" for n in range(5))]
    with (tmp_path / "val.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        right = "2" if older else "sleep"
        table.writerow(["77", 60, 64, 48, "what does the dog do", right, "6", "CW", *options])
        table.writerow(["77", 60, 64, 48, "why", "fly", "7", "CW", *options])
    (tmp_path / "map_vid_vidorID.json").write_text(json.dumps({"77": "1015/4010"}))
    proof = {"77": {"duration": 2, "location": {"6": [[0.4, 1.2], [1.5, 2.3]]}}}
    (tmp_path / "gsub_val.json").write_text(json.dumps(proof))
    (tmp_path / "NExTVideo" / "1015").mkdir(parents=True)
    write_video(tmp_path / "NExTVideo" / "1015" / "4010.mp4", [100 * n for n in range(20)])
    source = opened("next_gqa", tmp_path, "val")

    sample = source.sample(0)
    assert (sample.truth.choice, sample.template) == ("C", "think_answer_glue")
    assert sample.demo == Demo("0.4 s to 1.2 s; 1.5 s to 2 s", "C", evidence=sample.truth.spans)
    assert sample.truth.spans == (Span(0.4, 1.2), Span(1.5, 2.0))
    assert sample.text.startswith("What does the dog do? (A) water (B) play (C) sleep")
    assert shown(source).total == 20
    with pytest.raises(UserError, match=r"val\.csv:3: answer 'fly' is none"):
        source.sample(1)
    for wrong, message in [
        ({"77": {"location": {"6": [[0.4, 1.2]]}}}, "gsub: expected duration and location"),
        ({"77": {"duration": 2, "location": {}}}, "question '6' has no spans"),
    ]:
        (tmp_path / "gsub_val.json").write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=rf"val\.csv:2: {message}"):
            opened("next_gqa", tmp_path, "val").sample(0)
    (tmp_path / "gsub_val.json").unlink()
    assert opened("next_gqa", tmp_path, "val").sample(0).template == "think_answer"


def test_got10k(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "GOT-10k_Train_000001"
    folder.mkdir(parents=True)
    (tmp_path / "train" / "list.txt").write_text("GOT-10k_Train_000001\n../etc\n")
    for n in range(1, 26):
        Image.new("RGB", (80, 40), (n, 0, 0)).save(folder / f"{n:08d}.jpg")
    boxes = "\n".join(f"{n}.0,10.0,20.0,20.0" for n in range(25))
    (folder / "groundtruth.txt").write_text(boxes + "\n")
    (folder / "absence.label").write_text("\n".join("1" if n == 10 else "0" for n in range(25)))
    meta = "[METAINFO]\nurl: https://x\nobject_class: anteater\nresolution: (80, 40)\n"
    (folder / "meta_info.ini").write_text(meta)
    source = opened("got10k", tmp_path)

    sample = source.sample(0)
    track = sample.truth.track
    assert track is not None
    assert track.times == (0.0, 2.0)  # at 1 s it is out of sight
    assert track.boxes[1] == Box(20 / 80, 10 / 40, 40 / 80, 30 / 40)
    assert "anteater that at 0 s is inside x 0 to 25 %, y 25 to 75 %" in sample.text
    clip = shown(source)
    assert (clip.total, clip.size, clip.duration) == (21, (80, 40), pytest.approx(2.1))
    with pytest.raises(UserError, match="expected the name of a video, got"):
        source.sample(1)
    (folder / "meta_info.ini").write_text(meta.replace("(80, 40)", "(40, 80)"))
    with pytest.raises(UserError, match="says 40x80"):
        shown(source)


def test_drawn_clips_show_what_is_true_of_them() -> None:
    source = open_source(SourceConfig(card="videos", split="test"), reading=READ)
    for row in range(8):
        sample = source.sample(row)
        clip = load_video(sample.media[0], source.access, READ.video)
        assert clip.times == tuple(map(float, range(16))) and clip.duration == 16.0
        red = [
            t
            for t, f in zip(clip.times, clip.frames, strict=True)
            if (f == (235, 45, 45)).all(-1).any()
        ]
        assert sample.truth.spans == (Span(red[0], red[-1] + 1),)
        assert len(red) == red[-1] - red[0] + 1


def test_drawn_clips_are_divided_and_demonstrations_are_loose() -> None:
    seen: Counter[bytes] = Counter()
    for split in ("train", "demos", "val", "test"):
        source = open_source(SourceConfig(card="videos", split=split, limit=60))
        samples = [source.sample(n) for n in range(60)]
        seen.update({s.media[0].data or b"" for s in samples})
        pairs = [
            (s.demo.answer.spans[0], s.truth.spans[0]) for s in samples if s.demo and s.truth.spans
        ]  # type: ignore[index]
        assert all(d.start <= t.start and d.end >= t.end for d, t in pairs)
        assert 0.6 < np.mean([span_iou(d, t) for d, t in pairs]) < 0.95
    assert max(seen.values()) == 1
