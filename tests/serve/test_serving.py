"""`vlmrl try` and `vlmrl serve`: a small model answers on a page, in a terminal, over HTTP."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from helpers.chat_calls import RED, call, question, save_small_model
from helpers.runs import ROOT
from vlmrl.answers import templates
from vlmrl.engines.base import Sampling
from vlmrl.engines.serve import TOKEN
from vlmrl.errors import UserError
from vlmrl.features.serve import chat_server
from vlmrl.features.serve.chat_server import read_request
from vlmrl.features.serve.try_model import places_of, show_image, try_model, write_page
from vlmrl.schema import Box, Completion, Frame, Media, Prompt, Sample, Span, Truth


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights, and an image beside it."""
    folder = save_small_model(tmp_path_factory.mktemp("model") / "tiny")
    RED.save(folder.parent / "red.png")
    return folder


# ------------------------------------------------------------------------------------------------ try


def test_try_prints_the_answer_and_writes_an_offline_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "answer.html"
    question = "Where is <script>alert(1)</script>?"
    try_model(str(folder), [folder.parent / "red.png"], question, max_tokens=4, out=page)
    first = capsys.readouterr().out
    assert f"page: {page}" in first and "\x1b" not in first
    text = page.read_text()
    assert "<script" not in text and "&lt;script&gt;" in text and "default-src 'none'" in text
    assert text.count("data:image/png") == 1
    try_model(str(folder), [folder.parent / "red.png"], question, max_tokens=4)
    assert capsys.readouterr().out == first.replace(f"page: {page}\n", "")


@pytest.mark.parametrize(
    ("file", "said"), [("no.png", "no such file"), ("tiny/config.json", "expected an image")]
)
def test_a_file_that_is_no_medium_is_named(folder: Path, file: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"{file}.*{said}"):
        try_model(str(folder), [folder.parent / file], "Where?")


def answered(text: str, frame: Frame, name: str = "none") -> tuple[Completion, Prompt]:
    sample = Sample("1", "try", (Media("image", data=b"-"), "Where?"), Truth(), template=name)
    prompt = Prompt(sample, "Where?", None, frame, (RED,))  # type: ignore[arg-type]
    return templates.completion(text, name, frame), prompt


@pytest.mark.parametrize(
    ("text", "frame", "found"),
    [
        ("[14, 21, 28, 42]", Frame(56, 84), Truth(boxes=(Box(0.25, 0.25, 0.5, 0.5),))),
        ("<answer>[500, 0, 1000, 500]</answer>", Frame(9, 9, "norm1000"), None),
        ("from 2 to 3.5 seconds", Frame(56, 84, duration=4.0), Truth(spans=(Span(2.0, 3.5),))),
        ("from 2 to 3.5 seconds", Frame(56, 84), Truth()),
        ("I see nothing at all.", Frame(56, 84), Truth()),
    ],
)
def test_places_are_read_as_verifiers_read_them(
    text: str, frame: Frame, found: Truth | None
) -> None:
    name = "answer_only" if text.startswith("<") else "none"
    expected = found or Truth(boxes=(Box(0.5, 0.0, 1.0, 0.5),))
    assert places_of(*answered(text, frame, name)) == expected


def test_the_page_draws_the_box_where_the_answer_says(tmp_path: Path) -> None:
    completion, prompt = answered("[14, 21, 28, 42]", Frame(56, 84))
    write_page(tmp_path / "page.html", "m", prompt, [completion])
    found = (tmp_path / "page.html").read_text()
    assert '<rect x="14.0" y="21.0" width="14.0" height="21.0">' in found


def test_an_image_is_shown_in_a_terminal_only() -> None:
    for terminal in (True, False):
        out = io.StringIO()
        console = Console(
            file=out, force_terminal=terminal, color_system="truecolor", width=10, _environ={}
        )
        show_image(RED, console)
        lines = out.getvalue().splitlines()
        # 10 columns; 15 rows of pixels, two a line
        assert len(lines) == (8 if terminal else 0)
        assert all("38;2;255;0;0" in line and line.count("▀") == 10 for line in lines)


# ---------------------------------------------------------------------------------------------- serve


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The address of `vlmrl serve` in a process of its own, which ends quietly."""
    command = [sys.executable, "-m", "vlmrl", "serve", str(folder), "--engine", "hf"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving tiny at http://127.0.0.1:"), line
    yield line.split()[3]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.slow
def test_the_server_answers_as_openai_does(server: str) -> None:
    status, found = call(f"{server}/chat/completions", question(model="tiny", temperature=0))
    choice = found["choices"][0]
    assert status == 200 and found["object"] == "chat.completion" and found["model"] == "tiny"
    assert choice["message"]["role"] == "assistant"
    written = found["usage"]["completion_tokens"]
    assert (choice["finish_reason"] == "length") == (written == 6) and 0 < written <= 6
    assert found["usage"]["prompt_tokens"] > 6
    status, events = call(f"{server}/chat/completions", question(temperature=0, stream=True))
    first, done = events.strip().split("\n\n")
    chunk = json.loads(first.removeprefix("data: "))
    assert done == "data: [DONE]" and chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"][0]["delta"]["content"] == choice["message"]["content"]


@pytest.mark.slow
def test_an_answer_depends_on_its_own_seed_and_not_on_company(server: str) -> None:
    def ask(seed: int, n: int = 2) -> list[str]:
        found = call(f"{server}/chat/completions", question(seed=seed, n=n))[1]
        return [choice["message"]["content"] for choice in found["choices"]]

    alone = [ask(seed) for seed in range(6)]
    assert len(set(map(tuple, alone))) > 1
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (question(model="other"), {}, 404, "no model 'other' here"),
        (question(tools=[{"type": "function"}]), {}, 400, "tools: not supported"),
        (question(max_tokens=10**7), {}, 400, "max_tokens: expected a whole number"),
        (question(max_tokens=10**6), {}, 400, "the model reads at most"),
        (question(), {"Content-Type": "text/plain"}, 415, "expected Content-Type"),
        (question(), {"Host": "evil.example"}, 400, "host"),
        ({"messages": []}, {}, 400, "messages: expected a list"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: str, body: Any, headers: dict[str, str], status: int, said: str
) -> None:
    found = call(f"{server}/chat/completions", body, **headers)
    assert found[0] == status and said in found[1]
    assert call(f"{server}/chat/completions", question(temperature=0))[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
@pytest.mark.parametrize("serve", ["hf", "vllm"])
def test_other_machines_need_a_token(
    serve: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    start: Any = {"hf": chat_server.serve_hf, "vllm": chat_server.serve_vllm}[serve]
    with pytest.raises(UserError, match=f"set {TOKEN} to a secret"):
        start("nowhere", host, 8000, None, 1 if serve == "hf" else None)


@pytest.mark.slow
def test_with_a_token_nobody_else_is_answered() -> None:
    from starlette.testclient import TestClient

    app = chat_server.build_app(None, "tiny", "secret", ("*",))  # type: ignore[arg-type]
    client = TestClient(app)
    for key in ("", "Bearer wrong", "secrets"):
        for ask in (
            lambda h: client.get("/v1/models", headers=h),
            lambda h: client.post("/v1/chat/completions", json={}, headers=h),
        ):
            assert ask({"Authorization": key}).status_code == 401
    found = client.get("/v1/models", headers={"Authorization": "Bearer secret"})
    assert found.json()["data"][0]["id"] == "tiny"
    assert client.get("/health").status_code == 200


# ------------------------------------------------------------------------------------------- requests


def test_a_conversation_becomes_a_sample() -> None:
    body = question(temperature=0.5, top_p=0.9, n=3, seed=7)
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    body["messages"][1:1] = turns
    found = read_request(body)
    assert found.sample.system == "Be brief." and found.sample.text == "Where is the red shape?"
    assert [turn.role for turn in found.sample.history] == ["user", "assistant"]
    assert [medium.kind for medium in found.sample.media] == ["image"]
    assert found.sampling == Sampling(3, 6, temperature=0.5, top_p=0.9, seed=7)
    assert read_request(question(temperature=0)).sampling.greedy


@pytest.mark.parametrize(
    "url", ["/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/", "../x.png", ""]
)
@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
def test_a_request_opens_no_files_and_no_urls(url: str, kind: str) -> None:
    body = question()
    body["messages"][1]["content"][0] = {"type": kind, kind: {"url": url}}
    with pytest.raises(UserError, match=r"messages\[1\].content\[0\]: expected"):
        read_request(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "messages",
                    "role",
                    "content",
                    "type",
                    "text",
                    "image_url",
                    "url",
                    "n",
                    "seed",
                    "user",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(
    JSON, st.sampled_from(["messages", "n", "seed", "temperature", "top_p", "max_tokens", "stream"])
)
def test_any_json_is_a_question_or_a_users_mistake(value: Any, key: str) -> None:
    for body in (value, {**question(), key: value}, {"messages": [value]}):
        try:
            found = read_request(body)
        except UserError:
            continue
        assert found.sampling.n >= 1 and found.sample.parts
