"""The section `stages` of a config: stretches of training, each with its values laid over the config's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from vlmrl.config.section import Section
from vlmrl.config.sections.data import SourceConfig
from vlmrl.config.sections.model import OptimizerConfig
from vlmrl.config.sections.rewards import RolloutConfig
from vlmrl.config.tree import merge
from vlmrl.errors import UserError
from vlmrl.plugins import nearest


class StageConfig(Section):
    """A stretch of training with settings of its own, laid over those of the config."""

    name: str | None = None
    """Name in messages and in the report. Absent: its number, from 1."""
    until: float | None = Field(None, gt=0, le=1)
    """Share of training at which it ends. Absent, in the last: the end of training."""
    sources: list[str] | None = Field(None, min_length=1)
    """Names of the training sources that it draws from. Absent: all."""
    template: str | dict[str, Any] | None = None
    """Answer template of all its training sources."""
    data: dict[Literal["train", "system", "video", "audio"], Any] = {}
    """Keys of `data`; a list of sources replaces that of the config."""
    rollout: dict[str, Any] = {}
    """Keys of `rollout`."""
    rewards: list[Any] | None = None
    """Verifiers in place of those of the config, for training."""
    algorithm: str | dict[str, Any] | None = None
    """Algorithm, or options that are laid over those of the config's."""
    optimizer: dict[str, Any] = {}
    """Keys of `optimizer`."""

    @field_validator("rollout", "optimizer")
    @classmethod
    def _keys_may_change(cls, keys: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        section = RolloutConfig if info.field_name == "rollout" else OptimizerConfig
        for key in keys:
            if key not in section.model_fields:
                raise ValueError(f"unknown key {key!r}{nearest(key, sorted(section.model_fields))}")
            if not section.may_change(key):
                raise ValueError(f"{key} is the same during a whole run: no stage may set it")
        return keys


def label(stages: Sequence[StageConfig], index: int) -> str:
    """Return what messages call a stage: its number from 1, and its name if it has one."""
    name = stages[index].name
    return f"stage {index + 1}" + (f" ({name})" if name else "")


def starts(stages: Sequence[StageConfig]) -> list[float]:
    """Return the share of training at which each stage begins; [0.0] without stages."""
    return [0.0, *(stage.until for stage in stages[:-1] if stage.until is not None)]


def check(stages: Sequence[StageConfig]) -> None:
    """Refuse stages that do not follow each other to the end of training.

    Raises:
        UserError: names the key.
    """
    before = 0.0
    names = [stage.name for stage in stages]
    for index, stage in enumerate(stages):
        if stage.name and stage.name in names[:index]:
            raise UserError(f"stages.{index}.name: two stages are named {stage.name!r}")
        last = index + 1 == len(stages)
        if last and stage.until not in (None, 1):
            raise UserError(f"stages.{index}.until: expected 1 or nothing, got {stage.until}")
        if not last and (stage.until is None or not before < stage.until < 1):
            raise UserError(
                f"stages.{index}.until: expected a share of training above {before:g} and below 1, "
                f"got {stage.until}"
            )
        before = stage.until or 1.0


def lay_over(tree: Mapping[str, Any], stage: StageConfig) -> dict[str, Any]:
    """Return the plain values of a config, those of a stage laid over them, without `stages`.

    Raises:
        UserError: the stage names a source that there is not.
    """
    own = stage.model_dump(exclude_none=True)
    keys = ("data", "rollout", "rewards", "algorithm", "optimizer")
    # What evaluates is the config's own, and so are the metrics that it may name.
    base = {**tree, "stages": [], "evaluation": None, "sft": None}
    merged = dict(merge(base, {key: own[key] for key in keys if own.get(key)}))
    if stage.rewards is not None:
        merged["rewards"] = stage.rewards
    if stage.template is None and stage.sources is None:
        return merged
    train = [{"card": s} if isinstance(s, str) else s for s in merged["data"]["train"]]
    if stage.sources is not None:
        train = _chosen(train, stage.sources)
    if stage.template is not None:
        train = [{**source, "template": stage.template} for source in train]
    return {**merged, "data": {**merged["data"], "train": train}}


def _chosen(train: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Any]:
    by_name = {SourceConfig(name=s.get("name"), card=s["card"]).label: s for s in train}
    for name in names:
        if name not in by_name:
            raise UserError(
                f"sources: no training source is named {name!r}{nearest(name, list(by_name))}"
            )
    return [by_name[name] for name in dict.fromkeys(names)]
