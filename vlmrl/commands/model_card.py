"""The model card of an exported run: README.md, written from the run's own files.

It holds no path of the machine that trained, no secret, and no figure without its interval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import metadata_load

from vlmrl import plugins
from vlmrl.commands.export_files import public_name
from vlmrl.commands.trained_run import read_config
from vlmrl.config import Config, SourceConfig
from vlmrl.config.sections.tracking import without_secrets
from vlmrl.data.source import card_of
from vlmrl.errors import UserError
from vlmrl.runs import run_folder
from vlmrl.system.atomic_files import read_json

__all__ = ["write_card"]

SECTIONS = (
    *("model", "data", "sft", "rollout", "rewards", "scoring", "algorithm", "optimizer"),
    *("evaluation", "control"),
)
"""Sections of the config that say what was trained; the others say where and how it ran."""
SHOWN_APART = ("verifier", "weight", "options", "timeout_s")
"""Keys of a reward that the table of rewards has in another place, or that do not touch the reward."""

_ABSOLUTE = re.compile(r"(?<![\w:/.*<])(?:[A-Za-z]:)?(?:~|\.{1,2})?(?:[\\/][\w.@+ -]*\w)+")


def write_card(out: Path, run: Path, checkpoint: Path, form: str, name: str) -> Path:
    """Write README.md into `out`, where the weights are already.

    Raises:
        UserError: a file of the run is damaged.
    """
    config = read_config(run)
    header = _header(config, checkpoint, form)
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {name.rpartition('/')[2]}",
        _introduction(config, checkpoint, form),
        "## Use",
        _usage(config, checkpoint, form, name),
        "## Held-out figures",
        _figures(config, run, checkpoint),
        "## Data",
        _data(config),
        "## Rewards",
        _rewards(config),
        "## Licences",
        _licences(config),
        "## Config",
        f"```yaml\n{_settings(config)}```",
        "## Versions",
        _versions(run),
    ]
    path = out / "README.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def without_paths(value: Any) -> Any:
    """Return a JSON value whose texts keep of every local path only the last part."""
    if isinstance(value, Mapping):
        return {key: without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if "/" in value and Path(value.partition(":")[0]).exists():
        return value.rpartition("/")[2]
    return _ABSOLUTE.sub(lambda found: re.split(r"[\\/]", found[0])[-1], value)


def _base(config: Config) -> str | None:
    return public_name(config.model.path) if config.model.path else None


def _is_on_hub(name: str | None) -> bool:
    return name is not None and "/" in name


def _header(config: Config, checkpoint: Path, form: str) -> dict[str, Any]:
    header: dict[str, Any] = {"library_name": "peft" if form == "adapter" else "transformers"}
    if _is_on_hub(base := _base(config)):
        header |= {
            "base_model": base,
            "base_model_relation": "adapter" if form == "adapter" else "finetune",
        }
    if form == "merged" and _auto_class(checkpoint) == "AutoModelForImageTextToText":
        header["pipeline_tag"] = "image-text-to-text"
    return {**header, "tags": ["vlmrl", "reinforcement-learning", config.algorithm.name]}


def _introduction(config: Config, checkpoint: Path, form: str) -> str:
    base = _base(config)
    family = config.model.build.family if config.model.build else ""
    start = (
        f"`{base}`" if base else f"a small model of the architecture `{family}`, built for the run"
    )
    what = "A LoRA adapter for" if form == "adapter" else "Trained from"
    phase, _, step = checkpoint.name.partition("-")
    steps = (
        f"{step} steps of reinforcement learning" if phase == "step" else f"{step} supervised steps"
    )
    text = f"{what} {start}: {steps} (`{config.algorithm.name}`) with rewards that are checked, by vlmrl."
    if config.control.shuffle_rewards:
        text += " **This was a control run: its rewards were shuffled, so it learned nothing on purpose.**"
    return text


def _auto_class(checkpoint: Path) -> str:
    """Return the transformers class that loads a checkpoint."""
    from transformers.models.auto import modeling_auto

    config = read_json(checkpoint / "config.json")
    known = config["model_type"] in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return "AutoModelForImageTextToText" if known else config["architectures"][0]


def _usage(config: Config, checkpoint: Path, form: str, name: str) -> str:
    model = _auto_class(checkpoint)
    if form == "merged":
        lines = [
            f"from transformers import AutoProcessor, {model}",
            "",
            f'model = {model}.from_pretrained("{name}")',
        ]
    else:
        lines = [
            "from peft import PeftModel",
            f"from transformers import AutoProcessor, {model}",
            "",
            f'base = {model}.from_pretrained("{_base(config)}")',
            f'model = PeftModel.from_pretrained(base, "{name}")',
        ]
    lines.append(f'processor = AutoProcessor.from_pretrained("{name}")')
    return "\n".join(["```python", *lines, "```"])


def _figures(config: Config, run: Path, checkpoint: Path) -> str:
    """Return a table of the checkpoint's own evaluation and of the first one.

    Metrics of a mode are left out, and those of a source where there is only one.
    """
    found = run_folder.steps_in(run / "evals", ".json")
    phase, _, step = checkpoint.name.partition("-")
    number = int(step) if phase == "step" and step.isdigit() else -1
    if number not in found:
        return "This checkpoint was not evaluated."
    this, first = read_json(found[number]), read_json(found[min(found)])
    lines = [
        f"Means over {this['num_samples']} prompts, decoded greedily unless a name begins with "
        "`sampled/`; in brackets: 95 % intervals (bootstrap).",
        "",
        f"| metric | after {min(found)} steps | after {number} steps (this checkpoint) |",
        "|---|---|---|",
    ]
    hidden: tuple[str, ...] = ("mode/",)
    if len(labels := {source.label for source in config.held_out}) == 1:
        hidden = (*hidden, *(f"{label}/" for label in labels))
    lines += [
        f"| `{name}` | {_figure(first, name)} | {_figure(this, name)} |"
        for name in this["metrics"]
        if not name.removeprefix("sampled/").startswith(hidden)
    ]
    summary = run_folder.read_summary(run)
    best = summary and summary["best_evaluation"]
    if summary and best and best["step"] == number and len(found) > 2:
        lines += [
            "",
            f"The checkpoint was chosen among {len(found)} by `{summary['metric']}` on these same "
            "prompts, so that figure is optimistic.",
        ]
    return "\n".join(lines)


def _figure(evaluation: Mapping[str, Any], name: str) -> str:
    value, interval = evaluation["metrics"].get(name), evaluation["intervals"].get(name)
    if value is None or interval is None or None in interval:
        return "-"
    return f"{value:.4f} [{interval[0]:.4f}, {interval[1]:.4f}]"


def _data(config: Config) -> str:
    lines = ["| used for | source | split | card | origin |", "|---|---|---|---|---|"]
    for use, source in _sources(config):
        card = card_of(source)[0]
        lines.append(
            f"| {use} | {source.label} | `{source.split}` | `{without_paths(card)}` | "
            f"{_fact(source, 'origin')} |"
        )
    return "\n".join(lines)


def _sources(config: Config) -> list[tuple[str, SourceConfig]]:
    cold_start = config.sft.sources if config.sft else []
    return [
        *(("training", source) for source in config.data.train),
        *(("cold start", source) for source in cold_start),
        *(("evaluation", source) for source in config.held_out),
    ]


def _fact(source: SourceConfig, name: str) -> str:
    """Return what a source's card says of its origin or licence, on one line."""
    try:
        card = plugins.load("card", card_of(source)[0])
    except UserError:  # a card of the user's own, in a file that is gone
        return "not known: its card cannot be opened any more"
    text = " ".join(str(getattr(card, name, "")).split())
    return without_paths(text).replace("|", "/") or "not stated"


def _rewards(config: Config) -> str:
    lines = ["| source | verifier | weight | options |", "|---|---|---|---|"]
    for source in config.data.train:
        for reward in config.rewards_of(source):
            counted = reward.model_dump(exclude_defaults=True, exclude=set(SHOWN_APART))
            options = without_paths(without_secrets({**reward.options, **counted}))
            shown = ", ".join(f"`{key}: {value}`" for key, value in options.items()).replace(
                "|", "/"
            )
            verifier = without_paths(reward.verifier)
            weight = reward.weight if isinstance(reward.weight, dict) else f"{reward.weight:g}"
            lines.append(f"| {source.label} | `{verifier}` | {weight} | {shown} |")
    return "\n".join([*lines, "", f"They add up by `scoring.combine: {config.scoring.combine}`."])


def _licences(config: Config) -> str:
    lines = []
    if base := _base(config):
        lines.append(
            f"- base model `{base}`: {_licence_of_base(config)}; it binds these weights, too"
        )
    facts = {s.label: _fact(s, "licence") for _, s in _sources(config)}
    return "\n".join([*lines, *(f"- data `{label}`: {fact}" for label, fact in facts.items())])


def _licence_of_base(config: Config) -> str:
    """Return the licence that the base model's own card states, where the card lies on this disk."""
    assert config.model.path is not None
    file = Path(config.model.path).expanduser() / "README.md"
    stated = (metadata_load(file) or {}).get("license") if file.is_file() else None
    return str(stated) if stated else "see its own model card"


def _settings(config: Config) -> str:
    """Return the config as YAML: what differs from the defaults, without paths and secrets."""
    tree = config.model_dump(mode="json", exclude_defaults=True, include=set(SECTIONS))
    run = {"steps": config.run.steps, "seed": config.run.seed}
    if config.model.path:
        tree["model"]["path"] = public_name(config.model.path)
    clean = {key: without_paths(without_secrets(tree[key])) for key in SECTIONS if key in tree}
    return yaml.safe_dump({"run": run, **clean}, sort_keys=False, allow_unicode=True)


def _versions(run: Path) -> str:
    tree = read_json(run / "config.json")
    lines = [f"- {name} {version}" for name, version in tree.get("versions", {}).items()]
    if git := tree.get("git"):
        changed = " with changes" if git["changed"] else ""
        lines.append(f"- vlmrl's source at revision {git['revision']}{changed}")
    return "\n".join(lines)
