"""Who writes demonstrations: a checkpoint with an engine, or a named model that is asked as a chat is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from vlmrl import plugins
from vlmrl.answers import templates
from vlmrl.config import Config, NamedModel
from vlmrl.engines.base import Engine, Sampling
from vlmrl.errors import UserError
from vlmrl.media_types import Decoded
from vlmrl.named_models.content import media_parts, text_part
from vlmrl.named_models.opened import keeping_replies, open_model
from vlmrl.policy.policy import Policy
from vlmrl.schema import Completion, Frame, Media, Prompt, PromptBatch
from vlmrl.system.chat_endpoint import Invalid, Unavailable
from vlmrl.system.seeds import seed_of
from vlmrl.truths import prompting

__all__ = ["Teacher", "asking", "generating"]

Teacher = Callable[[Sequence[Prompt], int, int], Sequence[Sequence[Completion]]]
"""Returns completions of each prompt, as many as asked for, by a seed."""


@contextmanager
def generating(config: Config, policy: Policy) -> Iterator[Teacher]:
    """Give the teacher that the policy's weights are, by the config's engine."""
    chosen: Engine = plugins.build("engine", config.engine.name, config.engine.options)
    with closing(chosen.start(policy)) as engine:

        def write(
            prompts: Sequence[Prompt], count: int, seed: int
        ) -> Sequence[Sequence[Completion]]:
            draw = Sampling.of(config.at(0.0).rollout, count, seed)
            return engine.generate(PromptBatch(tuple(prompts)), draw).completions

        yield write


@contextmanager
def asking(
    config: Config, name: str, policy: Policy, instruct: Mapping[str, bool], replies: Path
) -> Iterator[Teacher]:
    """Give the teacher that one of `models` is; its replies are kept in a folder, and recalled from there.

    It sees what the policy would: the text of the question with its instruction, and media in the size
    in which the policy sees them, so that places mean the same. A question without a reply is left out of
    its group. `instruct` says by source whether its prompts have an instruction.

    Raises:
        UserError: no question of a call gets a reply.
    """
    with keeping_replies(replies):
        model = open_model(NamedModel(name=name, **config.models[name].model_dump()))
        rollout = config.at(0.0).rollout

        def write(
            prompts: Sequence[Prompt], count: int, seed: int
        ) -> Sequence[Sequence[Completion]]:
            failures: list[str] = []

            def answer(prompt: Prompt, messages: Sequence[Any], number: int) -> Completion | None:
                body = {
                    "messages": messages,
                    "max_tokens": rollout.max_tokens,
                    "temperature": rollout.temperature,
                    "top_p": rollout.top_p,
                    "seed": seed_of(seed, number) >> 32,
                }
                try:
                    return model.ask(body, lambda text: _read(prompt, text))
                except (Unavailable, Invalid) as error:
                    failures.append(str(error))
                    return None

            asked = []
            for place, prompt in enumerate(prompts):
                told = _messages(prompt, policy, instruct.get(prompt.sample.source, True))
                asked += [(prompt, told, place * count + number) for number in range(count)]
            with ThreadPoolExecutor(config.models[name].concurrency) as pool:
                found = list(pool.map(answer, *zip(*asked, strict=True)))
            if len(failures) == len(asked):
                raise UserError(f"models.{name} does not answer: {failures[0]}; --resume goes on")
            groups = [found[at : at + count] for at in range(0, len(found), count)]
            return [[one for one in group if one is not None] for group in groups]

        yield write


def _read(prompt: Prompt, text: str) -> Completion:
    """Return a reply as a completion of the prompt that the policy might have written."""
    if not text.strip():
        raise Invalid("an empty reply")
    return templates.completion(text.strip(), prompt.sample.template, prompt.frame)


def _messages(prompt: Prompt, policy: Policy, instructed: bool) -> list[Mapping[str, Any]]:
    """Return a prompt as messages of OpenAI's chat completions."""
    sample = prompt.sample
    media = iter(zip(prompt.media, prompt.seen.frames, strict=True))
    found: list[Mapping[str, Any]] = []
    if sample.system:
        found.append({"role": "system", "content": sample.system})
    for turn in prompt.turns:
        found.append({"role": turn.role, "content": _content(turn.parts, media)})
    content = _content(sample.parts, media)
    if instructed:
        space, shown = policy.family.space, sample.num_images
        text = prompting.instruct(sample.template, sample.truth, space, sample.form, shown)
        content += [text_part(text)] if text else []
    return [*found, {"role": "user", "content": content}]


def _content(
    parts: Sequence[str | Media], media: Iterator[tuple[Decoded, Frame]]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            found += [text_part(part)] if part.strip() else []
        else:
            medium, frame = next(media)
            found += media_parts([medium], [frame])[1:]  # without its number
    return found
