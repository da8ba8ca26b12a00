"""`vlmrl export`: the weights of a run as a folder for others, with a model card written from the run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import safetensors.torch
import torch
import yaml
from huggingface_hub import metadata_load
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open

from vlmrl import plugins
from vlmrl.assemble.trained_run import find_run, read_config
from vlmrl.config import Config, ModelConfig, SourceConfig
from vlmrl.config.sections.run import without_secrets
from vlmrl.data.source import card_of, evaluated
from vlmrl.errors import UserError
from vlmrl.policy import adapter_folder, checkpoint
from vlmrl.runs import run_folder
from vlmrl.system.files import read_json, write_json, writing

# --------------------------------------------------------------------------------------------------
# Upload an exported folder to the Hugging Face hub.


def require_token(repo: str) -> None:
    """Refuse a name that the hub does not allow, and an upload without a token.

    Raises:
        UserError: one line that says what to do.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"export --push: {str(error).splitlines()[0]}") from error
    if not huggingface_hub.get_token():
        raise UserError(
            f"export --push {repo}: there is no token for the hub: run `hf auth login`, or set HF_TOKEN"
        )


def upload(folder: Path, repo: str) -> None:
    """Upload the files of `folder`, none of its folders; a repository that is not there is made private.

    Raises:
        UserError: the hub cannot be reached or refuses.
    """
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, allow_patterns=files)
    except (OSError, HTTPError) as error:  # the hub's own errors are one of the two
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"export --push {repo}: {reason}; the files are in {folder}") from error


# --------------------------------------------------------------------------------------------------
# The files of an export: weights in one dtype, configs and processor without local paths.


PATH_KEYS = ("_name_or_path", "name_or_path")
"""Keys under which transformers records where a model or a tokenizer was read."""
MODEL_FILES = ("config.json", "generation_config.json")
_CACHED = re.compile(r"models--(?P<owner>[^/\\]+?)--(?P<name>[^/\\]+)[/\\]snapshots[/\\]")


def write_merged(checkpoint: Path, out: Path, dtype: str) -> None:
    """Write the model of a checkpoint with weights of `dtype`; needs the memory of one weight file."""
    for path in _files(checkpoint):
        if path.suffix == ".safetensors":
            _cast(path, out / path.name, dtype)
        elif path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)
        else:
            _copy(path, out, lambda tree: _with_dtype(tree, dtype))
    for index in out.glob("*.index.json"):
        tree = read_json(index)
        tree["metadata"]["total_size"] = sum(_bytes(p) for p in out.glob("*.safetensors"))
        write_json(index, tree)


def write_adapter(checkpoint: Path, out: Path, dtype: str, base: str) -> None:
    """Write the PEFT adapter of a checkpoint for the base model `base`, and the processor."""
    home = checkpoint / adapter_folder.FOLDER
    _cast(home / adapter_folder.WEIGHTS, out / adapter_folder.WEIGHTS, dtype)
    tree = read_json(home / adapter_folder.CONFIG)
    write_json(out / adapter_folder.CONFIG, {**tree, "base_model_name_or_path": base})
    for path in _files(checkpoint):
        if path.name not in MODEL_FILES and "safetensors" not in path.name:
            _copy(path, out, lambda tree: tree)


def public_name(path: str) -> str:
    """Return what others may read of a model's path: its name on the hub, else the folder's name."""
    if cached := _CACHED.search(f"{path}/"):
        return f"{cached['owner']}/{cached['name']}"
    folder = Path(path).expanduser()
    local = folder.is_dir() or folder.is_absolute() or path.startswith(".")
    return folder.resolve().name if local else path


def _files(checkpoint: Path) -> list[Path]:
    """Return the files that `from_pretrained` reads: neither the trainer's state nor the adapter."""
    return [path for path in sorted(checkpoint.iterdir()) if path.is_file()]


def _cast(source: Path, target: Path, dtype: str) -> None:
    """Copy a weight file with its floating point weights in `dtype`; others stay as they are."""
    weights = {}
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata() or {"format": "pt"}
        for name in file.keys():  # noqa: SIM118  it is no mapping
            value = file.get_tensor(name)
            floating = value.is_floating_point()
            weights[name] = value.to(getattr(torch, dtype)) if floating else value
    safetensors.torch.save_file(weights, target, metadata)


def _bytes(weights: Path) -> int:
    with safe_open(weights, framework="pt") as file:
        return sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118


def _copy(path: Path, out: Path, change: Callable[[Any], Any]) -> None:
    if path.suffix != ".json" or path.name == "tokenizer.json":
        shutil.copyfile(path, out / path.name)
        return
    tree = change(_without_paths(json.loads(path.read_bytes())))
    (out / path.name).write_text(json.dumps(tree, indent=2) + "\n")


def _without_paths(tree: object) -> Any:
    if isinstance(tree, dict):
        return {k: _without_paths(v) for k, v in tree.items() if k not in PATH_KEYS}
    return [_without_paths(v) for v in tree] if isinstance(tree, list) else tree


def _with_dtype(tree: object, dtype: str) -> Any:
    if isinstance(tree, dict):
        return {k: dtype if k == "dtype" else _with_dtype(v, dtype) for k, v in tree.items()}
    return tree


# --------------------------------------------------------------------------------------------------
# The model card of an exported run: README.md, written from the run's own files.
#
# It holds no path of the machine that trained, no secret, and no figure without its interval.


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


def without_paths(value: object) -> Any:
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


def _header(config: Config, checkpoint: Path, form: str) -> dict[str, Any]:
    header: dict[str, Any] = {"library_name": "peft" if form == "adapter" else "transformers"}
    if (base := _base(config)) is not None and "/" in base:
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
    if config.control.shuffle_rewards or config.control.random_rewards is not None:
        how = "shuffled" if config.control.random_rewards is None else "random"
        text += f" **This was a control run: its rewards were {how}, so it learned nothing on purpose.**"
    return text


def _auto_class(checkpoint: Path) -> str:
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
    files = run_folder.steps_in(run / "evals", ".json")
    phase, _, step = checkpoint.name.partition("-")
    number = int(step) if phase == "step" and step.isdigit() else -1
    if number not in files:
        return "This checkpoint was not evaluated."
    this, first = read_json(files[number]), read_json(files[min(files)])
    lines = [
        f"Means over {this['num_samples']} prompts, decoded greedily unless a name begins with "
        "`sampled/`; in brackets: 95 % intervals (bootstrap).",
        "",
        f"| metric | after {min(files)} steps | after {number} steps (this checkpoint) |",
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
    if summary and best and best["step"] == number and len(files) > 2:
        lines += [
            "",
            f"The checkpoint was chosen among {len(files)} by `{summary['metric']}` on these same "
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
    cold_start = config.sft.named_sources if config.sft else []
    try:
        held_out = evaluated(config)
    except UserError:  # its data are not on this machine
        held_out = config.held_out
    return [
        *(("training", source) for source in config.data.train),
        *(("cold start", source) for source in cold_start),
        *(("evaluation", source) for source in held_out),
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


# --------------------------------------------------------------------------------------------------


Form = Literal["adapter", "merged"]


def export_run(
    run: str,
    form: Form | None = None,
    dtype: str | None = None,
    out: Path | None = None,
    push: str | None = None,
) -> Path:
    """Write the adapter or the merged weights of a run with a model card; return the folder.

    `run` is a run folder (its best checkpoint) or one of its checkpoints. Without `form`: the adapter
    where a LoRA run loaded its base model, else the merged weights. Without `dtype`: the run's own.
    Without `out`: `exports/<checkpoint>-<form>` in the run folder. `push` names a repository of the
    Hugging Face hub that gets the folder.

    Raises:
        UserError: no such run, a damaged checkpoint, a form that the run does not have, a folder that
            is not empty, or a hub that refuses; one line.
    """
    folder, source = find_run(run)
    if folder is None or source is None:
        raise UserError(f"export: expected a run folder or a checkpoint of one, got {run!r}")
    checkpoint.require_whole(source, "export", f"the run folder {folder}")
    config = read_config(folder)
    model = config.model
    form = form or ("adapter" if model.lora and model.path else "merged")
    _require_form(form, model, source)
    if push:
        require_token(push)
    target = out or folder / "exports" / f"{source.name}-{form}"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"export: {target} is there already; delete it or name another with --out")
    working = target.with_name(f".{target.name}.part")
    with writing(target):
        shutil.rmtree(working, ignore_errors=True)
        try:
            working.mkdir(parents=True)
            if form == "adapter":
                assert model.path is not None
                base = public_name(model.path)
                write_adapter(source, working, dtype or model.dtype, base)
            else:
                write_merged(source, working, dtype or model.dtype)
            write_card(working, folder, source, form, push or target.name)
            if target.exists():
                target.rmdir()
            os.replace(working, target)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    if push:
        upload(target, push)
    return target


def _require_form(form: Form, model: ModelConfig, source: Path) -> None:
    if form == "merged" and model.quantization:
        raise UserError(
            f"export --merged: the adapter was trained on 4-bit weights (model.quantization: "
            f"{model.quantization}), and merging needs the base model in full: use --adapter, and "
            "PeftModel.merge_and_unload on a base model of your choice"
        )
    if form == "merged":
        return
    if model.lora is None:
        raise UserError(
            "export --adapter: this run trained the weights themselves (model.lora is not set); "
            "use --merged"
        )
    if model.path is None:
        raise UserError(
            "export --adapter: the base model was built for this run (model.build), so nobody has "
            "it; use --merged"
        )
    if not (source / adapter_folder.FOLDER).is_dir():
        raise UserError(
            f"export --adapter: {source} is of an older version and has no folder "
            f"{adapter_folder.FOLDER}/; use --merged"
        )
