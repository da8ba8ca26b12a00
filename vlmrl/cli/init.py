"""`vlmrl init`: a first config, from questions in a terminal or from flags."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.arguments import Options
from vlmrl.errors import UserError

if TYPE_CHECKING:
    from vlmrl.features.check.data_look import DataLook
    from vlmrl.features.check.path_check import CheckedPath

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
MEMORY = 24.0
"""GB that are proposed where no card is here to ask."""
SPACES = ("pixel", "norm1000", "norm1")


def init(
    data: Annotated[
        str | None, typer.Argument(help="A data file or folder, as for `vlmrl data check`.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="What is asked of the model: boxes, count, answer or choice."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A folder or a hub name, or `small`: one built from nothing.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Cards; 0: a CPU.")] = None,
    memory: Annotated[float | None, typer.Option(min=1, help="GB of each card.")] = None,
    out: Annotated[Path, typer.Option(help="File to write; one that is there is kept.")] = Path(
        "mine.yaml"
    ),
    yes: Annotated[bool, typer.Option("--yes", help="Take what is proposed.")] = False,
    option: Options = None,
) -> None:
    """Write a first config for data of yours: asks what it has to know, and says why it chose what.

    - `vlmrl init` asks everything
    - `vlmrl init photos --task boxes --model Qwen/Qwen2.5-VL-3B-Instruct --gpus 1 --memory 24`
    - `vlmrl init photos --gpus 0 --yes` takes a small model that runs on a CPU
    - `vlmrl init rows.jsonl -o columns='{image: file, question: text, answer: label}'`

    Checks the data first, as `vlmrl data check` does. Memory and times are planned, not measured.
    """
    if out.exists():
        raise UserError(f"{out} is there already: name another file by --out")
    ask = Questions(yes)
    data = data or ask.text("Data (a file or folder)", None, "DATA")
    checked, look = _look_at(data, option or [], ask)
    task = task or ask.choice("Task", [*look.tasks], "--task")
    if task not in look.tasks:
        stated = ", ".join(look.tasks) or "none"
        raise UserError(
            f"--task {task}: the rows state no truth for it; tasks that they do: {stated}"
        )
    if gpus is None:
        gpus = int(ask.number("Cards (0: a CPU)", _cards()[0], "--gpus"))
    if model is None:
        model = ask.text("Model", MODEL if gpus else "small", "--model")
    if gpus and model != "small" and memory is None:
        memory = ask.number("GB of each card", _cards()[1], "--memory")
    _write(out, data, checked, look, task, model, gpus, memory or 0.0)


@dataclass(frozen=True)
class Questions:
    """Asks on the terminal; with `yes` what is proposed is the answer, and said."""

    yes: bool

    def text(self, question: str, proposed: str | None, flag: str) -> str:
        """Return the answer to a question.

        Raises:
            UserError: there is nobody to ask; the message names the flag.
        """
        if self.yes and proposed is not None:
            print(f"{question}: {proposed}")
            return proposed
        try:
            if self.yes:
                raise typer.Abort
            return str(typer.prompt(question, default=proposed))
        except typer.Abort:
            if not self.yes and sys.stdin.isatty():
                raise KeyboardInterrupt from None
            print()
            flag += "" if flag.endswith("=") or proposed is None else " "
            hint = (
                ""
                if proposed is None
                else f"{shlex.quote(proposed)}, or --yes for all that is proposed"
            )
            raise UserError(f"{question}: nobody to ask; say {flag}{hint}") from None

    def choice(self, question: str, known: list[str], flag: str) -> str:
        """Return one of the known answers, of which the first is proposed; asks until it is one."""
        if not known:
            raise UserError(
                f"{question}: the rows state no truth for boxes, count, answer or choice"
            )
        while True:
            answer = self.text(f"{question} ({', '.join(known)})", known[0], flag)
            if answer in known:
                return answer
            print(f"expected one of {', '.join(known)}, got {answer}")

    def number(self, question: str, proposed: float, flag: str) -> float:
        """Return a number, not negative; asks until it is one."""
        while True:
            answer = self.text(question, f"{proposed:g}", flag)
            if answer.replace(".", "", 1).isdecimal():
                return float(answer)
            print(f"expected a number, got {answer}")


def _look_at(data: str, option: list[str], ask: Questions) -> tuple[CheckedPath, DataLook]:
    """Return the sources of data with what was seen in them; says both, and checks every row.

    Raises:
        UserError: they cannot be read, a question has no answer, or no row is good.
    """
    from vlmrl.config import tree
    from vlmrl.features.check import data_look, path_check
    from vlmrl.features.check.data_check import check_and_print

    options = tree.pairs(option)
    if not path_check.is_path(data):
        raise UserError(f"{data}: expected a data file or folder")
    try:
        checked = path_check.open_path(data, options, None)
        look = data_look.look(checked.sources[0])
    except UserError:
        columns = data_look.propose_columns(data)
        if "columns" in options or "question" not in columns:
            raise
        answer = ask.text("Columns of the table", _flow(columns), "-o columns=")
        options |= tree.pairs([f"columns={answer}"])
        if "boxes" in options["columns"]:
            options["box_space"] = _space_of_table(options, ask)
        checked = path_check.open_path(data, options, None)
        look = data_look.look(checked.sources[0])
    print(*checked.before, sep="\n")
    if checked.guess is not None:
        known = [checked.guess, *(space for space in SPACES if space != checked.guess)]
        options["box_space"] = ask.choice("Space of the places", known, "-o box_space=")
        checked = path_check.open_path(data, options, None)
    if check_and_print(checked.sources):
        print("warning: bad rows are left out of training, and counted")
    print(look)
    return checked, look


def _space_of_table(options: dict[str, Any], ask: Questions) -> str:
    """Return the space of a table's places, which has no proposal: it is never guessed."""
    if "box_space" in options:
        return str(options["box_space"])
    while True:
        answer = ask.text(f"Space of the places ({', '.join(SPACES)})", None, "-o box_space=")
        if answer in SPACES:
            return answer
        print(f"expected one of {', '.join(SPACES)}, got {answer}")


def _flow(columns: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {column}" for key, column in columns.items()) + "}"


def _cards() -> tuple[int, float]:
    """Return how many cards are here, and the GB of the first."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        return 0, MEMORY
    return count, round(torch.cuda.get_device_properties(0).total_memory / 1e9)


def _write(
    out: Path,
    data: str,
    checked: CheckedPath,
    look: DataLook,
    task: str,
    model: str,
    gpus: int,
    memory: float,
) -> None:
    """Write a config, validate it and say what it costs."""
    from vlmrl.cli import first_config
    from vlmrl.config import tree
    from vlmrl.features.check import commands
    from vlmrl.features.plan.fitting import fit
    from vlmrl.system.files import write_bytes

    source, holds_out = _with_held_out(checked.config)
    source = {"card": source["card"], "name": Path(data).stem, **source}
    verifier = look.tasks[task]
    if model == "small":
        config = first_config.small(source, verifier, look.has_demos)
        costs = ["a small model on a CPU: not planned; `vlmrl train` says the time left"]
    else:
        config, costs = first_config.pretrained(source, task, verifier, model), []
    if model != "small" and gpus:
        width, height = look.size or (1, 1)
        fitted = fit(config, gpus, memory, min(width * height, first_config.MAX_PIXELS))
        config, costs = tree.merge(config, fitted.changes), fitted.lines
    elif model != "small":
        costs = ["a published model on a CPU: not planned, and slow"]
    config["run"] = {"name": out.stem, **config["run"]}
    config["evaluation"] = config["evaluation"] if holds_out else None
    start = f"torchrun --nproc-per-node {gpus} -m vlmrl" if gpus > 1 else "vlmrl"
    head = [f"Written by `vlmrl init`: task {task}.", *costs, f"Next: `{start} train {out}`."]
    write_bytes(out, first_config.write(config, head).encode())
    print(out.read_text(encoding="utf-8"))
    commands.validate(str(out))
    print(*costs, f"next: vlmrl doctor {out}, then {start} train {out}", sep="\n")


def _with_held_out(source: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the source of a config and whether rows are held out: of few rows all train."""
    from vlmrl.config import SourceConfig
    from vlmrl.data.source import open_source

    if "held_out" not in source:
        return source, True
    known = SourceConfig(**source)
    try:
        open_source(known)
        open_source(known.model_copy(update={"split": known.held_out}))
    except UserError:
        split = source["split"].partition("[")[0]
        kept = {k: v for k, v in source.items() if k not in ("split", "held_out")}
        return kept | ({} if split == "train" else {"split": split}), False
    return source, True
