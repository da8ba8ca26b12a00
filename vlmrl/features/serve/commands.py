"""`vlmrl try` and `vlmrl serve`: a trained model asked by hand, and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vlmrl.errors import UserError

Model = Annotated[str, typer.Argument(help="A checkpoint folder, a run folder or a hub name.")]


def try_(
    model: Model,
    asked: Annotated[
        list[str], typer.Argument(metavar="[FILE]... QUESTION", help="Media, then the question.")
    ],
    samples: Annotated[
        int, typer.Option(min=0, help="Sampled answers, instead of the greedy one.")
    ] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    plain: Annotated[
        bool, typer.Option("--plain", help="Ask the question alone, not as the run's training did.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Generate with this, e.g. `vllm(max_model_len=2048)`.")
    ] = "hf",
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
