"""Rollouts as JSON rows: the content of rollouts/step-N.jsonl and evals/step-N.jsonl.

A row is one prompt with all its completions. Coordinates are in the unit square of the original
media, times in seconds. A number that is not finite becomes null: JSON has no NaN.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from vlmrl.schema import (
    Advantages,
    Completion,
    MicroBatch,
    Prompt,
    Rewards,
    Rollouts,
    Sample,
    Verdict,
)
from vlmrl.schema.media import Audio, Video
from vlmrl.system.files import write_bytes
from vlmrl.truths.json_form import marks, to_json

if TYPE_CHECKING:
    import torch


# --------------------------------------------------------------------------------------------------
# The tokens of stored rollouts: what the engine sampled beside what the trainer thinks of it.
#
# A line of tokens/step-N.jsonl belongs to the line of the same number in rollouts/step-N.jsonl. The trainer's
# log-probs are those of the forward that the loss compares with the engine's, so that they cost no forward of
# their own; completions that took no part in the update have none.


DECIMALS = 4
"""Of a stored log-prob, in nats."""

Place = tuple[int, int]
"""Numbers of a prompt, and of a completion in its group."""


class Updated(Protocol):
    """What `TrainerLogprobs` asks of a policy."""

    observe: Callable[[MicroBatch, torch.Tensor], object] | None


@dataclass
class TrainerLogprobs:
    """The trainer's own log-probs of one step's completions, noted while they are trained on."""

    by_place: dict[Place, list[float]] = field(default_factory=dict)
    """Those of the last step, by prompt and completion; empty where they were not wanted."""
    _noted: list[tuple[Prompt, tuple[int, ...], list[float]]] = field(default_factory=list)

    @contextmanager
    def noting(self, policy: Updated, rollouts: Rollouts, wanted: bool) -> Iterator[None]:
        """Note the log-probs of the rollouts that the policy is updated with, if they are wanted."""
        policy.observe = self._note if wanted else None
        try:
            yield
        finally:
            policy.observe = None
        self.by_place = self._places(rollouts)
        self._noted.clear()

    def _note(self, micro: MicroBatch, logprobs: torch.Tensor) -> None:
        """Keep the log-probs [B, T] of a micro-batch's tokens of the policy."""
        values = logprobs.detach().float().cpu()
        group = micro.group.tolist()
        for row, mask in enumerate(micro.mask.cpu()):
            if mask.any():
                ids = tuple(micro.token_ids[row].cpu()[mask].tolist())
                numbers = values[row][mask].tolist()
                self._noted.append((micro.prompts[group[row]], ids, numbers))

    def _places(self, rollouts: Rollouts) -> dict[Place, list[float]]:
        """Return what was noted by place; equal completions of a prompt have equal log-probs."""
        numbers = {id(prompt): p for p, prompt in enumerate(rollouts.batch.prompts)}
        noted = {
            (numbers[id(prompt)], ids): values
            for prompt, ids, values in self._noted
            if id(prompt) in numbers
        }
        by_place = {}
        for p in sorted({p for p, _ in noted}):
            for g, completion in enumerate(rollouts.completions[p]):
                values = noted.get((p, completion.token_ids))
                if values is not None:
                    by_place[p, g] = values
        return by_place


def token_row(tokenizer: Any, completions: Sequence[Completion], prompt: Prompt) -> dict[str, Any]:
    """Return the texts of the tokens of a prompt's completions, and the engine's log-probs, as JSON values.

    `engine` is null where the engine did not sample the completion, or said nothing of it.
    """
    return {
        "id": prompt.sample.id,
        "source": prompt.sample.source,
        "completions": [
            {
                "texts": tokenizer.batch_decode([[token] for token in completion.token_ids]),
                "engine": _engine(completion),
                "trainer": None,
            }
            for completion in completions
        ],
    }


def rounded(values: Sequence[float]) -> list[float | None]:
    """Return log-probs as they are stored; one that is not finite is null."""
    return [round(v, DECIMALS) if v - v == 0 else None for v in values]


def _engine(completion: Completion) -> list[float | None] | None:
    known = completion.origin == "policy" and completion.logprobs
    return rounded(completion.logprobs) if known else None


# --------------------------------------------------------------------------------------------------


Row = dict[str, Any]

THUMBNAIL_SIDE = 640
"""Longest side of a stored image, pixels: enough for a person to judge a box."""


def rows(
    media_folder: Path,
    rollouts: Rollouts,
    rewards: Rewards,
    advantages: Advantages | None = None,
    numbers: Sequence[int] | None = None,
) -> list[Row]:
    """Return one row per prompt; store its media in `media_folder`, each once by its content.

    `numbers` are those of the prompts that are wanted; None: all.

    Without `advantages` (an evaluation) a completion's `advantage` and `kept` are null; where its
    tokens differ, `advantage` is their mean.
    """
    totals, valid = rewards.total.tolist(), rewards.valid.tolist()
    values = advantages.values.tolist() if advantages else None
    kept = advantages.kept.tolist() if advantages else None
    groups = []
    for p in range(len(rollouts.completions)) if numbers is None else numbers:
        prompt = rollouts.batch.prompts[p]
        completions = [
            {
                **_completion(completion, rewards.verdicts[p][g]),
                **_segments(media_folder, completion),
                "reward": totals[p][g],
                "valid": valid[p][g],
                "advantage": _mean_of(values[p][g], completion) if values else None,
                "kept": kept[p][g] if kept else None,
            }
            for g, completion in enumerate(rollouts.completions[p])
        ]
        groups.append({**_prompt(media_folder, prompt), "completions": completions})
    return groups


def _mean_of(advantage: float | list[float], completion: Completion) -> float:
    """Return a completion's advantage, or the mean of those of its tokens."""
    if not isinstance(advantage, list):
        return advantage
    own = advantage[: len(completion.token_ids)]
    return sum(own) / max(len(own), 1)


def _prompt(media_folder: Path, prompt: Prompt) -> Row:
    sample = prompt.sample
    return {
        "id": sample.id,
        "source": sample.source,
        "question": sample.text,
        "turns": _turns(prompt),
        "prompt": prompt.text,
        "template": sample.template if isinstance(sample.template, str) else None,
        "media": store_media(media_folder, sample, prompt.media),
        "frame": to_json(prompt.frame),
        "main_medium": sample.main_medium,
        "truth": to_json(sample.truth),
    }


def _turns(prompt: Prompt) -> list[Row]:
    """Return role, text and number of media of the turns before the question."""
    system = prompt.sample.system
    first = [{"role": "system", "text": system, "media": 0}] if system else []
    return first + [
        {"role": turn.role, "text": turn.text, "media": len(turn.media)} for turn in prompt.turns
    ]


def _completion(completion: Completion, verdicts: Mapping[str, Verdict]) -> Row:
    return {
        "text": completion.text,
        "thought": completion.parsed.thought,
        "answer": completion.answer,
        "finish_reason": completion.finish_reason,
        "tokens": len(completion.token_ids),
        "verdicts": {name: _verdict(verdict) for name, verdict in verdicts.items()},
    }


def _segments(folder: Path, completion: Completion) -> Row:
    """Return the segments of a completion of several turns, in order; nothing for a single turn."""
    if not completion.segments:
        return {}
    return {
        "segments": [
            {
                "by": "policy" if segment.of_policy else "tool",
                "text": segment.text,
                "tokens": len(segment.token_ids),
                **({"shared": True} if segment.shared else {}),
                "media": [_store_medium(folder, medium) for medium in segment.media],
                "calls": [
                    {f.name: to_json(getattr(call, f.name)) for f in dataclasses.fields(call)}
                    for call in segment.calls
                ],
                "reward": segment.reward,
                "metrics": dict(segment.metrics),
            }
            for segment in completion.segments
        ]
    }


def _verdict(verdict: Verdict) -> Row:
    return {f.name: to_json(getattr(verdict, f.name)) for f in dataclasses.fields(verdict)}


def store_media(folder: Path, sample: Sample, decoded: Sequence[Any]) -> list[Row]:
    """Store a sample's media in `folder`, each once by its content; return a row for each.

    A row has `kind`, `name`, `start`, `end` and the file name `thumbnail`, a video's `motion`, `times`
    and `duration` too. Without `decoded` nothing is stored.
    """
    media = sample.media
    times = sorted({mark.time for mark in marks(to_json(sample.truth)) if mark.time is not None})
    shown = decoded if len(decoded) == len(media) else [None] * len(media)
    return [
        {
            "kind": medium.kind,
            "name": medium.name,
            "start": medium.start,
            "end": medium.end,
            "thumbnail": _store_medium(folder, content),
            **(_store_video(folder, content, times) if isinstance(content, Video) else {}),
        }
        for medium, content in zip(media, shown, strict=True)
    ]


def _store_video(folder: Path, video: Video, times: Sequence[float]) -> Row:
    heard = {} if video.audio is None else {"sound": _store_audio(folder, video.audio)}
    return {**store_video(folder, video, times), **heard}


def _store_medium(folder: Path, medium: Any) -> str | None:
    """Store an image or audio and return its file name in `folder`; None for other media."""
    if isinstance(medium, Audio):
        return _store_audio(folder, medium)
    return _store_thumbnail(folder, medium) if isinstance(medium, Image.Image) else None


def _store_audio(folder: Path, audio: Audio) -> str:
    """Store audio once, as 16-bit WAV (clipped at full scale); return its file name."""
    name = f"{hashlib.sha256(audio.samples.tobytes()).hexdigest()[:24]}.wav"
    if not (folder / name).exists():
        import soundfile  # with the extra `audio`, which whoever decoded this has

        data = io.BytesIO()
        soundfile.write(data, audio.samples, audio.rate, format="WAV", subtype="PCM_16")
        write_bytes(folder / name, data.getvalue())
    return name


def _store_thumbnail(folder: Path, image: Image.Image) -> str:
    """Store an image once, scaled down; return its file name in `folder`."""
    content = repr((image.mode, image.size)).encode() + image.tobytes()
    small = image.width * image.height <= 256 * 256
    name = f"{hashlib.sha256(content).hexdigest()[:24]}.{'png' if small else 'jpg'}"
    if not (folder / name).exists():
        view = image.convert("RGB")
        view.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        data = io.BytesIO()
        view.save(data, format="PNG" if small else "JPEG", quality=88)
        write_bytes(folder / name, data.getvalue())
    return name


STRIP_FRAMES, STRIP_SIDE = 8, 160
"""Most frames of a strip, and the longest side of each, pixels."""
MOVING_FRAMES, MOVING_SIDE = 32, 240
TOY_SIDE = 64
"""Synthetic videos below this are enlarged and animated without loss: they consist of edges."""


def store_video(folder: Path, video: Video, track: Sequence[float] = ()) -> dict[str, Any]:
    """Store a video's strip and animated image in `folder`, each once by its content.

    The strip shows frames evenly over the video, or those nearest to the times of a `track`
    (seconds), so that each of its boxes can be seen on its own frame. The returned row has the file names as
    `thumbnail` and `motion`, the seconds of the strip's frames as `times`, and the video's `duration`.
    """
    taken = _spread(len(video.frames), STRIP_FRAMES)
    if track:
        wanted = [track[n] for n in _spread(len(track), STRIP_FRAMES)]
        gaps = np.abs(np.array(video.times)[:, None] - np.array(wanted))
        taken = sorted(set(gaps.argmin(0).tolist()))
    digest = hashlib.sha256(repr((video.frames.shape, video.times, taken)).encode())
    digest.update(video.frames.tobytes())
    name = digest.hexdigest()[:24]
    strip, motion = f"{name}.jpg", f"{name}.webp"
    if not (folder / motion).exists():
        write_bytes(folder / strip, _strip([_shrink(video.frames[n], STRIP_SIDE) for n in taken]))
        write_bytes(folder / motion, _animate(video))
    return {
        "thumbnail": strip,
        "motion": motion,
        "times": [video.times[n] for n in taken],
        "duration": video.duration,
    }


def _spread(count: int, most: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def _shrink(frame: np.ndarray, side: int) -> Image.Image:
    image = Image.fromarray(frame)
    if max(image.size) < TOY_SIDE:
        scale = TOY_SIDE // max(image.size)
        return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    image.thumbnail((side, side))
    return image


def _strip(images: list[Image.Image]) -> bytes:
    """Return a JPEG of the images, all of the same size, in a row."""
    width, height = images[0].size
    strip = Image.new("RGB", (width * len(images), height))
    for column, image in enumerate(images):
        strip.paste(image, (column * width, 0))
    out = io.BytesIO()
    strip.save(out, "JPEG", quality=82)
    return out.getvalue()


def _animate(video: Video) -> bytes:
    """Return an animated WebP of a few frames with the video's own timing."""
    taken = _spread(len(video.frames), MOVING_FRAMES)
    images = [_shrink(video.frames[n], MOVING_SIDE) for n in taken]
    starts = [video.times[n] for n in taken] + [video.duration]
    lasting = [max(20, round(1000 * (b - a))) for a, b in itertools.pairwise(starts)]
    moving = {"save_all": True, "append_images": images[1:], "duration": lasting, "loop": 0}
    out = io.BytesIO()
    images[0].save(out, "WEBP", **moving, lossless=max(video.size) < TOY_SIDE, quality=60)
    return out.getvalue()
