"""A model with an engine that answers questions outside of any run: what `try` and `serve` ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch

from vlmrl import plugins
from vlmrl.assemble.prompts import build_prompt_maker
from vlmrl.commands.trained_run import run_of
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
from vlmrl.scoring.answer_forms import form_of

__all__ = ["Dtype", "ServedModel"]

Dtype = Literal["float32", "bfloat16"]
"""A type of weights, in which a model computes."""


class ServedModel:
    """A checkpoint folder, a run folder (its best checkpoint) or a hub name, loaded to be asked.

    Raises:
        UserError: there is no such model, or the engine cannot start with it.
    """

    rates: ClassVar[bool] = False

    def __init__(self, model: str, engine: PluginRef, dtype: Dtype = "float32") -> None:
        self._run, folder = run_of(model)
        settings = ModelConfig(path=folder, dtype=dtype)
        self._policy = Policy(*load_model(settings), settings)
        for (
            parameter
        ) in self._policy.base.parameters():  # nothing trains: all are stored in `dtype`
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
        if self._run is None:
            return self.prompt(sample, access)
        source = self._run.data.train[0]
        try:
            row = open_source(source, access_of(self._run.data)).sample(0)
        except UserError as error:
            raise UserError(
                f"the run asks as its data do, and these cannot be read: {error}; --plain asks the "
                "question alone"
            ) from error
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

    def tokenize(self, text: str, special: bool) -> list[int]:
        """Return the ids of a text, with the tokens that begin and end one if `special`."""
        found = self._policy.tokenizer(text, add_special_tokens=special)["input_ids"]
        return [int(token) for token in found]

    def grade(self, ids: Sequence[int], sample: Sample) -> tuple[tuple[int, ...], list[float]]:
        """Return the ids of a text with its media expanded, and the log-probs of its last ones.

        `ids` are compact, and `sample` holds their media. Graded, at temperature 1, is all that follows
        the last medium, without media all but the first token.

        Raises:
            UserError: the ids are not this model's, or too many; a medium cannot be read.
        """
        policy, family, processor = self._policy, self._policy.family, self._policy.processor
        marks = {*family.media_token_ids(processor)}
        start = max((place for place, token in enumerate(ids) if token in marks), default=0) + 1
        before, after = tuple(ids[:start]), tuple(ids[start:])
        config = policy.base.config.get_text_config()
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
        if (length := len(encoded.ids) + len(after)) > config.max_position_embeddings:
            raise UserError(
                f"{length} tokens: the model reads at most {config.max_position_embeddings}"
            )
        prompt = Prompt(sample, "", encoded, family.frame(processor, None), tuple(media))
        ones = torch.ones(1, len(after))
        row = torch.zeros(1, dtype=torch.long)
        told = torch.tensor([after]), ones.bool(), ones, ones, torch.ones(1)
        with torch.no_grad():
            found, _ = completion_logprobs(
                policy.base, family, MicroBatch((prompt,), row, *told), 1.0, policy.pad_id
            )
        return (*encoded.ids, *after), found[0].tolist()

    def answer(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Return `sampling.n` completions for each prompt.

        Raises:
            UserError: a prompt is too long for the model or the engine, or holds too many media.
        """
        longest = self._policy.base.config.get_text_config().max_position_embeddings
        for prompt in prompts:
            length = len(prompt.encoded.ids)
            if length + sampling.max_tokens > longest:
                raise UserError(
                    f"a prompt of {length} tokens and an answer of up to {sampling.max_tokens}: the model "
                    f"reads at most {longest}"
                )
            self._options.require_room(self._policy, prompt, sampling.max_tokens)
        return list(self._engine.generate(PromptBatch(tuple(prompts)), sampling).completions)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()
