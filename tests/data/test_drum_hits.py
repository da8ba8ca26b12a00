"""Drum hits: each is heard where its name stands, splits share no take, demonstrations leave some out."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from vlmrl import plugins
from vlmrl.errors import UserError
from vlmrl.schema import Sample

KINDS = ("kick", "snare", "hat", "tom", "crash", "ride")
RATE = 16000
PITCHES = {kind: 200 * number for number, kind in enumerate(KINDS, start=1)}
"""Hz of the tone that stands for a kind; each recording is a few Hz above it."""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Tones of 0.1 s named as drums, some in folders below, and names of no kind or of two."""
    for kind, pitch in PITCHES.items():
        for take in range(16):
            file = tmp_path / ("kit" if take % 2 else ".") / f"{kind.title()}-{take}.wav"
            file.parent.mkdir(exist_ok=True)
            tone = 0.2 * np.sin(2 * np.pi * (pitch + 2 * take) * np.arange(RATE // 10) / RATE)
            soundfile.write(file, tone, RATE)
    for name in ("cowbell.wav", "ride_crash.wav"):
        soundfile.write(tmp_path / name, np.zeros(RATE), RATE)
    return str(tmp_path)


def samples(folder: str, split: str, **options: Any) -> list[Sample]:
    card = plugins.build("card", "drum_hits", {"path": folder, **options})
    return [card.to_sample(row, "hits") for row in card.rows(split)]


def pitches(sample: Sample) -> list[int]:
    """The loudest frequency in Hz of each part of 0.6 s."""
    wave, rate = soundfile.read(io.BytesIO(sample.parts[0].data))
    assert rate == RATE and len(wave) % round(0.6 * rate) == 0
    parts = wave.reshape(-1, round(0.6 * rate))[:, : rate // 10]
    return [int(np.abs(np.fft.rfft(part)).argmax()) * 10 for part in parts]


def test_each_hit_is_heard_in_the_order_of_the_truth(folder: str) -> None:
    seen = set()
    for sample in samples(folder, "train", count=20):
        names = sample.truth.text[0].split()
        assert len(names) == len(pitches(sample)) <= 3
        for name, pitch in zip(names, pitches(sample), strict=True):
            assert PITCHES[name] <= pitch <= PITCHES[name] + 40
            seen.add(name)
    assert seen == set(KINDS)


def test_splits_share_no_recording_and_no_sequence_is_drawn_twice(folder: str) -> None:
    card = plugins.build("card", "drum_hits", {"path": folder})
    files = {split: [tuple(row["files"]) for row in card.rows(split)] for split in card.splits}
    assert {split: len(rows) for split, rows in files.items()} == {
        "train": 1200,
        "val": 60,
        "test": 200,
    }
    assert all(len(set(rows)) == len(rows) for rows in files.values())
    heard = [{file for row in rows for file in row} for rows in files.values()]
    assert not (heard[0] & heard[1] or heard[0] & heard[2] or heard[1] & heard[2])
    assert not any("cowbell" in file or "ride_crash" in file for each in heard for file in each)


def test_demonstrations_leave_out_what_the_truth_keeps(folder: str) -> None:
    whole = samples(folder, "train", count=60)
    short = samples(folder, "train", count=60, missing=0.4)
    assert [s.truth for s in short] == [s.truth for s in whole]
    assert all(s.demo.text == s.truth.text[0] for s in whole)
    left = 0
    for sample in short:
        names, kept = sample.truth.text[0].split(), sample.demo.text.split()
        rest = iter(names)
        assert kept and all(name in rest for name in kept)  # in their order
        left += len(names) - len(kept)
    assert left > 20


def test_what_cannot_be_read_is_said(folder: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split 'dev': train, val, test"):
        samples(folder, "dev")
    with pytest.raises(UserError, match=r"no folder 'x' .*`apt-get install hydrogen-drumkits`"):
        samples("x", "train")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="expected recordings of each kind for train, got no kick"):
        samples(str(tmp_path / "bare"), "train")
    with pytest.raises(UserError, match=r"missing: expected a chance in \[0, 1\), got 1"):
        samples(folder, "train", missing=1.0)
