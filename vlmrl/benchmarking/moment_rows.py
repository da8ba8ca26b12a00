"""The sentences of annotations that list them by video, as rows of a benchmark.

{"3MSZA": {"duration": 30.96, "timestamps": [[24.3, 30.4]], "sentences": ["person turns on a light."]}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlmrl.data.files.rows import WHERE
from vlmrl.errors import UserError
from vlmrl.system.atomic_files import read_json

__all__ = ["moment_rows"]


def moment_rows(file: Path) -> list[dict[str, Any]]:
    """Return one row a sentence: `video`, `sentence`, `number`, `duration` and `timestamp` in seconds.

    Raises:
        UserError: there is no such file, or it is not of this form.
    """
    videos = read_json(file)
    try:
        return [
            {
                **{"video": video, "sentence": str(sentence), "number": number},
                **{"duration": float(one["duration"]), "timestamp": [*map(float, span)]},
                WHERE: f"{file.name} {video} item {number}",
            }
            for video, one in videos.items()
            for number, (sentence, span) in enumerate(
                zip(one["sentences"], one["timestamps"], strict=True)
            )
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file}: expected an object of videos with duration, timestamps and sentences: {error!r}"
        ) from error
