"""CLIP or SigLIP: how alike images and texts are.

A question is one turn with images and texts; the reply is one JSON object with two tables [images][texts]:
`cosine` of their embeddings, and `logits`, which is the cosine scaled (and, in SigLIP, shifted) as the
model learned it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import transformers

from vlmrl.answers import templates
from vlmrl.commands.serving.asked_model import Dtype
from vlmrl.engines.base import Sampling
from vlmrl.errors import UserError
from vlmrl.media.access import Access
from vlmrl.media.decode import decode
from vlmrl.media_types import PilImage
from vlmrl.schema import Completion, Encoded, Frame, Media, Prompt, Sample

__all__ = ["ComparedModel"]


class ComparedModel:
    """A dual encoder from a folder or a hub name.

    Raises:
        UserError: the folder lacks weights, or cannot be read.
    """

    rates: ClassVar[bool] = False

    def __init__(self, folder: str, dtype: Dtype) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            found, report = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True
            )
            self._processor: Any = transformers.AutoProcessor.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be used: {' '.join(str(error).split())}") from error
        if missing := sorted(report["missing_keys"]):
            raise UserError(f"{folder} lacks {len(missing)} weights, e.g. {missing[0]}")
        low = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        self._model: Any = found.eval().to(device, low)
        # SigLIP was trained on texts padded to its length, and reads the padding.
        self._padding = "longest" if found.config.model_type == "clip" else "max_length"

    def prompt(self, sample: Sample, access: Access) -> Prompt:
        """Return the images and texts of the one turn.

        Raises:
            UserError: there is no image or no text, a medium is no image, or there are more turns.
        """
        texts = [part for part in sample.parts if isinstance(part, str)]
        if sample.history or sample.system or not texts or not sample.media:
            raise UserError("expected one turn of the user's, with at least one image and one text")
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
        found, row, column = [], 0, 0
        for prompt, own in zip(prompts, texts, strict=True):
            rows, columns = slice(row, row + len(prompt.media)), slice(column, column + len(own))
            said = {name: table[rows, columns].tolist() for name, table in tables.items()}
            completion = templates.completion(json.dumps(said), "none", Frame())
            found.append((completion,) * sampling.n)
            row, column = rows.stop, columns.stop
        return found

    def close(self) -> None:
        """Nothing is to be freed before the process ends."""
