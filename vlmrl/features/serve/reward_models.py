"""Models that rate and do not write: reward models, and CLIP or SigLIP; which kind a checkpoint is.

A reward model rates the last turn of a conversation with a head of one number. The number is the head's at
the last token of the conversation as the chat template writes it, without
the start of another turn: transformers' sequence classifiers with one label, and value heads as TRL and
LLaMA-Factory store them (`v_head.summary`, in a file of its own or among the weights), as Skywork-VL-Reward
has it.

CLIP and SigLIP say how alike images and texts are. A question is one turn with both; the reply is one JSON
object with two tables [images][texts]: `cosine` of their embeddings, and `logits`, which is the cosine scaled
(and, in SigLIP, shifted) as the model learned it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig, ProcessorMixin

from vlmrl.answers import templates
from vlmrl.assemble.trained_run import run_of
from vlmrl.config import ModelConfig, PluginRef
from vlmrl.engines.base import Sampling
from vlmrl.engines.prompt_rows import prefill
from vlmrl.errors import UserError
from vlmrl.features.serve.asked_model import Answers, Dtype, ServedModel
from vlmrl.media.access import Access, Reading
from vlmrl.media.decode import decode
from vlmrl.models.base import family_of
from vlmrl.models.chat import break_special_tokens, list_messages
from vlmrl.models.loading import Loaded, load_model
from vlmrl.models.stored_heads import Head, find_value_head
from vlmrl.policy.policy import Policy
from vlmrl.policy.trainable import narrow
from vlmrl.schema import Completion, Encoded, Frame, Media, Prompt, Sample
from vlmrl.schema.media import PilImage


class ComparedModel:
    """A dual encoder from a folder or a hub name.

    Raises:
        UserError: the folder lacks weights, or cannot be read.
    """

    rates: ClassVar[bool] = False

    def __init__(self, folder: str, dtype: Dtype) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            loaded, report = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True
            )
            self._processor: Any = transformers.AutoProcessor.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be used: {' '.join(str(error).split())}") from error
        if missing := sorted(report["missing_keys"]):
            raise UserError(f"{folder} lacks {len(missing)} weights, e.g. {missing[0]}")
        low = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        self._model: Any = loaded.eval().to(device, low)
        # SigLIP was trained on texts padded to its length, and reads the padding.
        self._padding = "longest" if loaded.config.model_type == "clip" else "max_length"

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        """Return the images and texts of the one turn.

        Raises:
            UserError: there is no image or no text, a medium is no image, or there are more turns.
        """
        texts = [part for part in sample.parts if isinstance(part, str)]
        if sample.history or sample.system or not texts or not sample.media:
            raise UserError("expected one user turn with at least one image and one text")
        media = decode(sample, access)
        if not all(isinstance(medium, PilImage) for medium in media):
            raise UserError("this model compares images: expected no video and no audio")
        nothing = Encoded((), (), {}, torch.zeros(1, 0, dtype=torch.long), 0)
        return Prompt(sample, "\n".join(texts), nothing, Frame(), tuple(media))

    def answer(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Return the tables of each prompt; all of them are computed in one pass."""
        texts = [[p for p in prompt.sample.parts if not isinstance(p, Media)] for prompt in prompts]
        inputs = self._processor(
            text=[text for own in texts for text in own],
            images=[medium for prompt in prompts for medium in prompt.media],
            padding=self._padding,
            truncation=True,  # CLIP reads 77 tokens
            return_tensors="pt",
        ).to(self._model.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self._model.dtype)
        with torch.no_grad():
            out = self._model(**inputs)
        cosine = out.image_embeds.float() @ out.text_embeds.float().T
        tables = {"cosine": cosine.cpu(), "logits": out.logits_per_image.float().cpu()}
        answers, row, column = [], 0, 0
        for prompt, own in zip(prompts, texts, strict=True):
            rows, columns = slice(row, row + len(prompt.media)), slice(column, column + len(own))
            scores = {name: table[rows, columns].tolist() for name, table in tables.items()}
            completion = templates.completion(json.dumps(scores), "none", Frame())
            answers.append((completion,) * sampling.n)
            row, column = rows.stop, columns.stop
        return answers

    def close(self) -> None:
        """Nothing is to be freed before the process ends."""


class Rater(Protocol):
    """A base with its head."""

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        """Encode a conversation."""

    def rate(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Return a score [P] for each, float32."""


class RatedModel:
    """A reward model from a folder or a hub name; its completions are the scores, as JSON numbers.

    Raises:
        UserError: its head has more than one label, or its base is none that we know.
    """

    rates: ClassVar[bool] = True

    def __init__(self, folder: str, dtype: Dtype, head: Head | None) -> None:
        if head is None and transformers.AutoConfig.from_pretrained(folder).num_labels != 1:
            raise UserError(f"{folder}: expected a head of one label, which is the score")
        self._rater = _rater(folder, dtype, head)

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        """Return a conversation whose last turn is to be rated.

        Raises:
            UserError: a medium cannot be read, or the model cannot be shown it.
        """
        return self._rater.prompt(sample, access)

    def answer(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[tuple[Completion, ...]]:
        """Return the score of each, as text; it is the same `sampling.n` times."""
        scores = self._rater.rate(prompts).tolist()
        completions = [templates.completion(json.dumps(score), "none", Frame()) for score in scores]
        return [(completion,) * sampling.n for completion in completions]

    def close(self) -> None:
        """Nothing is to be freed before the process ends."""


def _rater(folder: str, dtype: Dtype, head: Head | None) -> Rater:
    settings = ModelConfig(path=folder, dtype=dtype)
    if head is not None:
        return _FamilyRater(load_model(settings), head, settings)
    config = transformers.AutoConfig.from_pretrained(folder)
    loaded, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True
    )
    model: Any = loaded
    if missing := sorted(report["missing_keys"]):  # transformers fills them with random numbers
        raise UserError(f"{folder} lacks {len(missing)} weights, e.g. {missing[0]}")
    if not hasattr(config, "vision_config"):
        return _TextRater(model.eval(), folder, dtype)
    processor, family = (
        transformers.AutoProcessor.from_pretrained(folder),
        family_of(config.model_type),
    )
    family.adopt(processor, config)
    own, model.score = model.score, torch.nn.Identity()
    none = torch.zeros(1) if own.bias is None else own.bias
    return _FamilyRater(Loaded(model.eval(), processor, family), Head(own.weight, none), settings)


class _FamilyRater:
    """A head on a model of one of our families, which may be shown media."""

    def __init__(self, loaded: Loaded, head: Head, settings: ModelConfig) -> None:
        self._policy = Policy(*loaded, settings)
        for parameter in self._policy.base.parameters():
            parameter.requires_grad_(False)
            parameter.data = narrow(parameter, settings)
        self._head = Head(head.weight.detach(), head.bias.detach())
        hidden = self._policy.base.config.get_text_config().hidden_size
        if head.weight.shape[1] != hidden:
            raise UserError(f"the value head has {head.weight.shape[1]} inputs, its base {hidden}")

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        policy = self._policy
        media = decode(sample, access, Reading(with_audio=policy.family.hears_videos))
        messages = list_messages(policy.family, policy.tokenizer, sample, "")
        messages[-1]["role"] = "assistant"
        text = ProcessorMixin.apply_chat_template(
            policy.processor, messages, tokenize=False, add_generation_prompt=False
        )
        encoded = policy.family.encode(policy.processor, str(text), media)
        return Prompt(sample, str(text), encoded, Frame(), tuple(media))

    def rate(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        with self._policy.generating():
            hidden = prefill(self._policy, prompts)[1]
        return self._head(hidden).cpu()


class _TextRater:
    """One of transformers' sequence classifiers, which reads text alone."""

    def __init__(self, model: Any, folder: str, dtype: Dtype) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(device, torch.bfloat16 if dtype == "bfloat16" else torch.float32)
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        if self._tokenizer.chat_template is None:
            raise UserError(
                f"{folder}: its tokenizer has no chat template to write a conversation with"
            )

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        if sample.media:
            raise UserError("this reward model reads text alone: expected no media")
        turns = [(turn.role, turn.parts) for turn in sample.turns]
        turns[-1] = ("assistant", turns[-1][1])
        if sample.system:
            turns.insert(0, ("system", (sample.system,)))  # type: ignore[arg-type]
        messages = [
            {
                "role": role,
                "content": "".join(map(str, break_special_tokens(parts, self._tokenizer))),
            }
            for role, parts in turns
        ]
        text = str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        ids = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        encoded = Encoded(ids, ids, {}, torch.arange(len(ids))[None], len(ids))
        return Prompt(sample, text, encoded, Frame())

    def rate(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        # One at a time: which token is the last depends on the padding token, if there is any.
        with torch.no_grad():
            rows = [torch.tensor([p.encoded.ids], device=self._model.device) for p in prompts]
            return torch.stack([self._model(row).logits[0, 0].float().cpu() for row in rows])


DUAL_ENCODERS = ("clip", "siglip", "siglip2")
"""Model types whose images and texts have one space."""
CLASSIFIER = "ForSequenceClassification"


def open_model(model: str, dtype: Dtype) -> Answers:
    """Load a checkpoint as its config says.

    Raises:
        UserError: there is no such model, or it brings code of its own.
    """
    folder = run_of(model)[1]
    config = _config_of(folder)
    kind, made = config.get("model_type"), " ".join(config.get("architectures") or ())
    if kind in DUAL_ENCODERS:
        return ComparedModel(folder, dtype)
    if kind is not None and kind not in CONFIG_MAPPING:
        raise UserError(
            f"{model}: {made or kind} brings code of its own, which is not run: expected an architecture "
            "that transformers has"
        )
    head = find_value_head(folder) if config else None
    if head is not None or CLASSIFIER in made:
        return RatedModel(folder, dtype, head)
    return ServedModel(model, PluginRef(name="hf"), dtype)


def _config_of(folder: str) -> Mapping[str, Any]:
    """Return what config.json says; empty where there is none, which loading will say better."""
    try:
        config: Mapping[str, Any] = PretrainedConfig.get_config_dict(folder)[0]
        return config
    except (OSError, ValueError):
        return {}
