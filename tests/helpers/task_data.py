"""Small data sets of ours in the published files of others, at the paths that docs/examples/tasks name."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image, ImageDraw

from helpers.videos import write_video

TEN_A_SECOND = [100 * n for n in range(20)]


def charades(home: Path) -> None:
    folder = home / "charades"
    (folder / "Charades_v1_480").mkdir(parents=True)
    write_video(folder / "Charades_v1_480" / "AO8RW.mp4", TEN_A_SECOND)
    for split in ("train", "test"):
        line = "AO8RW 0.0 1.5##a person is putting a book on a shelf.\n"
        (folder / f"charades_sta_{split}.txt").write_text(line)


def activitynet(home: Path) -> None:
    folder = home / "activitynet"
    (folder / "videos").mkdir(parents=True)
    write_video(folder / "videos" / "v_one.mp4", TEN_A_SECOND)
    video = {"duration": 2.0, "timestamps": [[0.5, 1.0]], "sentences": ["A woman speaks."]}
    (folder / "train.json").write_text(json.dumps({"v_one": video}))


def got10k(home: Path) -> None:
    """A red square that goes right by 14 pixels a second, for 3.1 seconds."""
    for split in ("train", "val"):
        folder = home / "got10k" / split / f"GOT-10k_{split}_1"
        folder.mkdir(parents=True)
        (folder.parent / "list.txt").write_text(folder.name + "\n")
        lefts = [14 * (n // 10) for n in range(31)]
        for n, left in enumerate(lefts, start=1):
            frame = Image.new("RGB", (56, 56), (90, 90, 90))
            ImageDraw.Draw(frame).rectangle((left, 14, left + 13, 27), fill=(235, 45, 45))
            frame.save(folder / f"{n:08d}.jpg")
        boxes = "".join(f"{left}.0,14.0,14.0,14.0\n" for left in lefts)
        (folder / "groundtruth.txt").write_text(boxes)
        (folder / "absence.label").write_text("0\n" * len(lefts))
        meta = "[METAINFO]\nobject_class: square\nresolution: (56, 56)\n"
        (folder / "meta_info.ini").write_text(meta)


def _next_qa(folder: Path, splits: tuple[str, ...]) -> None:
    (folder / "NExTVideo" / "1015").mkdir(parents=True)
    write_video(folder / "NExTVideo" / "1015" / "4010.mp4", TEN_A_SECOND)
    (folder / "map_vid_vidorID.json").write_text(json.dumps({"77": "1015/4010"}))
    options = ["water", "play", "sleep", "run", "sing"]
    for split in splits:
        with (folder / f"{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            names = ["video_id", "question", "answer", "qid", "type", *(f"a{n}" for n in range(5))]
            table.writerow(names)
            table.writerow(["77", "what does the dog do", "sleep", "6", "CW", *options])


def next_gqa(home: Path) -> None:
    _next_qa(home / "nextgqa", ("val", "test"))
    for split in ("val", "test"):
        proof = {"77": {"duration": 2, "location": {"6": [[0.5, 1.5]]}}}
        (home / "nextgqa" / f"gsub_{split}.json").write_text(json.dumps(proof))


def next_qa(home: Path) -> None:
    _next_qa(home / "nextqa", ("train", "test"))


def sound(path: Path, seconds: float = 1.0, hertz: float = 440.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = 0.3 * np.sin(2 * np.pi * hertz * np.arange(round(16000 * seconds)) / 16000)
    soundfile.write(path, wave.astype("f4"), 16000)


def audio_qa(home: Path) -> None:
    choices = ["motorboat", "sailing", "rowing", "swimming"]
    row = {"id": 183, "video_name": "a", "question_text": "What happened?", "answer": 1}
    sound(home / "avqa" / "sound" / "a.wav")
    (home / "avqa" / "train_qa.json").write_text(json.dumps([{**row, "multi_choice": choices}]))
    sound(home / "mmau" / "audios" / "a.wav")
    asked = {"id": "m1", "audio_id": "./audios/a.wav", "question": "What is heard first?"}
    asked |= {"choices": ["A dog", "Rain"], "answer": "Rain"}
    (home / "mmau" / "mmau-test-mini.json").write_text(json.dumps([asked]))


CLASSES = [("/m/09x0r", "Speech"), ("/m/0bt9lr", "Dog"), ("/m/06mb1", "Rain")]


def audioset(home: Path) -> None:
    sound(home / "audioset" / "sound" / "--PJHxphWEs.wav")
    for name in ("balanced_train_segments", "eval_segments"):
        (home / "audioset" / f"{name}.csv").write_text(
            "# Segments csv\n# num_ytids=1\n# YTID, start_seconds, end_seconds, positive_labels\n"
            '--PJHxphWEs, 30.000, 40.000, "/m/09x0r,/m/0bt9lr"\n'
        )
    lines = [f'{n},{mid},"{name}"' for n, (mid, name) in enumerate(CLASSES)]
    names = "\n".join(["index,mid,display_name", *lines])
    (home / "audioset" / "class_labels_indices.csv").write_text(names + "\n")


def audioset_strong(home: Path) -> None:
    sound(home / "strong" / "sound" / "s9d-2nhuJCQ_30000.wav", 2)
    heading = "segment_id\tstart_time_seconds\tend_time_seconds\tlabel"
    events = ["0.000\t1.250\t/m/0bt9lr", "0.500\t2.000\t/m/06mb1"]
    lines = [heading, *(f"s9d-2nhuJCQ_30000\t{event}" for event in events)]
    for split in ("train", "eval"):
        (home / "strong" / f"audioset_{split}_strong.tsv").write_text("\n".join(lines) + "\n")
    names = "".join(f"{mid}\t{name}\n" for mid, name in CLASSES)
    (home / "strong" / "mid_to_display_name.tsv").write_text(names)


def librispeech(home: Path) -> None:
    for split in ("train-clean-100", "test-clean"):
        folder = home / "LibriSpeech" / split / "61" / "70968"
        lines = []
        for n, text in enumerate(["SEVEN FOUR TWO", "ONE NINE"]):
            sound(folder / f"61-70968-000{n}.flac", 1 + 0.5 * n, 300 + 200 * n)
            lines.append(f"61-70968-000{n} {text}\n")
        (folder / "61-70968.trans.txt").write_text("".join(lines))


def spoken_digits(home: Path) -> None:
    for take in (3, 7):
        sound(home / "digits" / f"4_theo_{take}.wav", 0.5)
