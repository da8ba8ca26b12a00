"""Rollouts as JSON rows: the content of rollouts/step-N.jsonl and evals/step-N.jsonl.

A row is one prompt with all its completions. Coordinates are in the unit square of the original
media, times in seconds. A number that is not finite becomes null: JSON has no NaN.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
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
from vlmrl.schema.turns import Call
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
        numbers = {id(prompt): p for p, prompt in enumerate(rollouts.batch.prompts)}
        noted = {
            (numbers[id(prompt)], ids): values
            for prompt, ids, values in self._noted
            if id(prompt) in numbers
        }
        # Equal sequences of a prompt have equal log-probs.
        self.by_place = {
            (p, g): [
                value
                for sequence in completion.sequences
                for value in noted[p, sequence.following_ids]
            ]
            for p in sorted({p for p, _ in noted})
            for g, completion in enumerate(rollouts.completions[p])
            if all((p, sequence.following_ids) in noted for sequence in completion.sequences)
        }
        self._noted.clear()

    def _note(self, micro: MicroBatch, logprobs: torch.Tensor) -> None:
        """Keep the log-probs [B, T] of a micro-batch's tokens of the policy."""
        values = logprobs.detach().float().cpu()
        group, lengths = micro.group.tolist(), micro.lengths.tolist()
        for row, mask in enumerate(micro.mask.cpu()):
            if mask.any():
                ids = tuple(micro.token_ids[row, : lengths[row]].tolist())
                numbers = values[row][mask].tolist()
                self._noted.append((micro.prompts[group[row]], ids, numbers))


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
                "engine": rounded(completion.logprobs)
                if completion.origin == "policy" and completion.logprobs
                else None,
                "trainer": None,
            }
            for completion in completions
        ],
    }


def rounded(values: Sequence[float]) -> list[float | None]:
    """Return log-probs as they are stored; one that is not finite is null."""
    return [round(v, DECIMALS) if v - v == 0 else None for v in values]


# --------------------------------------------------------------------------------------------------


Row = dict[str, Any]


def score_of(completion: Row, name: str) -> float | None:
    """Return the `reward` of a stored completion, or a verifier's score; None where it does not count."""
    if name == "reward":
        return float(completion["reward"]) if completion["valid"] else None
    verdict = completion["verdicts"].get(name)
    return verdict["score"] if verdict and verdict["applies"] else None


def cluster_of(row: Row) -> str:
    """Return what dependent samples share: the file of their main medium, by its content, else the id."""
    main = row.get("main_medium")
    medium = row["media"][main] if main is not None and main < len(row["media"]) else {}
    return str(medium.get("thumbnail") or f"{row['source']}/{row['id']}")


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
                "text": completion.text,
                "thought": completion.parsed.thought,
                "answer": completion.answer,
                "finish_reason": completion.finish_reason,
                "tokens": len(completion.token_ids),
                "verdicts": {name: _fields(of) for name, of in rewards.verdicts[p][g].items()},
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
    system = [{"role": "system", "text": sample.system, "media": 0}] if sample.system else []
    turns = [{"role": t.role, "text": t.text, "media": len(t.media)} for t in prompt.turns]
    return {
        "id": sample.id,
        "source": sample.source,
        "question": sample.text,
        "turns": system + turns,
        "prompt": prompt.text,
        "template": sample.template if isinstance(sample.template, str) else None,
        "media": store_media(media_folder, sample, prompt.media),
        "frame": to_json(prompt.frame),
        "main_medium": sample.main_medium,
        "truth": to_json(sample.truth),
    }


def _segments(folder: Path, completion: Completion) -> Row:
    """Return the segments of a completion of several turns, in order; nothing for a single turn."""
    if not completion.segments:
        return {}
    return {
        "segments": [
            {
                "by": "policy" if segment.of_policy else "carried" if completion.chunks else "tool",
                "text": segment.text,
                "tokens": len(segment.token_ids),
                **({"shared": True} if segment.shared else {}),
                "media": [_store_medium(folder, medium) for medium in segment.media],
                "calls": [_fields(call) for call in segment.calls],
                "reward": segment.reward,
                "metrics": dict(segment.metrics),
            }
            for segment in completion.segments
        ]
    }


def _fields(value: Verdict | Call) -> Row:
    return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}


def store_media(folder: Path, sample: Sample, decoded: Sequence[object]) -> list[Row]:
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
            **(store_video(folder, content, times) if isinstance(content, Video) else {}),
        }
        for medium, content in zip(media, shown, strict=True)
    ]


def _store_medium(folder: Path, medium: object) -> str | None:
    """Store an image or audio and return its file name in `folder`; None for other media.

    Images are scaled down. Audio is 16-bit WAV, clipped at full scale.
    """
    if isinstance(medium, Audio):
        sound = medium

        def write_sound(file: io.BytesIO) -> None:
            import soundfile  # with the extra `audio`, which whoever decoded this has

            soundfile.write(file, sound.samples, sound.rate, format="WAV", subtype="PCM_16")

        digest = hashlib.sha256(sound.samples.tobytes()).hexdigest()
        return _store(folder / f"{digest[:24]}.wav", write_sound)
    if not isinstance(medium, Image.Image):
        return None
    image, is_small = medium, medium.width * medium.height <= 256 * 256

    def write_thumbnail(file: io.BytesIO) -> None:
        view = image.convert("RGB")
        view.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        view.save(file, "PNG" if is_small else "JPEG", quality=88)

    content = repr((image.mode, image.size)).encode() + image.tobytes()
    name = f"{hashlib.sha256(content).hexdigest()[:24]}.{'png' if is_small else 'jpg'}"
    return _store(folder / name, write_thumbnail)


def _store(path: Path, write: Callable[[io.BytesIO], object]) -> str:
    """Let `write` make a file's content, unless the file is there; return its name."""
    if not path.exists():
        write(data := io.BytesIO())
        write_bytes(path, data.getvalue())
    return path.name


STRIP_FRAMES, STRIP_SIDE = 8, 160
"""Most frames of a strip, and the longest side of each, pixels."""
MOVING_FRAMES, MOVING_SIDE = 32, 240
TOY_SIDE = 64
"""Synthetic videos below this are enlarged and animated without loss: they consist of edges."""


def store_video(folder: Path, video: Video, track: Sequence[float] = ()) -> Row:
    """Store a video's strip, animated image and sound in `folder`, each once by its content.

    The strip shows frames evenly over the video, or those nearest to the times of a `track`
    (seconds), so that each of its boxes can be seen on its own frame. The returned row has the file names
    as `thumbnail`, `motion` and `sound`, the seconds of the strip's frames as `times`, and the `duration`.
    """
    taken = _spread(len(video.frames), STRIP_FRAMES)
    if track:
        wanted = [track[n] for n in _spread(len(track), STRIP_FRAMES)]
        gaps = np.abs(np.array(video.times)[:, None] - np.array(wanted))
        taken = sorted(set(gaps.argmin(0).tolist()))
    digest = hashlib.sha256(repr((video.frames.shape, video.times, taken)).encode())
    digest.update(video.frames.tobytes())
    name = digest.hexdigest()[:24]

    def write_strip(file: io.BytesIO) -> None:
        frames = [np.asarray(_shrink(video.frames[n], STRIP_SIDE)) for n in taken]
        Image.fromarray(np.hstack(frames)).save(file, "JPEG", quality=82)

    def write_motion(file: io.BytesIO) -> None:
        moving = _spread(len(video.frames), MOVING_FRAMES)
        first, *others = [_shrink(video.frames[n], MOVING_SIDE) for n in moving]
        starts = [video.times[n] for n in moving] + [video.duration]
        lasting = [max(20, round(1000 * (b - a))) for a, b in itertools.pairwise(starts)]
        timing = {"save_all": True, "append_images": others, "duration": lasting, "loop": 0}
        first.save(file, "WEBP", **timing, lossless=max(video.size) < TOY_SIDE, quality=60)

    heard = {} if video.audio is None else {"sound": _store_medium(folder, video.audio)}
    return {
        "thumbnail": _store(folder / f"{name}.jpg", write_strip),
        "motion": _store(folder / f"{name}.webp", write_motion),
        "times": [video.times[n] for n in taken],
        "duration": video.duration,
        **heard,
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
