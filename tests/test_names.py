"""Names say what they mean: no retired word, no private import, and every name in a docstring exists."""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

from helpers import public
from vlmrl import plugins
from vlmrl.cli.app import app
from vlmrl.config import Config

ROOT = Path(__file__).parents[1]
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
    for room in ("vlmrl", "rewards", "datasets", "benchmarks")
    for path in sorted((ROOT / room).rglob("*.py"))
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

each_file = pytest.mark.parametrize("file", TREES, ids=str)


# ---------------------------------------------------------------------------------- retired words

RATIO_CLIPPING = ("grad", "high", "low", "norm", "dual", "ratio", "range", "max", "min", "metric")
"""What stands next to `clip` where it is PPO's bound of a ratio, or of a gradient's norm."""
ALLOWED = {"rubric": {"rewards/judge.py"}}  # what a judge is given
"""Retired word -> files whose subject it is."""


def retired_words() -> dict[str, str]:
    """The table "Retired words" of CONTRIBUTING.md: word -> what to say."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Retired words")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {word: use for word, use in rows if word != "retired"}


def public_names(tree: ast.Module) -> Iterator[str]:
    """Functions, classes, their parameters and fields, and constants of a module."""
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (a.arg for a in [*node.args.args, *node.args.kwonlyargs])
        if isinstance(node, ast.ClassDef | ast.Module):
            for child in node.body:
                targets = child.targets if isinstance(child, ast.Assign) else []
                targets = [child.target] if isinstance(child, ast.AnnAssign) else targets
                yield from (t.id for t in targets if isinstance(t, ast.Name))


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, in the singular."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return [part.lower().removesuffix("s") for part in parts]


@each_file
def test_no_public_name_uses_a_retired_word(file: Path) -> None:
    retired = retired_words()
    assert len(retired) >= 4
    for name in {*public_names(TREES[file]), file.stem}:
        if name.startswith("_"):
            continue
        for word in words(name):
            if word in retired and str(file) not in ALLOWED.get(word, ()):
                raise AssertionError(f"{name}: say {retired[word].strip()}, not {word}")
        if "clip" in words(name):
            assert {*words(name)} & {*RATIO_CLIPPING}, f"{name}: a video is never a clip"


def test_no_config_key_uses_a_retired_word() -> None:
    for key in config_keys():
        assert not {*words(key)} & retired_words().keys(), key


# ------------------------------------------------------------------------------- private, docstrings


@each_file
def test_no_module_uses_a_private_name_of_another(file: Path) -> None:
    ours = set()
    for node in ast.walk(TREES[file]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vlmrl"):
            ours.update(a.asname or a.name for a in node.names if _is_module(node.module, a.name))
            private = [a.name for a in node.names if re.match("_[a-z]", a.name)]
            assert not private, f"imports {private} from {node.module}"
    for node in ast.walk(TREES[file]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            outside = node.value.id in ours and re.match("_[a-z]", node.attr)
            assert not outside, f"uses {node.value.id}.{node.attr}"


def test_every_module_states_what_other_rooms_use() -> None:
    used = public.used_elsewhere()
    for module, tree in public.modules().items():
        if (ROOT / Path(*module.split("."))).is_dir():
            continue  # a package: what it imports for others is said there
        stated = public.stated(tree)
        assert {*(stated or ())} <= public.defined(tree), module
        missing = used.get(module, set()) & public.defined(tree) - {*(stated or ())}
        assert not missing, f"{module}: put {sorted(missing)} into __all__"


def _is_module(package: str | None, name: str) -> bool:
    return Path(*f"{package}.{name}".split(".")).with_suffix(".py") in TREES


# -------------------------------------------------------------------------- names in back ticks

VALUES = {*dir(builtins), *sys.stdlib_module_names}
"""Names that need no definition of ours."""
LIBRARIES = {"bitsandbytes", "qwen_vl_utils", "ray", "torch", "transformers", "vllm"}
"""Roots of dotted names that are not ours."""
ELSEWHERE = {
    "COCOeval",
    "GRPOTrainer",
    "custom_reward_function",
    "fetch_video",
    "get_base_model",
    "multinomial",
}
ELSEWHERE |= {
    "reward_funcs",
    "reward_type",
    "rope_deltas",
    "save_to_disk",
    "torchrun",
    "major.minor",
}
ELSEWHERE |= {
    "language_model.model.model",
    "my.py",
    "my_reward.py",
    "file.py",
    "_x.py",
    "metrics.py",
}
ELSEWHERE |= {
    "cocoeval.py",
    "refcoco.py",
    "screenspot.py",
    "vqa_eval.py",
    "utils.py",
    "utils_rec.py",
}
"""Names and files of other projects, and of the user."""
DATA = re.compile(r"\.(csv|tsv|json|jsonl|txt|ini|mp4|wav|flac|npz|pt|parquet|safetensors|html)\b")


def quoted(file: Path) -> set[str]:
    """What the docstrings of a file put in back ticks."""
    nodes = (n.value for n in ast.walk(TREES[file]) if isinstance(n, ast.Expr))
    texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {found for text in texts for found in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)}


@functools.cache
def vocabulary() -> set[str]:
    """Every identifier in the code, every word of its strings that are no docstrings, every key."""
    found = {*config_keys(), *VALUES, "vlmrl"}
    for path, tree in TREES.items():
        found.update(path.with_suffix("").parts)
        documentation = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, Definition):
                found.add(node.name)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.arg | ast.keyword) and node.arg:
                found.add(node.arg)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names = [
                    *(getattr(node, "module", "") or "").split("."),
                    *(a.name for a in node.names),
                ]
                found.update(part for name in names for part in name.split("."))
            elif isinstance(node, ast.Constant) and id(node) not in documentation:
                found.update(re.findall(r"\w+", str(node.value)))
    for file in [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("vlmrl/report/*.*")]:
        found.update(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    return found


@functools.cache
def members() -> dict[str, list[set[str]]]:
    """Last name of a module, or name of a class -> what each of that name defines."""
    found: dict[str, list[set[str]]] = {}
    for path, tree in TREES.items():
        inside = [path.parent.name] if path.stem == "__init__" else [path.stem]
        found.setdefault(inside[0], []).append(_defined(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
                found.setdefault(node.name, []).append(_defined(node) | {f"<{b}>" for b in bases})
    for path in TREES:
        for package in path.parents:
            inside = path.relative_to(package).parts[0].removesuffix(".py")
            found.setdefault(package.name, [set()])[0].add(inside)
    return found


def _defined(scope: ast.Module | ast.ClassDef) -> set[str]:
    found = set()
    for node in ast.walk(scope):
        if isinstance(node, Definition):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
    return found


@functools.cache
def config_keys() -> set[str]:
    """Dotted keys of the config, sections included, e.g. `data.video` and `data.video.fps`."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
        for name, field in model.model_fields.items():
            yield prefix + name
            for inner in _models(field.annotation):
                many = "[" in str(field.annotation) and "|" not in str(field.annotation)
                yield from walk(inner, f"{prefix}{name}." + "*." * many)

    return {*walk(Config, "")}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models(part)]


def commands() -> set[str]:
    """The commands of `vlmrl`, subcommands as `data check`."""
    group: Any = typer.main.get_command(app)
    found = {*group.commands}
    for name, command in group.commands.items():
        found |= {f"{name} {inner}" for inner in getattr(command, "commands", {})}
    return found


def problem(text: str, file: Path) -> str | None:
    """Why this text in back ticks names nothing; None: it does, or it is no name."""
    if command := re.match(r"vlmrl( [a-z][a-z-]*)( [a-z]+)?", text):
        first, both = command[1].strip(), command[0].removeprefix("vlmrl ")
        return None if {first, both} & commands() else f"there is no command `{both}`"
    if re.fullmatch(r"[\w./]+\.(py|md|yaml)", text):
        known = any(ROOT.rglob(Path(text).name)) or Path(text).name in ELSEWHERE
        return None if known else "there is no such file"
    text = re.sub(r"\(.*\)( -> .*)?$|: .*$|=.*$", "", text)
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text) or DATA.search(text):
        return None
    *path, last = text.split(".")
    every_part = re.sub(r"^(rewards|checks)\.\w+\.", r"\1.*.", text)
    if {text, every_part} & config_keys() or {text, last} & ELSEWHERE or text in VALUES:
        return None
    if path and path[0] in LIBRARIES | ELSEWHERE:
        return None
    for name in (*path, last):
        if name not in vocabulary() | ELSEWHERE:
            return f"`{name}` is nowhere in the code"
    if not path or _is_object(path[-1], file):
        return None
    if path[0] in Config.model_fields and path[0] not in members():
        return f"the config has no key `{text}`"
    return None if _has(path[-1], last) else f"`{path[-1]}` has no `{last}`"


def _is_object(name: str, file: Path) -> bool:
    """Whether a file uses the name for a value of its own."""
    for node in ast.walk(TREES[file]):
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        field = isinstance(node, ast.Attribute) and node.attr == name
        key = isinstance(node, ast.Constant) and node.value == name
        if stored or field or key or (isinstance(node, ast.arg) and node.arg == name):
            return True
    return False


def _has(owner: str, name: str) -> bool:
    """Whether a module or class of ours has a member; what is neither is taken as an object."""
    places = members().get(owner)
    if places is None:
        return True
    bases = {b[1:-1] for names in places for b in names if b.startswith("<")}
    return any(name in names for names in places) or any(
        _has(b, name) for b in bases & members().keys()
    )


@each_file
def test_every_name_in_the_docstrings_exists(file: Path) -> None:
    found = {text: problem(text, file) for text in quoted(file)}
    assert {text: why for text, why in found.items() if why} == {}


def test_every_kind_of_part_is_a_room() -> None:
    assert {room.rpartition(".")[2] for room in plugins.KINDS.values()} <= members().keys()
