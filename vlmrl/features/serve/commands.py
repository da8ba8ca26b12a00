"""`vlmrl try`, `vlmrl predict` and `vlmrl serve`: a model asked by hand, about many images, and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vlmrl.arguments import Quiet
from vlmrl.errors import UserError

Model = Annotated[str, typer.Argument(help="A checkpoint folder, a run folder or a hub name.")]

MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer.")]

Plain = Annotated[
    bool, typer.Option("--plain", help="Ask the question alone, not as the run's training did.")
]

EngineName = Annotated[
    str, typer.Option("--engine", help="Generate with this, e.g. `vllm(max_model_len=2048)`.")
]


def try_(
    model: Model,
    asked: Annotated[
        list[str], typer.Argument(metavar="[FILE]... QUESTION", help="Media, then the question.")
    ],
    samples: Annotated[
        int, typer.Option(min=0, help="Sampled answers, instead of the greedy one.")
    ] = 0,
    max_tokens: MaxTokens = 512,
    plain: Plain = False,
    engine: EngineName = "hf",
    out: Annotated[Path | None, typer.Option(help="Also write a page, e.g. `answer.html`.")] = None,
) -> None:
    """Ask a model one question, and see the places of its answer drawn on the image.

    - `vlmrl try runs/quickstart photo.png "Where is the red circle?"`
    - `vlmrl try runs/mine before.jpg after.jpg "What changed?" --samples 4 --out answer.html`
    - `vlmrl try Qwen/Qwen2.5-VL-3B-Instruct clip.mp4 "When does the cat jump?"`

    A model of a run is asked as the first source of its training asks, with that template and kind of
    answer. Boxes, points and spans are read as the verifiers read them. Tools are not offered.
    """
    *files, question = asked
    from vlmrl.arguments import reference
    from vlmrl.features.serve.try_model import try_model

    try_model(
        model,
        [Path(file) for file in files],
        question,
        samples=samples,
        max_tokens=max_tokens,
        plain=plain,
        engine=reference(engine),
        out=out,
    )


def predict(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Images, folders, patterns, or JSONL files of rows with `image` and `question`.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for answers.jsonl and the drawn images.")],
    question: Annotated[
        str | None,
        typer.Option(
            help="What is asked about each image without a question. Absent: what the run's data ask, "
            "if they ask one question."
        ),
    ] = None,
    max_tokens: MaxTokens = 512,
    batch: Annotated[int, typer.Option(min=1, help="Images answered at a time.")] = 8,
    plain: Plain = False,
    engine: EngineName = "hf",
    quiet: Quiet = False,
) -> None:
    """Ask a model about many images, and keep its answers with their boxes drawn.

    - `vlmrl predict runs/mine photos/ --out answers` asks what the run's rows ask
    - `vlmrl predict runs/mine 'photos/*.jpg' --question "Where is the dog?" --out answers`
    - `vlmrl predict Qwen/Qwen2.5-VL-3B-Instruct rows.jsonl --out answers --engine vllm`

    `answers.jsonl` has a row for each answer: its text, and boxes and points in pixels. Run again, it goes
    on: what is answered is skipped. An image that cannot be read is named and counted, and ends nothing. A
    model of a run is asked as the first source of its training asks.
    """
    from vlmrl.arguments import reference
    from vlmrl.features.serve.predict import find_images, predict, trained_question
    from vlmrl.runs.output.terminal import choose

    if question is None and not plain and (question := trained_question(model)) is not None:
        print(f"asked as the run's data ask: {question}")
    with choose(quiet) as output:
        rows = find_images(images, question)
        counts = predict(
            model,
            rows,
            out,
            max_tokens=max_tokens,
            batch=batch,
            plain=plain,
            engine=reference(engine),
            output=output,
        )
    print(f"{out / 'answers.jsonl'}: {counts}")


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="What requests call the model. Absent: its folder's name.")
    ] = None,
    engine: Annotated[
        Literal["hf", "vllm"] | None, typer.Option(help="Absent: vllm where it is installed.")
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Requests that hf answers in one pass, at most.")
    ] = 8,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(
            help="Of the weights. Absent: float32 with hf, the checkpoint's own with vllm."
        ),
    ] = None,
) -> None:
    """Serve a model behind OpenAI's chat API, with images, video and audio in the messages.

    - `vlmrl serve runs/mine` serves the best checkpoint at http://127.0.0.1:8000/v1
    - `VLMRL_SERVER_TOKEN=... vlmrl serve runs/mine --host 0.0.0.0`, for other machines

    It listens on this machine only unless `--host` says otherwise, and then needs a token, which clients
    send as their API key. Media come inside the request (`data:` URIs); files and URLs are not opened.
    """
    from vlmrl.features.serve.chat_server import serve_hf, serve_vllm, vllm_is_installed

    chosen = engine or ("vllm" if vllm_is_installed() else "hf")
    if chosen == "vllm":
        if not vllm_is_installed():
            raise UserError("--engine vllm: vLLM is not installed; see docs/scale/engines.md")
        return serve_vllm(model, host, port, name, dtype)
    serve_hf(model, host, port, name, batch, dtype or "float32")
