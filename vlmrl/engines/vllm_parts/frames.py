"""Send a video to a vLLM server: the frames that the trainer has, to the bit, with their times.

Nothing is compressed (vLLM's own way for frames is JPEG, which loses) and nothing is unpickled: one
line of JSON, then the frames' bytes. The server reads them with a video loader of this name.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from vlmrl.media_types import Video

LOADER = "vlmrl"
"""Name of the loader (`serve` registers it), and what servers are told to read all videos with."""

VllmVideo = tuple[np.ndarray, dict[str, Any]]
"""What vLLM takes for a video: frames uint8 [T, H, W, 3] and the metadata that transformers takes."""


def as_seen(video: Video) -> VllmVideo:
    """Return the video for vLLM as the trainer's model sees it: no frame left out or sampled again."""
    seen = video.paired()
    return seen.frames, {**seen.metadata, "do_sample_frames": False}


def pack(video: VllmVideo) -> bytes:
    """Return frames and metadata as bytes; `unpack` turns them back."""
    frames, metadata = video
    head = json.dumps({"shape": frames.shape, "metadata": metadata})
    return head.encode() + b"\n" + frames.tobytes()


def unpack(data: bytes) -> VllmVideo:
    """Return the frames and metadata that were packed.

    Raises:
        ValueError: these bytes are not a packed video.
    """
    head, _, pixels = data.partition(b"\n")
    try:
        told = json.loads(head)
        shape, metadata = told["shape"], told["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("expected a video as vlmrl packs it, got other data") from error
    frames = np.frombuffer(bytearray(pixels), np.uint8).reshape(shape)  # writable
    if frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(f"expected frames [T, H, W, 3], got {list(frames.shape)}")
    return frames, metadata


def register() -> None:
    """Make vLLM read videos that were packed; in every process that answers requests."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY, VideoLoader

    @VIDEO_LOADER_REGISTRY.register(LOADER)
    class Packed(VideoLoader):
        @classmethod
        def load_bytes(cls, data: bytes, **_: Any) -> VllmVideo:
            return unpack(data)
