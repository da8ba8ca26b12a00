"""The rows of a task as files that every trainer reads: images beside JSON lines."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
from PIL import Image, ImageSequence

from vlmrl.config import Config
from vlmrl.data.source import open_source
from vlmrl.schema import Frame, Media, Sample
from vlmrl.truths.json_form import convert, to_json


def write_rows(config: Config, folder: Path) -> None:
    """Write `rows.jsonl` (question, media, truth) and `swift.jsonl`, the same as ms-swift documents it."""
    source = open_source(config.data.train[0])
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_row(source.sample(i), folder) for i in range(len(source.rows))]
    for name, write in (("rows", dict), ("swift", _for_swift)):
        lines = [json.dumps(write(row)) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _row(sample: Sample, folder: Path) -> dict[str, Any]:
    files = [_write(medium, folder / f"{sample.id}-{i}") for i, medium in enumerate(sample.media)]
    # All images of a row are of one size; a video's places are in time.
    first = Image.open(io.BytesIO(sample.media[0].data or b""))
    frame = Frame(*first.size)
    values = {kind: value for kind, value in sample.truth.stated().items() if value is not False}
    truth = {kind: to_json(convert(value, frame)) for kind, value in values.items()}
    media = {"width": frame.width, "height": frame.height}
    if sample.media[0].kind == "video":
        media["duration"] = first.n_frames  # type: ignore[attr-defined]
    question = "".join(part for part in sample.parts if isinstance(part, str))
    # As texts: a column of objects gets all keys of all rows.
    stated = {"truth": json.dumps(truth), "media": json.dumps(media)}
    return {"question": question, f"{sample.media[0].kind}s": files, **stated}


def _write(medium: Media, path: Path) -> str:
    """Write an image, or a video of a frame a second, losslessly; return the path."""
    image = Image.open(io.BytesIO(medium.data or b""))
    if medium.kind == "image":
        image.convert("RGB").save(f"{path}.png")
        return f"{path}.png"
    with av.open(f"{path}.mp4", "w") as file:
        stream = file.add_stream("libx264rgb", rate=1, options={"crf": "0"})
        stream.width, stream.height, stream.pix_fmt = *image.size, "rgb24"
        for frame in ImageSequence.Iterator(image):
            shown = av.VideoFrame.from_image(frame.convert("RGB"))
            file.mux(stream.encode(shown))
        file.mux(stream.encode())
    return f"{path}.mp4"


def _for_swift(row: dict[str, Any]) -> dict[str, Any]:
    shown = "".join(f"<{key[:-1]}>" * len(row.get(key, ())) for key in ("images", "videos"))
    question = {"role": "user", "content": shown + row["question"]}
    return {"messages": [question], **{k: v for k, v in row.items() if k != "question"}}
