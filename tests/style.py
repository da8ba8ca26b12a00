"""Style of code, configs and pages, in one pass over the trees: `make style`.

Prints `path:line: what is wrong` and exits with 1 if anything is. A rule in `CEILINGS` is one that the
tree does not keep yet: what breaks it is counted, and the ceiling of the count only goes down;
`python tests/style.py RULE` lists what it counts. Nothing here imports torch.
"""

from __future__ import annotations

import ast
import builtins
import functools
import graphlib
import re
import sys
import typing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs" / "generate")]

import notebook_pages  # noqa: E402
import recipe_heads  # noqa: E402
import table  # noqa: E402
import typer.main  # noqa: E402
from pydantic import BaseModel  # noqa: E402

import vlmrl  # noqa: E402
from vlmrl import config, plugins  # noqa: E402
from vlmrl.cli.app import app  # noqa: E402
from vlmrl.config import Config  # noqa: E402
from vlmrl.config import tree as configs  # noqa: E402
from vlmrl.runs import metrics as glossary  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CEILINGS = {"class names": 1, "vague names": 5, "__all__": 0, "fmt": 110}
"""Rule -> how often the tree may break it. Lower a ceiling when the count fell; never raise one."""
MAX_FUNCTION_LINES = 60
MAX_STEP_LINES = 25
LOOKED_AT_LINES = 700
"""A longer file is no mistake; a person looks whether it still has one idea."""
CODE = ("vlmrl", "rewards", "datasets", "benchmarks")
CONTENT = ("rewards", "datasets", "benchmarks", "configs")
VAGUE = {"found", "said", "told", "given", "one", "place"}
"""Names that say that something happened, not what the value is."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Finding:
    """One break of a rule."""

    path: str
    line: int
    text: str
    counted: str = ""
    """The rule of `CEILINGS` that it counts for; empty: it is an error."""
    warning: bool = False


@dataclass(frozen=True, eq=False)
class Module:
    """One file of the package or of its content folders, parsed once."""

    path: Path
    text: str
    tree: ast.Module
    nodes: dict[type[ast.AST], list[Any]]

    @property
    def name(self) -> str:
        """The dotted name under which it is imported, e.g. `vlmrl.rewards.box_iou`."""
        parts = self.path.with_suffix("").parts
        parts = parts if parts[0] == "vlmrl" else ("vlmrl", *parts)
        return ".".join(parts).removesuffix(".__init__")

    def of(self, *types: type[ast.AST]) -> Iterator[Any]:
        """Yield the nodes of these types."""
        for kind in types:
            yield from self.nodes.get(kind, ())

    def finding(self, node: ast.AST, text: str, counted: str = "") -> Finding:
        """Return a finding at a node."""
        return Finding(str(self.path), getattr(node, "lineno", 1), text, counted)


def parse(path: Path, text: str) -> Module:
    """Parse the text of a file; its path is relative to the repository."""
    tree = ast.parse(text)
    nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(tree):
        nodes[type(node)].append(node)
    return Module(path, text, tree, nodes)


@functools.cache
def modules() -> tuple[Module, ...]:
    """Return all files of the package and its content folders."""
    files = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(parse(f.relative_to(ROOT), f.read_text(encoding="utf-8")) for f in files)


def at_text(path: Path, text: str, message: str) -> Finding:
    """Return a finding at the first line of a file that holds the text, or at its first line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    line = next((n for n, line in enumerate(lines, start=1) if text in line), 1)
    return Finding(str(path.relative_to(ROOT)), line, message)


# ------------------------------------------------------------------------------------------- code


def lengths() -> Iterator[Finding]:
    """A function fits a screen, the step a glance; a long file is looked at by a person."""
    for module in modules():
        lines = module.text.count("\n")
        if lines > LOOKED_AT_LINES:
            yield Finding(str(module.path), 1, f"{lines} lines: one idea still?", warning=True)
        for node in module.of(ast.FunctionDef, ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                limit = f"at most {MAX_FUNCTION_LINES}"
                yield module.finding(node, f"{node.name} has {length} lines, {limit}")


def the_step() -> Iterator[Finding]:
    """`Trainer.step` fits a glance."""
    steps = [
        (module, node)
        for module in modules()
        for trainer in module.of(ast.ClassDef)
        if trainer.name == "Trainer" and "step" in module.text
        for node in trainer.body
        if isinstance(node, ast.FunctionDef) and node.name == "step"
    ]
    if len(steps) != 1:
        yield Finding("vlmrl", 1, f"expected one Trainer.step, got {len(steps)}")
    for module, node in steps:
        length = (node.end_lineno or 0) - node.lineno + 1
        if length > MAX_STEP_LINES:
            yield module.finding(node, f"Trainer.step has {length} lines, at most {MAX_STEP_LINES}")


def docstrings() -> Iterator[Finding]:
    """A module says in one sentence what it is for. Classes and functions are ruff's."""
    for module in modules():
        if module.text.strip() and not ast.get_docstring(module.tree):
            yield module.finding(module.tree, "the module has no docstring")


def exports() -> Iterator[Finding]:
    """A leading underscore is private and everything else public: `__all__` would be a second rule."""
    for module in modules():
        for node in module.of(ast.Name):
            if node.id == "__all__" and isinstance(node.ctx, ast.Store):
                yield module.finding(node, "no __all__: a leading underscore is private", "__all__")


def formatting() -> Iterator[Finding]:
    """What the formatter is told to leave alone is code that was squeezed."""
    mark = re.compile("# fmt: " + "(skip|off)")
    for folder in (*CODE, "tests", "performance", "docs/generate"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
                if mark.search(line):
                    yield Finding(str(path.relative_to(ROOT)), number, "no `# fmt:`", "fmt")


def class_names() -> Iterator[Finding]:
    """A class name means one thing; a part is exempt, its class is named by its file."""
    rooms = tuple(f"{room}." for room in plugins.KINDS.values())
    first: dict[str, str] = {}
    for module in modules():
        is_part = module.name.startswith(rooms)
        for node in module.of(ast.ClassDef):
            if is_part and node.name == plugins.class_name(module.path.stem):
                continue
            if node.name.startswith("_"):
                continue
            if node.name in first:
                text = f"class {node.name} is also in {first[node.name]}"
                yield module.finding(node, text, "class names")
            first.setdefault(node.name, str(module.path))


def vague_names() -> Iterator[Finding]:
    """A value is called by a noun."""
    for module in modules():
        for node in module.of(ast.Name):
            if node.id in VAGUE and isinstance(node.ctx, ast.Store):
                yield module.finding(node, f"`{node.id}` does not say what it is", "vague names")


def private_names() -> Iterator[Finding]:
    """No module uses a private name of another."""
    paths = {module.path for module in modules()}
    for module in modules():
        ours = set()
        for node in module.of(ast.ImportFrom):
            if node.level:
                yield module.finding(node, "relative import: write the whole name")
            if (node.module or "").split(".")[0] != "vlmrl":
                continue
            for alias in node.names:
                if re.match("_[a-z]", alias.name):
                    yield module.finding(node, f"imports {alias.name} from {node.module}")
                if Path(*f"{node.module}.{alias.name}".split(".")).with_suffix(".py") in paths:
                    ours.add(alias.asname or alias.name)
        for node in module.of(ast.Attribute):
            ours_of = isinstance(node.value, ast.Name) and node.value.id in ours
            if ours_of and re.match("_[a-z]", node.attr):
                yield module.finding(node, f"uses {node.value.id}.{node.attr}")


@functools.cache
def imports() -> dict[str, dict[str, ast.AST]]:
    """Module -> what of ours it imports when it runs, and where; type-checking blocks are left out."""
    names = {module.name for module in modules()}
    arrows: dict[str, dict[str, ast.AST]] = {}
    for module in modules():
        unread = {
            id(inner)
            for node in module.of(ast.If)
            if ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        aims = arrows.setdefault(module.name, {})
        for node in module.of(ast.Import, ast.ImportFrom):
            aliases = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias}" for alias in aliases} & names
                aliases = [*whole] or [node.module or ""]
            if id(node) not in unread:
                aims |= {alias: node for alias in aliases if alias in names}
    return arrows


def circles() -> Iterator[Finding]:
    """Imports of files make no circle; import-linter holds the rooms (`make layers`)."""
    try:
        graphlib.TopologicalSorter(imports()).prepare()
    except graphlib.CycleError as error:
        yield Finding("vlmrl", 1, f"a circle of imports: {' <- '.join(error.args[1])}")


def parts_by_name() -> Iterator[Finding]:
    """Nothing imports a part by its name but `assemble`, the content folders and parts themselves."""
    rooms = tuple(plugins.KINDS.values())
    parts = {
        f"{room}.{name}" for kind, room in plugins.KINDS.items() for name in plugins.names(kind)
    }
    for module in modules():
        if not f"{module.name}.".startswith(tuple(f"{r}." for r in (*rooms, "vlmrl.assemble"))):
            for part in imports()[module.name].keys() & parts:
                node = imports()[module.name][part]
                yield module.finding(node, f"imports the part {part}: use plugins.load")


def lost_parts() -> Iterator[Finding]:
    """A file in a folder of parts has the class of its name, or another file imports it: none is lost."""
    imported = {aim for aims in imports().values() for aim in aims}
    for kind, room in plugins.KINDS.items():
        parts = set(plugins.names(kind))
        for module in modules():
            package, _, stem = module.name.rpartition(".")
            public = package == room and not stem.startswith("_")
            if public and stem not in parts and module.name not in imported:
                text = f"nothing imports it, and it has no class {plugins.class_name(stem)}"
                yield module.finding(module.tree, text)


# ---------------------------------------------------------------------------------- retired words

RATIO_CLIPPING = {"grad", "high", "low", "norm", "dual", "ratio", "range", "max", "min", "metric"}
"""What stands next to `clip` where it is PPO's bound of a ratio, or of a gradient's norm."""
SUBJECT = {  # what a judge is given
    "rubric": {
        "judge.py",
        "row_forms.py",
        "samples.py",
        "score_rows.py",
        "table.py",
        "typed_rows.py",
    }
}
"""Retired word -> files whose subject it is."""


@functools.cache
def retired() -> dict[str, str]:
    """The table "Retired words" of CONTRIBUTING.md: word -> what to say."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Retired words")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {word: use.strip() for word, use in rows if word != "retired"}


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, in the singular."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return [part.lower().removesuffix("s") for part in parts]


def retired_words() -> Iterator[Finding]:
    """No public name and no key of the config uses a retired word."""
    if len(retired()) < 4:
        yield Finding("CONTRIBUTING.md", 1, "the table of retired words is gone")
    for module in modules():
        for node, name in [(module.tree, module.path.stem), *public_names(module)]:
            if name.startswith("_"):
                continue
            for word in words(name):
                if word in retired() and module.path.name not in SUBJECT.get(word, ()):
                    yield module.finding(node, f"{name}: say {retired()[word]}, not {word}")
            if "clip" in words(name) and not {*words(name)} & RATIO_CLIPPING:
                yield module.finding(node, f"{name}: a video is never a clip")
    for key in sorted(config_keys()):
        if {*words(key)} & retired().keys():
            yield Finding("vlmrl/config", 1, f"key {key}: a retired word")


def public_names(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Functions, classes, their parameters and fields, and constants of a module."""
    for node in module.of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        yield node, node.name
    for node in module.of(ast.FunctionDef, ast.AsyncFunctionDef):
        yield from ((a, a.arg) for a in [*node.args.args, *node.args.kwonlyargs])
    for node in module.of(ast.ClassDef, ast.Module):
        for child in node.body:
            targets = child.targets if isinstance(child, ast.Assign) else []
            targets = [child.target] if isinstance(child, ast.AnnAssign) else targets
            yield from ((t, t.id) for t in targets if isinstance(t, ast.Name))


# -------------------------------------------------------------------------- names in back ticks

VALUES = {*dir(builtins), *sys.stdlib_module_names}
"""Names that need no definition of ours."""
LIBRARIES = {"bitsandbytes", "qwen_vl_utils", "ray", "torch", "transformers", "vllm"}
"""Roots of dotted names that are not ours."""
ELSEWHERE = set(
    "COCOeval GRPOTrainer custom_reward_function fetch_video get_base_model multinomial reward_funcs "
    "reward_type rope_deltas save_to_disk torchrun major.minor language_model.model.model my.py "
    "my_reward.py file.py _x.py metrics.py cocoeval.py refcoco.py screenspot.py vqa_eval.py utils.py "
    "utils_rec.py".split()
)
"""Names and files of other projects, and of the user."""
DATA = re.compile(r"\.(csv|tsv|json|jsonl|txt|ini|mp4|wav|flac|npz|pt|parquet|safetensors|html)\b")


def quoted_names() -> Iterator[Finding]:
    """Every name that a docstring puts in back ticks exists."""
    for module in modules():
        for node in module.of(ast.Expr):
            if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
                continue
            for text in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", node.value.value):
                if wrong := quoted_problem(text, module):
                    yield module.finding(node, f"`{text}`: {wrong}")


def quoted_problem(text: str, module: Module) -> str | None:
    """Why this text in back ticks names nothing; None: it does, or it is no name."""
    if command := re.match(r"vlmrl( [a-z][a-z-]*)( [a-z]+)?", text):
        first, both = command[1].strip(), command[0].removeprefix("vlmrl ")
        return None if {first, both} & commands() else f"there is no command `{both}`"
    if re.fullmatch(r"[\w./]+\.(py|md|yaml)", text):
        known = Path(text).name in file_names() | ELSEWHERE
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
    if not path or is_object(path[-1], module):
        return None
    if path[0] in Config.model_fields and path[0] not in members():
        return f"the config has no key `{text}`"
    return None if has_member(path[-1], last) else f"`{path[-1]}` has no `{last}`"


@functools.cache
def file_names() -> set[str]:
    """Names of the files of the repository that a docstring may name."""
    folders = [folder for folder in ROOT.iterdir() if folder.is_dir() and folder.name[0] != "."]
    folders = [folder for folder in folders if folder.name not in ("build", "runs", "dist")]
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in folder.rglob("*.*"))]
    return {file.name for file in files}


@functools.cache
def vocabulary() -> set[str]:
    """Every identifier in the code, every word of its strings that are no docstrings, every key."""
    known = {*config_keys(), *VALUES, "vlmrl"}
    for module in modules():
        known.update(module.path.with_suffix("").parts)
        known.update(node.name for node in module.of(*typing.get_args(Definition)))
        known.update(node.id for node in module.of(ast.Name))
        known.update(node.attr for node in module.of(ast.Attribute))
        known.update(node.arg for node in module.of(ast.arg, ast.keyword) if node.arg)
        for node in module.of(ast.ImportFrom, ast.Import):
            names = [getattr(node, "module", "") or "", *(a.name for a in node.names)]
            known.update(part for name in names for part in name.split("."))
        documentation = {id(node.value) for node in module.of(ast.Expr)}
        for node in module.of(ast.Constant):
            if id(node) not in documentation:
                known.update(re.findall(r"\w+", str(node.value)))
    for file in [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("vlmrl/**/*.[hcj][tsS]*")]:
        known.update(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    return known


@functools.cache
def members() -> dict[str, list[set[str]]]:
    """Last name of a module, or name of a class -> what each of that name defines."""
    owners: dict[str, list[set[str]]] = {}
    for module in modules():
        path = module.path
        inside = path.parent.name if path.stem == "__init__" else path.stem
        owners.setdefault(inside, []).append(defined(module.tree))
        for node in module.of(ast.ClassDef):
            bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
            owners.setdefault(node.name, []).append(defined(node) | {f"<{b}>" for b in bases})
    for module in modules():
        for package in module.path.parents:
            inside = module.path.relative_to(package).parts[0].removesuffix(".py")
            owners.setdefault(package.name, [set()])[0].add(inside)
    return owners


def defined(scope: ast.Module | ast.ClassDef) -> set[str]:
    """What a module or class defines or assigns, at any depth."""
    names = set()
    for node in ast.walk(scope):
        if isinstance(node, Definition):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def is_object(name: str, module: Module) -> bool:
    """Whether a file uses the name for a value of its own."""
    return (
        any(node.id == name and isinstance(node.ctx, ast.Store) for node in module.of(ast.Name))
        or any(node.attr == name for node in module.of(ast.Attribute))
        or any(node.value == name for node in module.of(ast.Constant))
        or any(node.arg == name for node in module.of(ast.arg))
    )


def has_member(owner: str, name: str) -> bool:
    """Whether a module or class of ours has a member; what is neither is taken as an object."""
    owned = members().get(owner)
    if owned is None:
        return True
    bases = {b[1:-1] for names in owned for b in names if b.startswith("<")}
    return any(name in names for names in owned) or any(
        has_member(base, name) for base in bases & members().keys()
    )


@functools.cache
def config_keys() -> set[str]:
    """Dotted keys of the config, sections included, e.g. `data.video` and `data.video.fps`."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
        for name, field in model.model_fields.items():
            yield prefix + name
            for inner in models_in(field.annotation):
                many = "[" in str(field.annotation) and "|" not in str(field.annotation)
                yield from walk(inner, f"{prefix}{name}." + "*." * many)

    return {*walk(Config, "")}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections of the config in the type of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in models_in(part)]


@functools.cache
def commands() -> set[str]:
    """The commands of `vlmrl`, subcommands as `data check`."""
    group: Any = typer.main.get_command(app)
    names = {*group.commands}
    for name, command in group.commands.items():
        names |= {f"{name} {inner}" for inner in getattr(command, "commands", {})}
    return names


# ----------------------------------------------------------------------------------------- metrics

METRIC_ROOMS = (
    "training forward policy algorithms monitoring samplers strategies named_models".split()
)
"""Folders whose code writes numbers of a step."""


def metric_names() -> Iterator[Finding]:
    """Every name of a metric in the code is in the glossary, and the glossary has no others."""
    groups = {name.partition("/")[0] for name in glossary.STEP if "/" in name}
    shape = re.compile(rf"({'|'.join(groups)})/[\w<>]+(/[\w<>]+)*")
    known = {re.sub(r"<\w+>", "<x>", pattern) for pattern in glossary.STEP | glossary.SFT}
    made = set()
    for module in modules():
        if not {*METRIC_ROOMS} & {*module.path.parts}:
            continue
        for node, name in written_texts(module):
            if not shape.fullmatch(name):
                continue
            whole = re.escape(name).replace("<x>", r"[\w<>/]+")
            made.add(whole)
            is_known = any(re.fullmatch(whole, pattern) for pattern in known)
            if not is_known and not glossary.describe(name):
                yield module.finding(node, f"metric {name} is not in the glossary")
    file = Path(str(glossary.__file__))
    for name in (name for name in glossary.STEP if "/" in name):
        if not any(re.fullmatch(pattern, name) for pattern in made):
            yield at_text(file, f'"{name}"', f"metric {name} is nowhere in the code")


def written_texts(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Strings and f-strings of a module; a value that is filled in reads `<x>`."""
    pieces = {id(piece) for node in module.of(ast.JoinedStr) for piece in node.values}
    for node in module.of(ast.Constant):
        if isinstance(node.value, str) and id(node) not in pieces:
            yield node, node.value
    for node in module.of(ast.JoinedStr):
        parts = [str(p.value) if isinstance(p, ast.Constant) else "<x>" for p in node.values]
        yield node, "".join(parts)


# --------------------------------------------------------------------------------------- packaging


def packaging() -> Iterator[Finding]:
    """Content folders have no `__init__`, the wheel has every package, the version is stated alike."""
    for folder in CONTENT:
        for path in (ROOT / folder).rglob("__init__.py"):
            yield Finding(str(path.relative_to(ROOT)), 1, "a content folder has no __init__")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.parent for path in (ROOT / "vlmrl").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    packages |= {f"vlmrl.{folder}" for folder in CONTENT}
    tests = ("contracts", "helpers", "helpers.layout_forms", "helpers.layout_writers")
    packages |= {f"vlmrl.tests.{folder}" for folder in tests}  # for `vlmrl test-part`
    listed = set(project["tool"]["setuptools"]["packages"])
    for package in sorted(packages ^ listed):
        wrong = "is no package" if package in listed else "is not listed for the wheel"
        yield at_text(ROOT / "pyproject.toml", f'"{package}"', f"{package} {wrong}")
    version = project["project"]["version"]
    if version != vlmrl.__version__:
        wrong = f"version {version}, but vlmrl/__init__.py says {vlmrl.__version__}"
        yield at_text(ROOT / "pyproject.toml", "version =", wrong)
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        yield Finding("CHANGELOG.md", 1, f"no section of version {version}")


def rooms_table() -> Iterator[Finding]:
    """The table of rooms in CONTRIBUTING.md, from which the picture is drawn, has import-linter's layers."""
    file = ROOT / "CONTRIBUTING.md"
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", file.read_text("utf-8"), re.MULTILINE)
    table_rows = [sorted(re.findall(r"`(\w+)`", rooms)) for _, rooms in rows]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (rooms,) = (contract for contract in contracts if contract["id"] == "rooms")
    layers = [sorted(layer.split(" | ")) for layer in rooms["layers"]]
    layers = [layer for layer in layers if not {*layer} & {*CONTENT}]
    if table_rows != layers:
        differs = [
            row for row in (*table_rows, *layers) if row not in table_rows or row not in layers
        ]
        yield at_text(file, "| level |", f"not the layers of pyproject.toml: {differs}")


# ----------------------------------------------------------------------------------------- configs

BASES = {"recipes/r1v", "recipes/geometry3k"}
"""What other recipes extend; they have no paper of their own."""
UNWRITTEN = {"recipes/ke_omni_r"}
"""Systems that have a repository alone."""


def shipped_configs() -> Iterator[Finding]:
    """A shipped config says what it is, and no line of it repeats its base."""
    for name, file in configs.shipped().items():
        text = file.read_text(encoding="utf-8")
        if not text.startswith("# "):
            yield at_text(file, "", "a config begins with a comment that says what it is")
        values = yaml.safe_load(text)
        bases = values.pop("extends", [])
        first, *others = [bases] if isinstance(bases, str) else bases or [None]
        if first is not None:
            for key in repeated(values, configs.read(first, others), ""):
                yield at_text(file, key.rpartition(".")[2], f"{key}: its base says the same")
        if name.startswith("recipes/"):
            yield from recipe_head(name, file)


def repeated(values: Any, base: Any, where: str) -> list[str]:
    """The keys under which a config says what its base says."""
    if isinstance(values, dict) and isinstance(base, dict):
        shared = values.keys() & base.keys()
        return [r for key in shared for r in repeated(values[key], base[key], f"{where}.{key}")]
    return [where.removeprefix(".")] if values == base else []


def recipe_head(name: str, file: Path) -> Iterator[Finding]:
    """A recipe says whose it is, what it reads and how it differs."""
    try:
        head = recipe_heads.read_head(file)
    except ValueError as error:
        yield at_text(file, "", str(error))
        return
    if tuple(head.sections) != recipe_heads.SECTIONS:
        yield at_text(file, "", f"expected {recipe_heads.SECTIONS}, got {tuple(head.sections)}")
        return
    for title, text in head.sections.items():
        if not text.endswith(".") or len(text) <= 12:
            yield at_text(file, title, f"{title}: expected a sentence, got {text!r}")
    if bool(head.paper) == (name in BASES | UNWRITTEN):
        yield at_text(file, "", "a recipe names its paper on arXiv, a base has none")
    columns = r"column|those? of \w+|that of \w+|as published"
    if not re.search(columns, head.sections["Data"]):
        yield at_text(file, "Data", "Data: does not say which columns are read")


# ------------------------------------------------------------------------------------------- pages

PART_OPTIONS = {"algorithm": "algorithm", "engine": "engine", "rewards": "verifier"}
"""Key of the config whose `options` are those of a kind of part."""
FILE_SUFFIXES = {"json", "md", "html", "yaml", "svg", "py", "jsonl"}
MADE = re.compile(
    r"docs/(recipes/\w+\.md|notebooks/\w+\.md|reference/\w+/\w+\.md"
    r"|reference/(config|commands|metrics|output)\.md|reference/config\.schema\.json)"
)
"""Pages that are written when the site is built; mkdocs, which is strict, knows which there are."""


def pages() -> Iterator[Finding]:
    """Keys, overrides, configs and commands on a page or in a notebook exist."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [(page, page.read_text(encoding="utf-8")) for page in files]
    texts += [(file, notebook_pages.page(file)) for file in notebook_pages.files()]
    for page, text in texts:
        for command in shown_commands(text):
            if command not in commands():
                yield at_text(page, f"vlmrl {command}", f"there is no command {command}")
        if page.name == "log.md":
            continue  # it tells of keys that are gone
        for key in [*named_keys(text), *overrides(text)]:
            if not is_key(key.split(".")):
                yield at_text(page, key, f"the config has no key {key}")
        for block in blocks(text, "yaml"):
            for wrong in wrong_in_config(block):
                yield at_text(page, wrong.split()[0], wrong)


def blocks(text: str, language: str) -> list[str]:
    """The text of every fenced block of a language."""
    pattern = rf"^```{language}(?: title=\"[^\"]*\")?\n(.*?)^```$"
    return re.findall(pattern, text, re.MULTILINE | re.DOTALL)


def shown_commands(text: str) -> set[str]:
    """The first words of the commands of `vlmrl` on a page."""
    in_blocks = [
        name for b in blocks(text, "sh") for name in re.findall("^vlmrl ([a-z][a-z-]*)", b, re.M)
    ]
    return {*re.findall(r"`vlmrl ([a-z][a-z-]*)", text), *in_blocks}


def named_keys(text: str) -> list[str]:
    """Keys of the config that the text of a page names."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?:[:=][^`]*)?`", prose)
    named = [key for key in named if key.split(".")[0] in Config.model_fields]
    return [key for key in named if key.rpartition(".")[2] not in FILE_SUFFIXES]


def overrides(text: str) -> list[str]:
    """Keys that the commands of a page set."""
    shown = [
        key
        for block in blocks(text, "sh")
        for key in re.findall(r"(?<=[\s'])([a-z_]+(?:\.\w+)*)=", block)
    ]
    return [key for key in shown if key.split(".")[0] in Config.model_fields]


def wrong_in_config(block: str) -> Iterator[str]:
    """What is wrong with a config on a page."""
    values = yaml.safe_load(block)
    values.pop("extends", None)
    if "model" in values and "data" in values:
        config.parse(values)
    sections = Config.model_fields.keys()
    for path in keys_of({key: value for key, value in values.items() if key in sections}):
        if not is_key(path):
            yield f"{'.'.join(path)} is no key of the config"
    for key in values.keys() - {*sections, "card", "options", "template"}:
        yield f"{key} is no section of the config"


def keys_of(values: Any, above: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The paths of all keys of a config; an entry of a list is `0`."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield [*above, key]
            if key not in ("options", "weight"):
                yield from keys_of(value, (*above, key))
    elif isinstance(values, list):
        for entry in values:
            yield from keys_of(entry, (*above, "0"))


def is_key(path: list[str], section: Any = Config, kind: str = "") -> bool:
    """Whether a config has this key; `options` lead on to those of some part of the kind."""
    if not path:
        return True
    name, *rest = path
    field = section.model_fields.get(name)
    if field is None:
        return False
    kind = PART_OPTIONS.get(name, kind)
    if name == "options" and rest and kind:
        return rest[0] in part_fields(kind)
    inner, is_list = section_in(field.annotation)
    if is_list and rest:
        rest = rest[1:]  # an entry is named by its position or by its own name
    return is_key(rest, inner, kind) if inner else True


@functools.cache
def part_fields(kind: str) -> set[str]:
    """The options of all parts of a kind and of their bases, read without an import."""
    folders = [plugins.KINDS[kind], "vlmrl.scoring", "vlmrl.algorithms"]
    return {
        child.target.id
        for module in modules()
        if module.name.startswith(tuple(f"{folder}." for folder in folders))
        for node in module.of(ast.ClassDef)
        for child in node.body
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
    }


def section_in(annotation: Any) -> tuple[Any, bool]:
    """The section that a field holds, and whether in a list or a map."""
    if isinstance(annotation, type) and issubclass(annotation, config.Section):
        return annotation, False
    for inner in typing.get_args(annotation):
        section, _ = section_in(inner)
        if section:
            return section, typing.get_origin(annotation) in (list, dict)
    return None, False


def readme() -> Iterator[Finding]:
    """The file tree and the reading order of the README name what exists."""
    file = ROOT / "README.md"
    text = file.read_text(encoding="utf-8")
    tree = text.split("## The files")[1].split("```")[1]
    paths = re.findall(r"^([\w./]+) {2,}", tree, re.MULTILINE)
    order = re.split(r"^#+ .*read in this order.*$", text, flags=re.IGNORECASE | re.MULTILINE)
    if len(order) != 2:
        yield Finding("README.md", 1, "expected one heading 'Read in this order'")
        return
    ordered = re.findall(r"`([\w./-]+/[\w./-]*)`", order[1].split("\n#")[0])
    if len(ordered) < 5:
        yield at_text(file, "ead in this order", "expected five files or more to read")
    for path in sorted({*paths, *ordered}):
        if not (ROOT / path).exists():
            yield at_text(file, path.rstrip("/").rpartition("/")[2], f"there is no {path}")


def reading_table() -> Iterator[Finding]:
    """What CONTRIBUTING.md tells one to read exists: the file, and the functions in it."""
    file = ROOT / "CONTRIBUTING.md"
    section = file.read_text(encoding="utf-8").split("## What to read if you change X")[1]
    rows = re.findall(
        r"^\| [^|]+ \| `([^`|]+)` \| ([^|]*)\|$", section.split("\n## ")[0], re.MULTILINE
    )
    if len(rows) < 10:
        yield at_text(file, "## What to read", f"expected ten rows or more, got {len(rows)}")
    for path, functions in rows:
        if not (ROOT / path).exists():
            yield at_text(file, path, f"there is no {path}")
            continue
        for name in re.findall(r"`(\w+)`", functions):
            if not re.search(
                rf"^ *(def|class) {name}\b", (ROOT / path).read_text("utf-8"), re.MULTILINE
            ):
                yield at_text(file, path, f"{path} has no {name}")


def links() -> Iterator[Finding]:
    """No link between files of the repository is dead."""
    folders = ("docs", "performance", "benchmarks", "tests", ".github")
    files = [*ROOT.glob("*.md"), *(f for folder in folders for f in (ROOT / folder).rglob("*.md"))]
    for file in files:
        for target in re.findall(r"\]\(([^)\s:#]+)(?:#[^)]*)?\)", file.read_text("utf-8")):
            aim = (file.parent / target).resolve()
            inside = aim.relative_to(ROOT).as_posix() if aim.is_relative_to(ROOT) else ""
            if not aim.exists() and not MADE.fullmatch(inside):
                yield at_text(file, f"]({target}", f"there is no {target}")


def tests() -> Iterator[Finding]:
    """No test imports a test, each file says what it holds, and the table of them is current."""
    imported = re.compile(r"\s*(?:from|import) ((?:\w+\.)*(?:test_\w+|conftest)|tests\b[\w.]*)")
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if wrong := imported.match(line):
                text = f"imports {wrong[1]}: share it through tests/helpers/"
                yield Finding(str(path.relative_to(ROOT)), number, text)
    for _, path, text in table.rows():
        if not text:
            yield Finding(f"tests/{path}", 1, "no docstring")
    current = table.README.read_text(encoding="utf-8")
    if current != table.with_table(current):
        yield Finding("tests/README.md", 1, "the table is old: run `make tests-table`")


RULES: tuple[Callable[[], Iterable[Finding]], ...] = (
    *(lengths, the_step, docstrings, exports, formatting, class_names, vague_names),
    *(
        private_names,
        circles,
        parts_by_name,
        lost_parts,
        retired_words,
        quoted_names,
        metric_names,
        packaging,
    ),
    *(rooms_table, shipped_configs, pages, readme, reading_table, links, tests),
)


def main(listed: list[str]) -> int:
    """Print what is wrong and the counts; return the exit status."""
    findings = [finding for rule in RULES for finding in rule()]
    counts = Counter(finding.counted for finding in findings if finding.counted)
    wrong = [f for f in findings if not f.counted and not f.warning]
    for finding in findings:
        shown = finding.counted in listed if finding.counted else True
        if shown:
            mark = "warning: " if finding.warning else ""
            print(f"{finding.path}:{finding.line}: {mark}{finding.text}")
    above = [rule for rule, ceiling in CEILINGS.items() if counts[rule] > ceiling]
    summary = ", ".join(f"{rule} {counts[rule]} of {top}" for rule, top in CEILINGS.items())
    print(f"style: {len(wrong)} wrong; {summary}")
    for rule in above:
        print(f"more {rule} than its ceiling; `python tests/style.py {rule!r}` lists them")
    return 1 if wrong or above else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
