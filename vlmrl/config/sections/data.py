"""The section `data` of a config: sources of samples, and how their media are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from vlmrl.config.section import (
    AtResume,
    Fixed,
    Free,
    Named,
    PluginRef,
    Scheduled,
    Section,
    Unfixed,
)
from vlmrl.config.sections.rewards import RewardConfig


class PublishedConfig(Section):
    """Where the data of a source are published, for `vlmrl data fetch`."""

    hub: str
    """Data set of the Hugging Face hub, `owner/name`."""
    to: str
    """Folder that it is fetched into; archives are unpacked beside themselves."""
    files: list[str] = []
    """What to fetch of it: paths with `*` and `?`. Empty: all."""


HELD_OUT = ("test", "val", "valid", "validation")
"""Splits that are evaluated where a config names none: the first that the data have."""


class SourceConfig(Named):
    """One source of samples: a card, shipped or `file.py:Name`, or a data file, with its options."""

    short = "card"
    name: str | None = None
    """Name on its curves. Absent: the card's or the file's name."""
    card: str
    """One of `vlmrl list cards`, `path/to/file.py:Name`, or a data file or folder."""
    options: Annotated[dict[str, Any], AtResume("fixed", ("path", "root"))] = Field(
        default_factory=dict
    )
    """Options of the card."""
    published: Free[PublishedConfig | None] = None
    """Where its data are published: `vlmrl data fetch CONFIG` gets them. Absent: the data are yours."""
    split: str = "train"
    """Split of the data, whole (`train`) or cut (`train[:80%]`, `train[100:200]`)."""
    held_out: Unfixed[str | None] = None
    """Split that is evaluated where `evaluation.sources` is absent, whole or cut (`train[:200]`). Absent:
    `test`; where the data have none, `val`, `valid` or `validation`."""
    weight: Scheduled[float] = Field(1.0, ge=0)
    """Share in the mixture, relative to the other sources. 0: its rows are not drawn, and a strategy asks
    of it."""
    template: Unfixed[str | dict[str, Any] | None] = None
    """Answer template of its samples: a shipped name, a YAML file, or a mapping with `tags`. Absent: the
    card's choice."""
    instruct: Unfixed[bool] = True
    """Append the template's instruction ("think in <think> ...") to the question."""
    tools: Unfixed[list[PluginRef]] = []
    """What the policy may call between its turns, in training and evaluation: of `vlmrl list tools`. With
    `instruct` the system turn offers them. Empty: a completion is a single turn."""
    environment: Unfixed[PluginRef | None] = None
    """The world in which the policy acts turn by turn, in training and evaluation: one of `vlmrl list
    environments`. Its actions are offered as tools are. The card `world` draws its prompts. Absent: none."""
    few_shot: Unfixed[str | None] = None
    """Split whose rows are shown before every question, each with its right answer (`demos[:2]`), at
    most 8. A row is never its own example."""
    rewards: Unfixed[list[RewardConfig] | None] = None
    """Verifiers of this source. Absent: the config's `rewards`."""
    limit: int | None = Field(None, ge=1)
    """Use only the first N rows."""
    where: str | None = None
    """Use only rows that meet this condition on columns: `1 < level <= 3`, `kind == 'chart'`, with `and`,
    `or`, `not`. It is applied to the first `limit` rows. Held-out sources have their own."""

    ratings: str | None = None
    """File of `vlmrl data rate` whose `pass_rate`, `reward` and `n` become columns of the rows, for `where`
    and samplers. Held-out sources have their own."""
    demonstrations: str | None = None
    """File of `vlmrl data demonstrate`: use only rows for which it keeps a teacher's answer, with that answer
    as their demonstration. Held-out sources have their own."""

    @model_validator(mode="before")
    @classmethod
    def _card_and_environment_agree(cls, value: object) -> Any:
        """State the world of the card `world` once: as the source's environment, or in its options."""
        if not isinstance(value, Mapping) or value.get("card") != "world":
            return value
        options, named = value.get("options") or {}, value.get("environment")
        if isinstance(named, str):
            named = {"name": named}
        if isinstance(named, Mapping) and "environment" not in options:
            environment = {"environment": named.get("name"), "options": named.get("options") or {}}
            return {**value, "options": {**options, **environment}}
        if not named and "environment" in options:
            environment = {"name": options["environment"], "options": options.get("options") or {}}
            return {**value, "environment": environment}
        return value

    def whole(self, split: str) -> SourceConfig:
        """Return it with all rows of a split: a choice of rows is for training."""
        choice = {"where": None, "ratings": None, "demonstrations": None}
        return self.model_copy(update={"split": split, **choice})

    @property
    def acts(self) -> bool:
        """Whether its rollouts may have several turns."""
        return bool(self.tools or self.environment)

    @property
    def label(self) -> str:
        """The name on its curves."""
        if self.card == "world" and self.environment and not self.name:
            return Path(self.environment.name.rpartition(":")[2]).stem
        return self.name or Path(self.card.rpartition(":")[2]).stem


class VideoConfig(Section):
    """Which frames are taken of a video, how large they may be, and whether it is heard."""

    fps: float = Field(2.0, gt=0)
    """Frames to take per second of video."""
    min_frames: int = Field(4, ge=1)
    """Fewest frames to take of a video."""
    max_frames: int = Field(64, ge=1)
    """Most frames to take of a video."""
    max_pixels: int = Field(768 * 28 * 28, ge=1)
    """Most pixels of one frame; a larger one is shrunk."""
    total_pixels: int = Field(24576 * 28 * 28, ge=1)
    """Most pixels of all frames of a video; two frames count as one, because they share their tokens."""
    max_source_frames: int = Field(300_000, ge=1)
    """Most frames in a file, of which some are taken; a row with a longer file is bad."""
    size_divisor: int = Field(28, ge=1)
    """Frames that are shrunk get sides that are multiples of this: patch size times merge size of
    the model (28; Qwen3-VL: 32)."""
    audio: bool | None = None
    """Whether the model hears the audio of videos. Absent: if its family can (Qwen2.5-Omni)."""

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> VideoConfig:
        if self.min_frames > self.max_frames:
            raise ValueError(f"min_frames {self.min_frames} exceeds max_frames {self.max_frames}")
        return self


class AudioConfig(Section):
    """How audio is read."""

    sampling_rate: int = Field(16000, ge=1)
    """Samples per second that audio is resampled to: the rate that the model was trained with."""
    max_duration_s: float = Field(30.0, gt=0)
    """Longest audio, in seconds. Longer audio is refused, never cut."""


class SamplerConfig(PluginRef):
    """Which rows are drawn: one of `vlmrl list samplers`, with its options."""

    name: str = "mixture"
    """One of `vlmrl list samplers`, `path/to/file.py:Name` or `package.module:Name`."""
    lag: int | None = Field(None, ge=1)
    """Batches from a choice of rows back to the newest rewards that it knows, for a sampler that learns.
    Absent: 4 + `rollout.max_staleness`; without workers it may be 1 + `rollout.max_staleness`."""


class DataConfig(Section):
    """What the policy is trained on."""

    train: Fixed[list[SourceConfig]] = Field(min_length=1)
    """Training sources."""
    sampler: Fixed[SamplerConfig] = SamplerConfig()
    """Which rows of the training sources are drawn, and in what order."""
    system: str = ""
    """Text of the system turn of every prompt; a row's own comes before it. Empty: none but the one that
    a model's chat template may write."""
    max_prompt_tokens: int = Field(4096, ge=1)
    """Longest prompt, in tokens. A longer one is dropped and counted, never cut."""
    workers: Free[int] = Field(0, ge=0)
    """Processes that decode media; prompts are then made ahead of their use. 0: decode in line."""
    prefetch_mb: Free[int] = Field(256, ge=1)
    """Limit in MiB on decoded media, and again on finished prompts, that wait in memory."""
    quarantine_limit: float = Field(0.05, ge=0, le=1)
    """Stop when more than this share of the rows seen (after the first 20) is bad."""
    allow_urls: bool = False
    """Allow media at http and https addresses."""
    allow_private_urls: bool = False
    """Allow addresses on this machine and in private networks, also by redirection."""
    url_timeout_s: Free[float] = Field(20.0, gt=0)
    """Seconds to fetch one file; a row whose file takes longer is bad."""
    url_cache: Free[str | None] = None
    """Folder that keeps fetched files. Absent: `vlmrl/urls` in the user's cache."""
    media_root: str | None = None
    """Folder that media paths must stay inside. Relative ones start from the card's own folder (its
    option `root`, or the data file's folder) whatever this is. Absent: that folder."""
    video: VideoConfig = VideoConfig()
    """How videos are sampled and resized."""
    audio: AudioConfig = AudioConfig()
    """How audio is read."""
    decode_timeout_s: Free[float] = Field(120.0, gt=0)
    """Seconds to decode the media of one row; a row that takes longer is bad."""
    decode_memory_mb: Free[int] = Field(1024, ge=64)
    """Memory in MiB to decode the media of one row; a row that takes more is bad."""
    max_media_mb: int = Field(1024, ge=1)
    """Most MiB of media files in one row; a row with more is bad."""
    max_image_pixels: int = Field(64 * 2**20, ge=1)
    """Most pixels of all images of one row; a row with more is bad."""

    @model_validator(mode="after")
    def _names_differ(self) -> DataConfig:
        labels = [s.label for s in self.train]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two sources are named {label!r}: give one of them a `name`")
        return self
