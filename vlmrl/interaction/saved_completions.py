"""Completions as a checkpoint keeps them: JSON values, and what was observed by the hash of its content.
So are the experts that an engine chose.

A completion comes back equal in every token, log-prob, position and pixel: media are kept without loss.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from PIL import Image
from pydantic import TypeAdapter

from vlmrl.engines.base import ServedPolicy
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.errors import UserError
from vlmrl.schema import Call, Completion, Experts, Prompt, Segment
from vlmrl.schema.media import Audio, Decoded, PilImage, Video

_CALL = TypeAdapter(Call)


def to_json(completion: Completion, media: MutableMapping[str, np.ndarray]) -> dict[str, Any]:
    """Return what was sampled and shown as JSON values, and add what was observed, and experts, to `media`.

    The text of a single turn is a function of its tokens.
    """
    saved: dict[str, Any] = {
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason,
        "versions": completion.versions,
    }
    if completion.chunks:
        saved["in_chunks"] = True
    if completion.segments:
        saved["segments"] = [
            {
                **{f.name: getattr(segment, f.name) for f in fields(segment)},
                "calls": [asdict(call) for call in segment.calls],
                "media": [_store(medium, media) for medium in segment.media],
            }
            for segment in completion.segments
        ]
    if (experts := completion.experts) is not None:
        saved["experts"] = [_add(_bytes_of(a), media) for a in (experts.prompt, experts.written)]
    return saved


def from_json(
    policy: ServedPolicy,
    prompt: Prompt,
    saved: Mapping[str, Any],
    media: Mapping[str, np.ndarray],
) -> Completion:
    """Invert `to_json`.

    Raises:
        UserError: what was observed is missing, or would be told in other tokens now.
    """
    arrays = [np.load(_open(n, media), allow_pickle=False) for n in saved.get("experts", ())]
    experts = Experts(*arrays) if arrays else None
    if "segments" not in saved:
        return replace(_read(policy, prompt, saved), experts=experts)
    # Only rollouts of several turns have a trail.
    from vlmrl.interaction.chunks import join
    from vlmrl.interaction.trail import Trail

    in_chunks = saved.get("in_chunks", False)

    trail = Trail(policy.family, policy.processor, prompt)
    for fields_of_one in saved["segments"]:
        segment = _segment_from_json(fields_of_one, media)
        if segment.of_policy:
            last = _read(policy, prompt, {**saved, **fields_of_one})
            trail = trail.write(last)
        elif in_chunks:
            trail = trail.begin_anew(segment.token_ids, segment.text)
        else:
            start = (trail.encoded or prompt.encoded).next_position
            seen = (*prompt.media, *trail.media)
            encoded = policy.family.extend(
                policy.processor, segment.text, segment.media, start, seen
            )
            if encoded.compact_ids != segment.token_ids:
                raise UserError(f"sample {prompt.sample.id!r}: an observation has other tokens now")
            trail = trail.observe(segment, encoded)
        trail = trail.note(**{f.name: getattr(segment, f.name) for f in fields(Segment)})
    if in_chunks:
        return join(policy, trail, saved["finish_reason"])
    return replace(trail.finish(last, saved["finish_reason"]), experts=experts)


def oldest(saved: Mapping[str, Any]) -> int:
    """Return the oldest policy version that wrote a token of a completion."""
    return min((version for version, _ in saved["versions"]), default=0)


def _read(policy: ServedPolicy, prompt: Prompt, saved: Mapping[str, Any]) -> Completion:
    written = Sampled(
        tuple(saved["token_ids"]),
        tuple(saved["logprobs"]),
        saved["finish_reason"],
        tuple((version, count) for version, count in saved["versions"]),
    )
    ((completion,),) = make_completions(policy, [prompt], [[written]])
    return completion


def _segment_from_json(saved: Mapping[str, Any], media: Mapping[str, np.ndarray]) -> Segment:
    return Segment(
        **{
            **saved,
            "token_ids": tuple(saved["token_ids"]),
            "logprobs": tuple(saved["logprobs"]),
            "versions": tuple((version, count) for version, count in saved["versions"]),
            "calls": tuple(_CALL.validate_python(call) for call in saved["calls"]),
            "media": tuple(_load(name, media) for name in saved["media"]),
        }
    )


def _store(medium: Decoded, media: MutableMapping[str, np.ndarray]) -> str:
    """Add the medium's content as bytes, uint8 [N], and return the name under which it is there."""
    buffer = io.BytesIO()
    if isinstance(medium, PilImage):
        medium.save(buffer, "PNG")
    elif isinstance(medium, Audio):
        np.savez(buffer, samples=medium.samples, rate=medium.rate)
    else:
        heard = medium.audio
        own: dict[str, Any] = {f.name: getattr(medium, f.name) for f in fields(medium)}
        del own["audio"]
        own |= {} if heard is None else {"samples": heard.samples, "rate": heard.rate}
        np.savez_compressed(buffer, **own)
    return _add(buffer.getvalue(), media)


def _add(content: bytes, media: MutableMapping[str, np.ndarray]) -> str:
    name = hashlib.sha256(content).hexdigest()
    media[name] = np.frombuffer(content, np.uint8)
    return name


def _bytes_of(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _open(name: str, media: Mapping[str, np.ndarray]) -> io.BytesIO:
    if name not in media:
        raise UserError(f"the checkpoint lacks what was observed: {name}")
    return io.BytesIO(media[name].tobytes())


def _load(name: str, media: Mapping[str, np.ndarray]) -> Decoded:
    buffer = _open(name, media)
    if buffer.getbuffer()[:4] != b"PK\x03\x04":
        return Image.open(buffer).convert("RGB")
    with np.load(buffer, allow_pickle=False) as archive:
        arrays: dict[str, Any] = {key: archive[key] for key in archive.files}
    heard = Audio(arrays["samples"], int(arrays["rate"])) if "samples" in arrays else None
    if "frames" not in arrays:
        assert heard is not None
        return heard
    return Video(
        frames=arrays["frames"],
        times=tuple(arrays["times"].tolist()),
        duration=float(arrays["duration"]),
        indices=tuple(arrays["indices"].tolist()),
        total=int(arrays["total"]),
        fps=float(arrays["fps"]),
        original=(int(arrays["original"][0]), int(arrays["original"][1])),
        audio=heard,
    )


def media_of(saved: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of what was observed in these completions, and of their experts."""
    segments = (segment for completion in saved for segment in completion.get("segments", ()))
    experts = {name for completion in saved for name in completion.get("experts", ())}
    return experts | {name for segment in segments for name in segment["media"]}
