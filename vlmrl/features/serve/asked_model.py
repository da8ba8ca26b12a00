"""A model that is asked outside of any run; requests to `serve` that wait together are one pass of it."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch

from vlmrl import plugins
from vlmrl.assemble.prompts import build_prompt_maker
from vlmrl.assemble.trained_run import run_of
from vlmrl.config import ModelConfig, PluginRef
from vlmrl.data.source import access_of, open_source
from vlmrl.engines.base import Engine, Sampling
from vlmrl.errors import UserError
from vlmrl.forward.logprobs import completion_logprobs
from vlmrl.media.access import Access, Reading
from vlmrl.media.decode import decode
from vlmrl.models.loading import load_model
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import narrow
from vlmrl.schema import Completion, MicroBatch, Prompt, PromptBatch, Sample
from vlmrl.scoring.reward_components import form_of
from vlmrl.system.seeds import seed_of

Dtype = Literal["float32", "bfloat16"]
"""A type of weights, in which a model computes."""


class ServedModel:
    """A checkpoint folder, a run folder (its best checkpoint) or a hub name, loaded to be asked.

    Raises:
        UserError: there is no such model, or the engine cannot start with it.
    """

    rates: ClassVar[bool] = False

    def __init__(self, model: str, engine: PluginRef, dtype: Dtype = "float32") -> None:
        self._run, self.folder = run_of(model)
        settings = ModelConfig(path=self.folder, dtype=dtype)
        self._policy = Policy(*load_model(settings), settings)
        # Nothing trains: all are stored in `dtype`.
        for parameter in self._policy.base.parameters():
            parameter.requires_grad_(False)
            parameter.data = narrow(parameter, settings)
        self._reading = Reading(with_audio=self._policy.family.hears_videos)
        self._options: Engine = plugins.build("engine", engine.name, engine.options)
        self._engine = self._options.start(self._policy)

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        """Return the prompt of a sample, with the instruction of its template.

        Raises:
            UserError: a medium cannot be read, or the model cannot be shown it.
        """
        make = build_prompt_maker(self._policy, {}, {})
        return make(sample, decode(sample, access, self._reading))

    def prompt_as_trained(self, sample: Sample, access: Access) -> Prompt:
        """Return the prompt of a sample, asked as the first row of the run's first source is.

        That is with its template and its kind of answer. The question stands alone where the model
        belongs to no run, or where that source asks so.

        Raises:
            UserError: as `prompt`, or the data of the run cannot be read.
        """
        if self.trained_row is None or self._run is None:
            return self.prompt(sample, access)
        source, row = self._run.data.train[0], self.trained_row
        asked = replace(
            sample,
            source=source.label,
            template=row.template,
            truth=replace(row.truth, image=0),
            system=row.system,
        )
        form = form_of(self._run.rewards_of(source))
        instruct = {source.label: source.instruct}
        make = build_prompt_maker(self._policy, instruct, {source.label: form})
        return make(asked, decode(asked, access, self._reading))

    @functools.cached_property
    def trained_row(self) -> Sample | None:
        """The first row of the run's first source; None where the model belongs to no run.

        Raises:
            UserError: the data of the run cannot be read.
        """
        if self._run is None:
            return None
        try:
            return open_source(self._run.data.train[0], access_of(self._run.data)).sample(0)
        except UserError as error:
            raise UserError(
                f"the run asks as its data do, and these cannot be read: {error}; --plain asks the "
                "question alone"
            ) from error

    def tokenize(self, text: str, special: bool) -> list[int]:
        """Return the ids of a text, with the tokens that begin and end one if `special`."""
        tokens = self._policy.tokenizer(text, add_special_tokens=special)["input_ids"]
        return [int(token) for token in tokens]

    def grade(self, ids: Sequence[int], sample: Sample) -> tuple[tuple[int, ...], list[float]]:
        """Return the ids of a text with its media expanded, and the log-probs of its last ones.

        `ids` are compact, and `sample` holds their media. Graded, at temperature 1, is all that follows
        the last medium, without media all but the first token.

        Raises:
            UserError: the ids are not this model's, or too many; a medium cannot be read.
        """
        policy, family, processor = self._policy, self._policy.family, self._policy.processor
        marks = {*family.media_token_ids(processor)}
        start = max((index for index, token in enumerate(ids) if token in marks), default=0) + 1
        before, after = tuple(ids[:start]), tuple(ids[start:])
        config = policy.base.config.get_text_config()
        _require_readable(len(ids), config.max_position_embeddings)
        if not after or max(ids) >= config.vocab_size:
            raise UserError(
                "token_ids: expected tokens of this model's vocabulary behind the last medium"
            )
        media = decode(sample, Access(), self._reading)
        encoded = family.encode(processor, policy.tokenizer.decode(before), media)
        if encoded.compact_ids != before:
            raise UserError(
                "token_ids: this model's tokenizer makes other ids of what the media are in"
            )
        _require_readable(len(encoded.ids) + len(after), config.max_position_embeddings)
        prompt = Prompt(sample, "", encoded, family.frame(processor, None), tuple(media))
        ones = torch.ones(1, len(after))
        row = torch.zeros(1, dtype=torch.long)
        masks = torch.tensor([after]), ones.bool(), ones, ones, torch.ones(1)
        with torch.no_grad():
            logprobs, _ = completion_logprobs(
                policy.base, family, MicroBatch((prompt,), row, *masks), 1.0, policy.pad_id
            )
        return (*encoded.ids, *after), logprobs[0].tolist()

    def answer(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Return `sampling.n` completions for each prompt.

        Raises:
            UserError: a prompt is too long for the model or the engine, or holds too many media.
        """
        for prompt in prompts:
            self.require_room(prompt, sampling.max_tokens)
        return list(self._engine.generate(PromptBatch(tuple(prompts)), sampling).completions)

    def require_room(self, prompt: Prompt, max_tokens: int) -> None:
        """Check that a prompt and its answer fit.

        Raises:
            UserError: the prompt is too long for the model or the engine, or holds too many media.
        """
        longest = self._policy.base.config.get_text_config().max_position_embeddings
        length = len(prompt.encoded.ids)
        if length + max_tokens > longest:
            raise UserError(
                f"a prompt of {length} tokens and an answer of up to {max_tokens}: the model "
                f"reads at most {longest}"
            )
        self._options.require_room(self._policy, prompt, max_tokens)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()


def _require_readable(length: int, longest: int) -> None:
    if length > longest:
        raise UserError(f"{length} tokens: the model reads at most {longest}")


class Answers(Protocol):
    """A model that answers prompts, several in one pass."""

    rates: ClassVar[bool]
    """Whether it rates a turn of the assistant's, which ends the conversation, instead of adding one."""

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        """Return the prompt of a sample.

        Raises:
            UserError: the model cannot be shown it.
        """

    def answer(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Return the completions of each prompt."""

    def close(self) -> None:
        """Free what it holds."""


T = TypeVar("T")


@dataclass
class _Waiting:
    """A request on its way: its completions arrive in `done`, and then its sample is forgotten."""

    sample: Sample | None
    sampling: Sampling
    done: Future[tuple[Prompt, tuple[Completion, ...]]] = field(default_factory=Future)

    def forget(self) -> None:
        self.sample = None


@dataclass
class _Call:
    """What is done with the model between two passes: its result arrives in `done`, as with `_Waiting`."""

    work: Callable[[], Any] | None
    done: Future[Any] = field(default_factory=Future)

    def forget(self) -> None:
        self.work = None

    def run(self) -> None:
        if self.done.set_running_or_notify_cancel():
            assert self.work is not None
            try:
                self.done.set_result(self.work())
            except Exception as error:
                self.done.set_exception(error)


class Batches:
    """Answers requests in the order in which they come, those of one kind up to `size` at a time.

    What a request is answered depends on its own seed, not on those that it shares a pass with.
    """

    def __init__(self, model: Answers, size: int) -> None:
        self._model, self._size, self._closed = model, size, False
        self.rates = model.rates
        self._queue: queue.SimpleQueue[_Waiting | _Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def ask(
        self, sample: Sample, sampling: Sampling
    ) -> Future[tuple[Prompt, tuple[Completion, ...]]]:
        """Return the future of a request's prompt and completions; a bad medium is its exception."""
        waiting = _Waiting(sample, sampling)
        self._put(waiting)
        return waiting.done

    def call(self, work: Callable[[ServedModel], T]) -> Future[T]:
        """Return the future of what `work` makes of the model, on the thread that it has to itself.

        Raises:
            UserError: the model writes nothing, so it has no log-probs.
        """
        model = self._model
        if not isinstance(model, ServedModel):
            raise UserError("this model writes nothing: it cannot grade a text")
        waiting = _Call(lambda: work(model))
        self._put(waiting)
        return waiting.done

    def _put(self, waiting: _Waiting | _Call) -> None:
        # Whose client has left may wait for long, and shall not hold its media.
        waiting.done.add_done_callback(lambda _: waiting.forget())
        self._queue.put(waiting)

    def close(self) -> None:
        """Finish the pass in hand, refuse what waits, and stop the model."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._model.close()

    def _work(self) -> None:
        while True:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            kinds: dict[Sampling, list[_Waiting]] = {}
            for each in waiting:
                if each is None:
                    continue
                if self._closed:
                    each.done.cancel()
                elif isinstance(each, _Call):
                    each.run()
                else:
                    kinds.setdefault(replace(each.sampling, seed=0), []).append(each)
            if self._closed:
                return
            for alike in kinds.values():
                for at in range(0, len(alike), self._size):
                    part = alike[at : at + self._size]
                    self._answer([w for w in part if w.done.set_running_or_notify_cancel()])

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        ready: list[tuple[_Waiting, Prompt]] = []
        for waiting in batch:
            try:
                assert waiting.sample is not None  # its future runs, so it is not done
                ready.append((waiting, self._model.prompt(waiting.sample, Access())))
            except Exception as error:
                waiting.done.set_exception(error)
        if not ready:
            return
        first = ready[0][0].sampling
        keys = tuple(
            tuple(seed_of(waiting.sampling.seed, g) for g in range(first.n)) for waiting, _ in ready
        )
        try:
            answers = self._model.answer([p for _, p in ready], replace(first, keys=keys))
        except Exception as error:
            for waiting, _ in ready:
                waiting.done.set_exception(error)
            return
        for (waiting, prompt), completions in zip(ready, answers, strict=True):
            waiting.done.set_result((prompt, completions))
