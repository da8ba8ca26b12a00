"""Cards of sound: published file formats in small fixtures of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from vlmrl.config import SourceConfig
from vlmrl.data.source import Source, open_source
from vlmrl.errors import UserError
from vlmrl.media.decode import decode
from vlmrl.schema import Span, Truth
from vlmrl.schema.media import Audio

CLASSES = [
    ("/m/09x0r", "Speech"),
    ("/m/05zppz", "Male speech, man speaking"),
    ("/m/0bt9lr", "Dog"),
    ("/m/06mb1", "Rain"),
    ("/m/01m2v", "Computer keyboard"),
]


def opened(card: str, split: str = "train", **options: Any) -> Source:
    return open_source(SourceConfig(card=card, split=split, options=options))


def sound(path: Path, seconds: float = 1.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ramp = np.linspace(0, 0.5, round(16000 * seconds), dtype=np.float32)  # tells the time
    soundfile.write(path, ramp, 16000)


def heard(source: Source, row: int = 0) -> Audio:
    (audio,) = decode(source.sample(row), source.access, source.reading)
    assert isinstance(audio, Audio)
    return audio


@pytest.fixture
def classes(tmp_path: Path) -> str:
    lines = [f'{n},{mid},"{name}"' for n, (mid, name) in enumerate(CLASSES)]
    file = tmp_path / "class_labels_indices.csv"
    file.write_text("\n".join(["index,mid,display_name", *lines]) + "\n")
    return str(file)


def test_audioset_segments(tmp_path: Path, classes: str) -> None:
    (tmp_path / "balanced_train_segments.csv").write_text(
        "# Segments csv created Sun Mar  5 10:54:31 2017\n"
        "# num_ytids=3, num_segs=3, num_unique_labels=3, num_positive_labels=4\n"
        "# YTID, start_seconds, end_seconds, positive_labels\n"
        '--PJHxphWEs, 30.000, 40.000, "/m/09x0r,/m/05zppz"\n'
        '--ZhevVpy1s, 50.000, 60.000, "/m/0nope"\n'
        "--aE2O5G5WE, 0.000, 10.000\n"
    )
    sound(tmp_path / "clips" / "Y--PJHxphWEs_30.000.wav")
    source = opened(
        "audioset",
        path={"train": str(tmp_path / "balanced_train_segments.csv")},
        classes=classes,
        root=str(tmp_path / "clips"),
        file="Y{ytid}_{start}.wav",
    )

    sample = source.sample(0)
    assert sample.id == "Y--PJHxphWEs_30.000"
    assert sample.truth == Truth(labels=("Speech", "Male speech / man speaking"))
    assert sample.text == (
        "Which of these sounds are heard: Computer keyboard; Dog; Male speech / man speaking; Rain; "
        "Speech?"
    )
    assert sample.demo and sample.demo.text == "Speech, Male speech / man speaking"
    assert heard(source).duration == 1.0
    for row, message in [
        (1, r"csv:5: label '/m/0nope' is not among the 5"),
        (2, "csv:6: expected YTID, "),
    ]:
        with pytest.raises(UserError, match=message):
            source.sample(row)
    with pytest.raises(UserError, match="path has no split 'test'; there are: train"):
        opened("audioset", "test", path={"train": "x.csv"}, classes=classes)


def test_audioset_json_as_ast_writes_it(tmp_path: Path, classes: str) -> None:
    items = [
        {"wav": "audio/-0nqfRcnAYE.flac", "labels": "/m/0bt9lr", "video_id": "-0nqfRcnAYE"},
        {"wav": "audio/x.flac"},
        "x",
        {"wav": "audio/x.flac", "labels": ","},
    ]
    file = tmp_path / "eval_data.json"
    file.write_text(json.dumps({"data": items}))
    sound(tmp_path / "audio" / "-0nqfRcnAYE.flac")
    options: dict[str, Any] = {"path": {"test": str(file)}, "classes": classes, "offered": 2}
    source = opened("audioset", "test", **options)

    sample = source.sample(0)
    assert sample.truth == Truth(labels=("Dog",))
    assert sample.text.count(";") == 1 and "Dog" in sample.text
    assert sample.text == opened("audioset", "test", **options).sample(0).text
    assert opened("audioset", "test", **options | {"offered": 0}).sample(0).text == "What is heard?"
    assert heard(source).duration == 1.0
    for row, message in enumerate(
        ["key 'labels'", "expected an object", "expected at least one label"], start=1
    ):
        with pytest.raises(UserError, match=rf"eval_data\.json: data\[{row}\]: {message}"):
            source.sample(row)
    file.write_text("[]")
    with pytest.raises(UserError, match="expected a JSON object"):
        opened("audioset", "test", **options)
    file.write_text(json.dumps({"data": items}))
    Path(classes).write_text("index,mid\n")
    with pytest.raises(UserError, match=r"indices\.csv:1: expected 3 cells"):
        opened("audioset", "test", **options).sample(0)


STRONG = """segment_id\tstart_time_seconds\tend_time_seconds\tlabel
s9d-2nhuJCQ_30000\t2.627\t7.237\t/m/0bt9lr
b0RFKhbpFJA_30000\t0.000\t10.000\t/m/06mb1
s9d-2nhuJCQ_30000\t0.000\t3.500\t/m/05zppz
bad_0\t5.0\t3.0\t/m/06mb1
worse_0\tx\t3.0\t/m/06mb1
worst_0\t1.0
"""


def test_audioset_strong(tmp_path: Path) -> None:
    (tmp_path / "audioset_train_strong.tsv").write_text(STRONG)
    names = "".join(f"{mid}\t{name}\n" for mid, name in CLASSES)
    (tmp_path / "mid_to_display_name.tsv").write_text(names)
    sound(tmp_path / "s9d-2nhuJCQ_30000.wav", 10)
    source = opened("audioset_strong", path=str(tmp_path))

    assert len(source.rows) == 5
    sample = source.sample(0)
    assert sample.truth.spans == (
        Span(0.0, 3.5, "Male speech / man speaking"),
        Span(2.627, 7.237, "Dog"),
    )
    assert sample.text.endswith(
        "Possible sounds: Computer keyboard; Dog; Male speech / man speaking; Rain; Speech."
    )
    assert source.card.group(source.rows[0]) == "s9d-2nhuJCQ"
    assert heard(source).duration == 10.0
    for row, message in [
        (
            2,
            r"strong\.tsv:5: truth.spans: expected start <= end inside the media, got \[5.0, 3.0\]",
        ),
        (3, "line 6: expected start and end in seconds"),
        (4, "line 7: expected 4 cells"),
    ]:
        with pytest.raises(UserError, match=message):
            source.sample(row)
    (tmp_path / "audioset_eval_strong.tsv").write_text("")
    with pytest.raises(UserError, match=r"eval_strong\.tsv: expected the heading"):
        opened("audioset_strong", "test", path=str(tmp_path))
    with pytest.raises(UserError, match="no split 'val'"):
        opened("audioset_strong", "val", path=str(tmp_path))


def test_librispeech(tmp_path: Path) -> None:
    folder = tmp_path / "test-clean" / "61" / "70968"
    sound(folder / "61-70968-0000.flac")
    (folder / "61-70968.trans.txt").write_text(
        "61-70968-0000 HE BEGAN A CONFUSED COMPLAINT\n61-70968-0001\n"
    )
    source = opened("transcripts", "test", path={"test": str(tmp_path / "test-clean")})

    sample = source.sample(0)
    assert (sample.id, sample.truth) == (
        "61-70968-0000",
        Truth(text=("HE BEGAN A CONFUSED COMPLAINT",)),
    )
    assert heard(source).duration == 1.0
    with pytest.raises(UserError, match=r"61-70968\.trans\.txt:2: key 'text'"):
        source.sample(1)
    with pytest.raises(UserError, match=r"expected a manifest, or a folder with \*\.trans\.txt"):
        opened("transcripts", path={"train": str(tmp_path / "absent")})
    with pytest.raises(UserError, match="no split 'val'; there are: test"):
        opened("transcripts", "val", path={"test": str(tmp_path)})


def test_a_manifest_of_transcripts(tmp_path: Path) -> None:
    sound(tmp_path / "wavs" / "a.wav", 2)
    rows: list[dict[str, Any]] = [
        {"audio_filepath": "wavs/a.wav", "text": " he  began ", "duration": 2.0},
        {"audio_filepath": "wavs/a.wav", "text": "again", "duration": 0.5, "offset": 1.0},
        {"audio_filepath": "wavs/a.wav", "text": "again", "duration": "long"},
        {"text": "again"},
    ]
    file = tmp_path / "train_manifest.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = opened("transcripts", path={"train": str(file)})

    assert [source.sample(n).truth.text for n in (0, 1)] == [("he began",), ("again",)]
    assert [source.sample(n).id for n in (0, 1)] == ["a", "a@1"]
    assert heard(source).duration == 2.0
    part = heard(source, 1)
    assert part.duration == 0.5 and part.samples[0] == pytest.approx(0.25, abs=1e-3)
    with pytest.raises(UserError, match=r"manifest\.json:3: key 'duration': expected seconds"):
        source.sample(2)
    with pytest.raises(UserError, match=r"manifest\.json:4: expected a path, URL"):
        source.sample(3)
