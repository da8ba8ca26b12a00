"""The house keeps its shape: import directions, packaging, ceilings, shipped configs."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import table
import yaml

from vlmrl import config, plugins
from vlmrl.commands.validate import validate
from vlmrl.config import tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CONTENT = ("rewards", "datasets", "benchmarks", "configs")
HEAVY = {"torch", "transformers", "trl", "peft", "vllm"}

MAX_FUNCTION_LINES = 60
MAX_STEP_LINES = 25


def module_name(path: Path) -> str:
    """The name under which a file is imported, e.g. `vlmrl.rewards.box_iou`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "vlmrl" else ("vlmrl", *parts)
    return ".".join(parts).removesuffix(".__init__")


FILES = {
    module_name(path): path
    for room in ("vlmrl", "rewards", "datasets", "benchmarks")
    for path in sorted((ROOT / room).rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imports(name: str) -> set[str]:
    """What a file imports when it runs, functions included; type-checking blocks are left out."""
    found = set()
    for node in _running(TREES[name]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            module = node.module or ""
            whole = {f"{module}.{alias.name}" for alias in node.names} & set(FILES)
            found.update(whole or {module})
    return found


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _running(child)


def within(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def run_python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# ---------------------------------------------------------------------------- import directions


def test_imports_point_down() -> None:
    graph = {name: {other for other in imports(name) if other in FILES} for name in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def levels() -> dict[str, int]:
    """Room -> level, from the table in CONTRIBUTING.md."""
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    return {room: int(level) for level, rooms in rows for room in re.findall(r"`(\w+)`", rooms)}


def room_of(name: str) -> str:
    """The folder under vlmrl/ that holds a file, or the file itself where it lies at the top."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "vlmrl"


def test_every_room_has_a_level() -> None:
    assert {room_of(name) for name in FILES} - {"vlmrl", *CONTENT} == set(levels())


def test_arrows_between_rooms_point_down() -> None:
    at = {"rewards": "scoring", "datasets": "data", "benchmarks": "benchmarking"}
    level = {**levels(), "vlmrl": 0, **{folder: levels()[room] for folder, room in at.items()}}
    arrows = {(room_of(name), room_of(i)) for name in FILES for i in imports(name) if i in FILES}
    up = {(a, b) for a, b in arrows if a != b and level[a] <= level[b]}
    content = {*at.items(), ("scoring", "rewards")}
    assert up - content == set()


SHARED = {
    "truth": {"base", "checks", "drawn", "json_form", "prompting"},
    "layout": {
        "base",
        "conversations",
        "media_columns",
        "annotated_objects",
        "coco_annotations",
        "recognition",
        "replies",
        "xml_files",
    },
    "family": {"base", "loading"},
    "engine": {
        "base",
        "completions",
        "kv_cache",
        "prompt_rows",
        "routed_experts",
        "serve",
        "served_weights",
    },
    "algorithm": {"base", "recipes"},
    "tracker": {"base"},
    "sampler": {"base", "candidates"},
    "strategy": {"base"},
    "tool": {"base", "arguments", "views", "vision_endpoint", "sandboxed_run"},
    "environment": {"base", "board"},
}
"""Files of plugin rooms that are no plugin; any other file whose class is misnamed would be lost."""


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_every_file_of_a_plugin_room_has_the_class_of_its_name(kind: str) -> None:
    room = plugins.KINDS[kind]
    files = {name.removeprefix(f"{room}.") for name in FILES if within(name, room)} - {room}
    files = {name for name in files if "." not in name and not name.startswith("_")}
    for name in sorted(files - SHARED.get(kind, set())):
        plugins.check(kind, name)
    assert SHARED.get(kind, set()).isdisjoint(plugins.names(kind))


def test_nothing_imports_a_plugin_by_name_but_assemble() -> None:
    shipped = {f"{room}.{n}" for kind, room in plugins.KINDS.items() for n in plugins.names(kind)}
    core = [name for name in FILES if not within(name, *plugins.KINDS.values(), "vlmrl.assemble")]
    assert {(name, p) for name in core for p in imports(name) & shipped} == set()


def test_only_commands_import_assemble() -> None:
    commands = {
        "vlmrl.cli.train",
        "vlmrl.cli.check",
        "vlmrl.cluster.started_pools",
        "vlmrl.commands.benchmarks.session",
        "vlmrl.commands.curricula.demonstrate",
        "vlmrl.commands.curricula.rate",
        "vlmrl.commands.evaluate",
        "vlmrl.commands.proof.rerun",
        "vlmrl.commands.serving.asked_model",
        "vlmrl.doctor",
        "vlmrl.doctor.bench",
    }
    rest = [name for name in FILES if not within(name, "vlmrl.assemble")]
    found = {name for name in rest if any(within(i, "vlmrl.assemble") for i in imports(name))}
    assert found <= commands


def test_verifiers_and_cards_know_nothing_of_models_and_training() -> None:
    above = [
        "vlmrl.training.trainer",
        "vlmrl.policy.policy",
        "vlmrl.models",
        "vlmrl.engines",
        "vlmrl.algorithms",
    ]
    for name in FILES:
        if within(name, "vlmrl.rewards", "vlmrl.datasets"):
            wrong = {i for i in imports(name) if within(i, *above, *HEAVY, "vlmrl.scoring.scorer")}
            assert not wrong, f"{name} imports {wrong}"


def test_verifiers_and_cards_import_without_torch() -> None:
    content = [name for name in FILES if within(name, "vlmrl.rewards", "vlmrl.datasets")]
    program = f"import sys, {', '.join(content)}; print(sorted({HEAVY} & set(sys.modules)))"
    assert run_python("-c", program).strip() == "[]"


def test_one_module_imports_hugging_face_datasets() -> None:
    importers = {n for n in FILES if any(within(i, "datasets") for i in imports(n))}
    assert importers <= {"vlmrl.data.files.hub"}


def test_no_test_imports_a_test() -> None:
    for path in sorted(ROOT.glob("tests/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            wrong = [m for m in modules if re.search(r"(^|\.)(test_|conftest)|^tests\b", m)]
            assert not wrong, f"{path.name} imports {wrong}: share it through tests/helpers/"


def test_the_table_of_the_tests_is_current() -> None:
    assert [path for _, path, text in table.rows() if not text] == [], "no docstring"
    readme = table.README.read_text(encoding="utf-8")
    assert readme == table.with_table(readme), "run `make tests-table`"


# ------------------------------------------------------------------------------------- packaging


@pytest.mark.parametrize("folder", CONTENT)
def test_content_folders_have_no_init(folder: str) -> None:
    assert not list((ROOT / folder).rglob("__init__.py"))


def test_hugging_face_datasets_wins_in_the_checkout() -> None:
    # As under `python -m`, the checkout stands first on the path.
    assert "site-packages" in run_python("-c", "import datasets; print(datasets.__file__)")


def test_every_package_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent for path in (ROOT / "vlmrl").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(listed) == packages | {f"vlmrl.{folder}" for folder in CONTENT}


def test_the_version_is_stated_once_alike() -> None:
    import vlmrl

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == vlmrl.__version__
    assert f"## {vlmrl.__version__}" in (ROOT / "CHANGELOG.md").read_text()


# -------------------------------------------------------------------------------------- ceilings


@pytest.mark.parametrize("name", FILES)
def test_functions_stay_short(name: str) -> None:
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert _lines(node) <= MAX_FUNCTION_LINES, node.name


def test_the_step_fits_a_glance() -> None:
    steps = [
        node
        for cls in TREES["vlmrl.training.trainer"].body
        if isinstance(cls, ast.ClassDef) and cls.name == "Trainer"
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name == "step"
    ]
    assert len(steps) == 1 and _lines(steps[0]) <= MAX_STEP_LINES


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_every_public_part_says_what_it_is() -> None:
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            plugin = plugins.load(kind, name)
            assert "__doc__" in vars(plugin) and plugin.__doc__.strip(), f"{kind} {name}"
            assert not plugin.__doc__.startswith(f"{plugin.__name__}("), f"{kind} {name}"


def test_the_reading_order_of_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.split(r"^#+ .*read in this order.*$", text, flags=re.IGNORECASE | re.MULTILINE)
    assert len(section) == 2, "README.md needs one heading 'Read in this order'"
    paths = re.findall(r"`([\w./-]+/[\w./-]*)`", section[1].split("\n#")[0])
    assert len(paths) >= 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vlmrl.assemble.lifecycle", "vlmrl.policy.policy", "vlmrl.engines.hf"]
)
def test_a_module_imports_first_and_alone(name: str) -> None:
    # Beside a CPU torch, transformers imports only after our torchvision shim, whoever comes first.
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True, cwd=ROOT)


# --------------------------------------------------------------------------------- shipped configs


@pytest.mark.parametrize("name", [name for name in tree.shipped() if "/" not in name])
def test_every_shipped_config_loads_and_its_parts_build(name: str) -> None:
    settings = config.load(name)
    validate(settings)
    plugins.build("engine", settings.engine.name, settings.engine.options)
    begun = settings.at(0.0).algorithm  # an option may follow a schedule
    plugins.build("algorithm", begun.name, begun.options)
    if settings.model.build:
        plugins.build("family", settings.model.build.family)


@pytest.mark.parametrize("name", tree.shipped())
def test_no_line_of_a_config_repeats_its_base(name: str) -> None:
    values = yaml.safe_load(tree.shipped()[name].read_text())
    base = values.pop("extends", None)
    if base is not None:
        assert _repeated(values, tree.read(base), name) == []


def _repeated(values: Any, base: Any, where: str) -> list[str]:
    if isinstance(values, dict) and isinstance(base, dict):
        shared = values.keys() & base.keys()
        return [r for key in shared for r in _repeated(values[key], base[key], f"{where}.{key}")]
    return [where] if values == base else []


@pytest.mark.parametrize("name", tree.shipped())
def test_every_shipped_config_says_what_it_is(name: str) -> None:
    assert tree.shipped()[name].read_text().startswith("# ")
