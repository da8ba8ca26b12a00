"""The notebooks of the documentation run from their first cell to the last, and are kept without outputs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("mkdocs")

import notebook_pages

from helpers.daily import marked

ROOT = Path(__file__).parents[2]
NAMES = [file.stem for file in notebook_pages.files()]
MAX_BYTES = 20_000
CELL_S = 900
"""Seconds that one cell may take on a machine that has other work."""


def read(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"docs/notebooks/{name}.ipynb").read_text("utf-8"))


def run(notebook: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run the cells in a kernel of their own; return those of code, with their outputs.

    Raises:
        CellExecutionError: a cell raised an error, or a command of it ended with another exit code than 0.
    """
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    settings = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    settings |= {name: str(folder / "home") for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    (folder / "work").mkdir()
    resources = {"metadata": {"path": str(folder / "work")}}
    cells = nbformat.reads(json.dumps(notebook), as_version=4)  # joins the lines of sources
    nbclient.NotebookClient(cells, timeout=CELL_S, resources=resources).execute()
    return [cell for cell in cells.cells if cell.cell_type == "code"]


def test_a_notebook_has_no_outputs_and_a_page_under_start() -> None:
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    (start,) = (entry["Start"] for entry in yaml.unsafe_load(site)["nav"] if "Start" in entry)
    (listed,) = (entry["Notebooks"] for entry in start if "Notebooks" in entry)
    assert sorted(listed) == [f"notebooks/{name}.md" for name in NAMES]
    for name, (path, page) in zip(NAMES, notebook_pages.pages(), strict=True):
        notebook = read(name)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert not any(cell["outputs"] or cell["execution_count"] for cell in code), name
        assert len(json.dumps(notebook)) < MAX_BYTES, name
        assert path in listed and f"]({name}.ipynb)" in page
        assert page.count("\n```python") + page.count("\n```sh") == len(code)
        assert "\n%%" not in page


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(NAMES, NAMES[:1]))
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = run(read(name), tmp_path, monkeypatch)
    assert all(cell.execution_count for cell in cells)
    images = [out for cell in cells for out in cell.outputs if "image/png" in out.get("data", {})]
    assert images or name == "own_verifier"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "now"),
    [
        ("from vlmrl import load", "from vlmrl import lode"),
        ("rollout.group_size=", "rollout.groupsize="),
        ("%%bash -e\n", "%%bash -e\nvlmrl trian quickstart\n"),
    ],
)
def test_a_notebook_with_a_name_that_is_gone_fails(
    gone: str, now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = ["".join(cell["source"]) for name in NAMES for cell in read(name)["cells"]]
    source = next(text for text in sources if gone in text)
    notebook = read(NAMES[0])
    cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": []}
    notebook["cells"] = [{**cell, "source": source.replace(gone, now)}]
    with pytest.raises(Exception, match=r"lode|groupsize|returned non-zero exit status"):
        run(notebook, tmp_path, monkeypatch)
