"""Video-MMMU: lectures, and questions that need what they teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlmrl.benchmarking.base import Benchmark, Official, Strict
from vlmrl.benchmarking.prompts import VIDEO_R1_LETTER, VIDEO_R1_NUMBER
from vlmrl.benchmarking.rows import file_of

ADAPT = (
    "You should watch and learn the video content. Then apply what you learned to answer the following "
    "{} question. The image for this question is at the end of the video.\n"
)
"""Before the questions of the track Adaptation."""
DISCIPLINES = {
    subject: discipline
    for discipline, subjects in (
        ("Art", "Art Art_Theory Design Music"),
        ("Science", "Biology Chemistry Geography Math Physics"),
        ("Humanities", "History Literature Sociology Psychology"),
        (
            "Engineering",
            "Agriculture Architecture_and_Engineering Computer_Science Electronics Energy_and_Power "
            "Materials Mechanical_Engineering",
        ),
        (
            "Medicine",
            "Basic_Medical_Science Clinical_Medicine Diagnostics_and_Laboratory_Medicine Pharmacy "
            "Public_Health",
        ),
        ("Business", "Accounting Economics Finance Manage Marketing"),
    )
    for subject in subjects.split()
}
"""Folder of the videos by subject."""


@dataclass(frozen=True)
class VideoMmmu(Benchmark):
    """Video-MMMU: the mean of its three tracks (perception, comprehension, adaptation), 300 questions each.

    lmms-eval prints each track (the group `track`), and leaves empty open answers out of it.

    Source: Hu et al. 2025, arXiv 2501.13826; lmms-eval tasks/videommmu; Video-R1 src/eval_bench.py.
    """

    origin: ClassVar[str] = "https://huggingface.co/datasets/lmms-eval/VideoMMMU"
    licence: ClassVar[str] = "see the data set's page"
    hub: ClassVar[str] = "lmms-eval/VideoMMMU"
    checked: ClassVar[str] = "count, files and columns: hub card of lmms-lab/VideoMMMU; 2026-11"
    count: ClassVar[int] = 900
    files: ClassVar[tuple[str, ...]] = ("Perception", "Comprehension", "Adaptation")
    columns: ClassVar[Mapping[str, str]] = {
        "id": "name",
        "video": "file",
        "question": "question",
        "options": "texts",
        "choice": "letter",
        "answer": "text",
        "rewards": "judged_by",
    }
    cluster: ClassVar[str] = "id"
    groups: ClassVar[tuple[str, ...]] = ("track", "subject")
    officials: ClassVar[tuple[Official, ...]] = (
        Official(
            "lmms_eval@0.7.3",
            ask="{before}{question}\n{options}{after}",
            ask_open="{before}{question}",
            max_tokens=1024,
            scorer="video_mmmu",
            aggregate="mean_of_groups",
            by="track",
        ),
        Official(
            "video_r1@59d65c3",
            ask=VIDEO_R1_LETTER,
            ask_open=VIDEO_R1_NUMBER,
            max_tokens=1024,
            scorer="video_r1",
            template="think_answer",
            whole=True,
        ),
    )
    strict: ClassVar[Strict] = Strict("choice", {}, aggregate="mean_of_groups", by="track")

    def adapt(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the track, the video's file, the options without letters, and the words around the question."""
        track, subject = file_of(row).parent.name, "_".join(row["id"].split("_")[1:-1])
        plain = [str(option) for option in row["options"] or ()]
        lettered = all(option.startswith(f"{chr(65 + at)}.") for at, option in enumerate(plain))
        texts = [option[2:].strip() for option in plain] if lettered else plain
        choice = row["question_type"] == "multiple-choice"
        before, after = "", "\nPlease ignore the Quiz question in last frame of the video."
        if track == "Adaptation":
            before, after = ADAPT.format("multi-choice" if choice else "open-ended"), ""
        return {
            **row,
            "track": track,
            "subject": subject,
            "name": f"{track} {row['id']}",
            "before": before,
            "after": after,
            "file": f"{DISCIPLINES[subject]}/{row['id']}.mp4",
            "texts": texts if choice else None,
            "letter": row["answer"] if choice else None,
            "text": None if choice else row["answer"],
            "judged_by": None if choice else "exact",
        }
