"""`vlmrl predict`: many images without truth, answered in batches, with the places of each answer drawn."""

from __future__ import annotations

import functools
import glob
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from vlmrl.assemble.trained_run import run_of
from vlmrl.config import PluginRef
from vlmrl.data.source import access_of, open_source
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.features.serve.asked_model import ServedModel
from vlmrl.features.serve.try_model import KINDS, places_of
from vlmrl.media.access import Access
from vlmrl.runs.output.events import Warned
from vlmrl.runs.output.outputs import Output
from vlmrl.schema import Completion, Media, Prompt, Sample, Truth
from vlmrl.schema.media import PilImage
from vlmrl.scoring.score_rows import read_lines
from vlmrl.system import files
from vlmrl.truths.drawn import RED, draw_places
from vlmrl.truths.json_form import convert, to_json

PLACES = ("boxes", "points")
"""Kinds of places that an answer about an image may state."""
QUALITY = 90
"""Of the JPEG files of drawn images."""
ROWS = 100
"""First rows of a run's data that have to ask one question, if it is asked about other images."""


@dataclass(frozen=True, slots=True)
class AskedImage:
    """One row: the path of an image, and what is asked about it."""

    image: str
    question: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model answered about one image; `error` is why it did not, and then all else is empty.

    `boxes` and `points` are as JSON has them, `{"box": [x1, y1, x2, y2], "label"?}` and `{"point": [x, y]}`,
    in pixels of the upright original image.
    """

    image: str
    question: str
    text: str = ""
    """All that the model wrote."""
    thought: str | None = None
    answer: str | None = None
    boxes: tuple[Mapping[str, Any], ...] = ()
    points: tuple[Mapping[str, Any], ...] = ()
    is_cut: bool = False
    """Whether the answer ended at the limit of tokens."""
    error: str = ""
    drawn: PilImage | None = None
    """The image with its places drawn; None: there are none."""

    def line(self) -> dict[str, Any]:
        """Return the row of `answers.jsonl`, without the drawn image."""
        names = ("image", "question", "text", "thought", "answer", "boxes", "points", "is_cut")
        return {name: to_json(getattr(self, name)) for name in names}


# --------------------------------------------------------------------------------------------------
# What is asked.


def find_images(asked: Sequence[str], question: str | None) -> list[AskedImage]:
    """Return the rows that files, folders, patterns and JSONL files mean, in order, each once.

    A folder means its images, sorted by name. A row of a JSONL file has `image`, a path from the file's
    folder, and `question`, where it is not `question`.

    Raises:
        UserError: no such file, a pattern or a folder without images, a bad row, or no question.
    """
    rows: list[AskedImage] = []
    for text in asked:
        path = Path(text)
        if path.suffix == ".jsonl" and path.is_file():
            read = functools.partial(_read_row, folder=path.parent, question=question)
            rows += read_lines(path, read)
            continue
        if not question:
            raise UserError(f"{text}: expected a question: --question TEXT")
        rows += [AskedImage(str(image), question) for image in _images_of(path)]
    return list(dict.fromkeys(rows))


def trained_question(model: str) -> str | None:
    """Return what the first source of a model's run asks in each of its first rows.

    None where its questions differ, or the model belongs to no run.

    Raises:
        UserError: the data of the run cannot be read.
    """
    run, _ = run_of(model)
    if run is None:
        return None
    source = open_source(run.data.train[0], access_of(run.data))
    questions = {source.sample(number).text for number in range(min(ROWS, len(source.rows)))}
    return questions.pop() if len(questions) == 1 else None


def _images_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    inside = path.iterdir() if path.is_dir() else map(Path, glob.iglob(str(path), recursive=True))
    endings = KINDS["image"]
    images = sorted(p for p in inside if p.suffix.lower() in endings and p.is_file())
    if not images:
        raise UserError(f"{path}: expected an image, a folder or a pattern of images, got none")
    return images


def _read_row(row: object, name: str, folder: Path, question: str | None) -> AskedImage:
    if not isinstance(row, Mapping):
        raise UserError(f"expected a JSON object, got {row!r:.80}")
    values = {"question": question, **row}
    for key in ("image", "question"):
        if not isinstance(values.get(key), str) or not values[key]:
            raise UserError(f"{key}: expected a text, got {values.get(key)!r:.80}")
    return AskedImage(str(folder / values["image"]), values["question"])


# --------------------------------------------------------------------------------------------------
# The answers.


def answer_images(
    asked: ServedModel,
    rows: Sequence[AskedImage],
    *,
    max_tokens: int = 512,
    batch: int = 8,
    plain: bool = False,
) -> Iterator[list[Prediction]]:
    """Yield the greedy answers of `batch` rows at a time, in order.

    A row whose image cannot be read, or shown to the model, has its `error`.

    Raises:
        UserError: the data of the model's run, which say how it is asked, cannot be read.
    """
    ask = asked.prompt if plain or asked.trained_row is None else asked.prompt_as_trained
    remaining = iter(rows)
    while taken := list(islice(remaining, batch)):
        prompts: dict[int, Prompt] = {}
        errors: dict[int, str] = {}
        for number, row in enumerate(taken):
            shown = Media("image", path=str(Path(row.image).resolve()))
            sample = Sample(row.image, "predict", (shown, row.question), Truth(), template="none")
            try:
                prompt = ask(sample, Access(root="/"))
                asked.require_room(prompt, max_tokens)
                prompts[number] = prompt
            except UserError as error:
                errors[number] = str(error)
        sampling = Sampling(1, max_tokens, greedy=True)
        answers = asked.answer(list(prompts.values()), sampling) if prompts else []
        completions = dict(zip(prompts, answers, strict=True))
        yield [
            _predict(row, prompts[number], *completions[number])
            if number in prompts
            else Prediction(row.image, row.question, error=errors[number])
            for number, row in enumerate(taken)
        ]


def _predict(row: AskedImage, prompt: Prompt, completion: Completion) -> Prediction:
    places = places_of(completion, prompt)
    pixels = replace(prompt.frame, space="pixel")
    image = prompt.media[0]
    assert isinstance(image, PilImage)
    boxes, points = (tuple(to_json(convert(places.value(k) or (), pixels))) for k in PLACES)
    return Prediction(
        row.image,
        row.question,
        text=completion.text,
        thought=completion.parsed.thought,
        answer=completion.answer,
        boxes=boxes,
        points=points,
        is_cut=completion.finish_reason == "length",
        drawn=draw_places(image, places, RED)[0] if boxes or points else None,
    )


# --------------------------------------------------------------------------------------------------
# The folder of `vlmrl predict`.


@dataclass(frozen=True, slots=True)
class PredictedCounts:
    """Rows by what became of them."""

    answered: int
    kept: int
    """Answered by an earlier call."""
    broken: int
    without_places: int
    """Of the answered, those that state no box and no point."""
    cut: int
    """Of the answered, those that ended at the limit of tokens."""

    def __str__(self) -> str:
        """Return the counts as a sentence, and a line on the answers where there are new ones."""
        text = f"{self.answered} answered, {self.kept} answered before, {self.broken} not answered"
        if not self.answered:
            return text
        of = f"of the {self.answered}: {self.without_places} state no box or point"
        return f"{text}\n{of}, {self.cut} cut at --max-tokens"


def predict(
    model: str,
    rows: Sequence[AskedImage],
    out: Path,
    *,
    max_tokens: int = 512,
    batch: int = 8,
    plain: bool = False,
    engine: PluginRef = PluginRef(name="hf"),
    output: Output,
) -> PredictedCounts:
    """Answer rows into `out`: `answers.jsonl`, and `drawn/` with the images of answers that state places.

    Rows that the folder has answers for are skipped. A batch is written when it is done, so what was stopped
    goes on. Rows that cannot be answered are said, and tried again the next time.

    Raises:
        UserError: no such model, or the folder has answers of another model or setting.
    """
    asked = ServedModel(model, engine)
    try:
        settings = {"model": asked.folder, "max_tokens": max_tokens, "plain": plain}
        _require_same(out / "asked.json", settings | {"engine": engine.model_dump(mode="json")})
        answers = out / "answers.jsonl"
        kept = files.read_lines(answers) if answers.exists() else []
        files.write_lines(answers, kept)  # without a torn last line
        done = {(line["image"], line["question"]) for line in kept}
        left = [row for row in rows if (row.image, row.question) not in done]
        number, broken, before = len(kept), 0, len(rows) - len(left)
        without_places = cut = 0
        with output.doing(f"asking {model}", len(rows), before) as activity:
            for block in answer_images(
                asked, left, max_tokens=max_tokens, batch=batch, plain=plain
            ):
                lines = []
                for prediction in block:
                    if prediction.error:
                        broken += 1
                        output.say(Warned(f"not answered: {prediction.error}"))
                        continue
                    number += 1
                    without_places += not (prediction.boxes or prediction.points)
                    cut += prediction.is_cut
                    lines.append(prediction.line() | {"drawn": _store(out, number, prediction)})
                files.append_lines(answers, lines)
                activity.done(before + number - len(kept) + broken)
    finally:
        asked.close()
    return PredictedCounts(number - len(kept), before, broken, without_places, cut)


def _require_same(path: Path, settings: Mapping[str, Any]) -> None:
    """Write how the answers of a folder are asked for, or compare it with how they were."""
    if not path.exists():
        files.write_json(path, settings)
        return
    before = files.read_json(path)
    for key, value in settings.items():
        if before.get(key) != value:
            raise UserError(
                f"{path}: {key}: the answers there are of {before.get(key)!r}, got {value!r}; --out takes "
                "another folder"
            )


def _store(out: Path, number: int, prediction: Prediction) -> str | None:
    """Write the drawn image, if there is one, and return its path from `out`."""
    if prediction.drawn is None:
        return None
    data = io.BytesIO()
    prediction.drawn.save(data, "JPEG", quality=QUALITY)
    name = f"drawn/{number:06d}_{Path(prediction.image).stem}.jpg"
    files.write_bytes(out / name, data.getvalue())
    return name
