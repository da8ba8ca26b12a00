"""Benchmarks: published layouts are read, official and strict numbers equal hand-computed ones."""

from __future__ import annotations

import csv
import functools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL.Image import Image as PilImage

from helpers import small
from helpers.benchmark_runs import judged, opened, run, scored
from helpers.published import CASES, ROWS, write_published
from vlmrl import plugins
from vlmrl.benchmarking import scoring
from vlmrl.benchmarking.aggregates import AGGREGATES, Rows, estimate, statistic_of
from vlmrl.benchmarking.base import BenchmarkCard, open_benchmark
from vlmrl.benchmarking.scorers import SCORERS
from vlmrl.benchmarking.scoring import Result
from vlmrl.data.source import Source
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.comparison import estimate_difference
from vlmrl.features.benchmarks.export import export_answers
from vlmrl.features.verify.attack_bench import FRAGMENTS
from vlmrl.media.access import Access
from vlmrl.media.decode import decode
from vlmrl.schema import Frame, Sample
from vlmrl.schema.media import Audio

NAMES = plugins.names("benchmark")
HARNESSES = ("lmms_eval", "vlmevalkit", "r1_v", "med_r1", "cls_rl", "visual_rft", "q_insight")
HARNESSES += ("cocoeval", "lviseval", "videochat_r1", "video_r1", "r1_aqa", "human_omni")
HARNESSES += ("mmau", "next_gqa", "daily_omni")
HARNESSES += ("mmbench_gui", "coat", "gui_odyssey", "ui_vision", "os_atlas", "time_r1")
HARNESSES += ("moment_detr", "robospatial", "mmau_pro")
HARNESSES += ("charxiv",)
FRAME = Frame(640, 480, duration=60.0)


def values(result: Result) -> dict[str, float]:
    return {name: round(figure.value, 6) for name, figure in result.figures.items()}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate the intervals of scored rows, which no test here reads, from two draws."""
    monkeypatch.setattr(scoring, "estimate", functools.partial(estimate, resamples=2))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_declares_all_that_a_number_needs(name: str) -> None:
    benchmark = plugins.load("benchmark", name)
    assert benchmark.origin.startswith("https://") and benchmark.licence and benchmark.hub
    assert "20" in benchmark.checked, "what was compared with which source, and when"
    assert benchmark.count > 0
    plugins.build("verifier", benchmark.strict.verifier, benchmark.strict.options)
    for official in benchmark.officials:
        harness, _, version = official.protocol.partition("@")
        assert harness in HARNESSES and version
        assert official.ask
        also = {name.partition(" by ")[0] for name in (*official.also, *benchmark.strict.also)}
        assert {official.aggregate, benchmark.strict.aggregate, *also} <= set(AGGREGATES)
        assert official.max_tokens > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_published_layout_is_read_and_asked_by_every_protocol(
    tmp_path: Path, name: str
) -> None:
    assert name in ROWS, f"write a few rows of {name} to tests/data/benchmarks/{name}.json"
    for number, protocol in enumerate(open_benchmark(name, "").protocols()):
        source = opened(tmp_path / str(number), name, protocol)
        published = CASES.get(name, {}).get("published", len(ROWS[name]))
        assert source.rows.published == published  # type: ignore[attr-defined]
        for index in range(len(source.rows)):
            sample = source.sample(index)
            assert sample.media
            asked = " ".join(part for part in sample.parts if isinstance(part, str))
            assert asked and not re.search(r"\{[a-z]\w+\}", asked)
            assert sample.truth.stated()


def test_published_audio_and_images_can_be_decoded(tmp_path: Path) -> None:
    sample = opened(tmp_path, "omnibench", "lmms_eval").sample(0)
    image, audio = decode(sample, Access())
    assert isinstance(image, PilImage) and image.size == (96, 64)
    assert isinstance(audio, Audio) and audio.duration > 0.1


CLONES = {
    "mmstar": ("mmstar.parquet",),
    "cv_bench": ("test_2d.parquet", "test_3d.parquet"),
    "docvqa": ("DocVQA/validation-00000-of-00001.parquet",),
    "infovqa": ("InfographicVQA/validation-00000-of-00001.parquet",),
    "videomme": ("videomme/test-00000-of-00001.parquet",),
}
"""Files of the clones whose data is neither in `data` nor named after the split alone."""


@pytest.mark.parametrize("name", CLONES)
def test_a_clone_of_the_published_data_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    benchmark = plugins.load("benchmark", name)
    data = write_published(tmp_path, name, benchmark.split, ROWS[name])
    (written,) = data.glob("data/*.parquet")
    for file in CLONES[name]:
        (data / file).parent.mkdir(exist_ok=True)
        (data / file).write_bytes(written.read_bytes())
    (data / "test_2d.jsonl").write_text('{"question": "without an image"}')
    for other in ("DocVQA", "InfographicVQA"):
        (data / other).mkdir(exist_ok=True)
    written.unlink()
    rows = BenchmarkCard(open_benchmark(name, str(data)), "ours").rows(benchmark.split)
    assert len(rows) == len(ROWS[name]) * len(CLONES[name])


@pytest.mark.slow
def test_no_answer_ends_an_official_rule(tmp_path: Path) -> None:
    scorers = {
        official.scorer: (name, official.protocol)
        for name in NAMES
        for official in open_benchmark(name, "").officials
    }
    for scorer, (name, protocol) in scorers.items():
        sample = opened(tmp_path / scorer, name, protocol).sample(0)
        for fragment in ("", *FRAGMENTS):
            score = SCORERS[scorer](fragment * (2048 // max(1, len(fragment))), sample, FRAME)
            assert score.value is None or 0 <= score.value <= 1, (scorer, fragment)


HAND = [(name, protocol) for name, case in CASES.items() for protocol in case["hand"]]


@pytest.mark.parametrize(("name", "protocol"), HAND)
def test_rows_scored_by_hand(tmp_path: Path, name: str, protocol: str) -> None:
    case = CASES[name]
    given = case["hand"][protocol]
    result = scored(tmp_path, name, protocol, [answer for answer, *_ in given])
    found = [[row.text, row.official, row.strict] for row in result.rows]
    assert found == [[answer, *map(pytest.approx, scores)] for answer, *scores in given]
    wanted = case.get("figures", {}).get(protocol, {})
    assert {key: values(result)[key] for key in wanted} == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_prompt_is_the_harness_s(tmp_path: Path, name: str) -> None:
    for protocol, wanted in CASES[name]["asked"].items():
        parts = opened(tmp_path / protocol, name, protocol).sample(0).parts
        assert "".join(p if isinstance(p, str) else "<IMAGE>" for p in parts) == wanted


GRID = str([[x, y, x + 200, y + 200] for x in range(0, 801, 100) for y in range(0, 801, 100)])
GAMES = ["", "A B C D E F", " ".join(map(str, range(101))), "yes no Yes No", GRID]


@pytest.mark.parametrize("name", CASES)
def test_gaming_pays_nothing_by_the_strict_number(tmp_path: Path, name: str) -> None:
    source = opened(tmp_path, name, "ours")
    asked = [" ".join(p for p in one.parts if isinstance(p, str)) for one in samples(source)]
    result = judged(source, "ours", [*asked, *(game for game in GAMES for _ in asked)])
    assert [(row.text, row.strict) for row in result.rows if row.strict != 0] == []


@pytest.mark.parametrize("name", ["docvqa", "infovqa", "ocrbench"])
def test_short_junk_is_no_transcription_by_the_strict_number(tmp_path: Path, name: str) -> None:
    source = opened(tmp_path, name, "ours")
    games = ["A B C D E F G", "yes no", "x", "none", "0123456789", "o"]
    result = judged(source, "ours", [game for game in games for _ in range(len(source.rows))])
    assert [(row.text, row.strict) for row in result.rows if row.strict != 0] == []


@pytest.mark.parametrize(
    ("name", "answers", "unread"),
    [
        ("refcoco", ["", "on the left", "[0, 0, 1", '{"bbox_2d": [0, 0, 1, 1]}'], 0.75),
        ("ai2d", ["", "who knows", "A"], 2 / 3),
    ],
)
def test_where_only_the_strict_rule_runs_unread_is_what_it_cannot_read(
    tmp_path: Path, name: str, answers: list[str], unread: float
) -> None:
    source = opened(tmp_path, name, "ours")
    asked = [answer for answer in answers for _ in source.rows]
    assert judged(source, "ours", asked).unread == pytest.approx(unread)


def test_a_list_of_times_is_no_moment_by_the_strict_number(tmp_path: Path) -> None:
    times = " ".join(f"{start} to {start + 5}" for start in range(0, 100, 5))
    source = opened(tmp_path, "charades_sta", "ours")
    result = judged(source, "ours", [times] * len(source.rows))
    assert [row.strict for row in result.rows] == [0.0] * len(source.rows)


CONSTANTS = ["A", "B", "C", "yes", "no", "0", "1", "2", "3", "[0, 0, 1000, 1000]", "[500, 500]"]


@pytest.mark.parametrize("name", CASES)
def test_the_best_constant_answer(tmp_path: Path, name: str) -> None:
    """What one answer to all rows of the fixture pays at most, by the first protocol and by us."""
    protocol = next(iter(CASES[name]["hand"]))
    source, paid = opened(tmp_path, name, protocol), []
    for answer in CONSTANTS:
        result = judged(source, protocol, [answer] * len(source.rows))
        figures = result.figures
        paid.append([figures[name].value for name in ("official", "strict") if name in figures])
    best = [max(pays) for pays in zip(*paid, strict=True)]
    assert best == pytest.approx(CASES[name]["best_constant"], abs=1e-4)


def samples(source: Source) -> list[Sample]:
    return [source.sample(index) for index in range(len(source.rows))]


def test_chartqa_by_hand(tmp_path: Path) -> None:
    """The answers that lmms-eval 0.7.3 scored with 0.75 when it replayed them from a log."""
    answers = ["104", "2010", "yes.", "0.12"]
    result = scored(tmp_path, "chartqa", "lmms_eval", answers)
    assert result.protocol == "lmms_eval@0.7.3"
    assert values(result) == {"official": 0.75, "strict": 0.5}
    rows = [(row.official, row.strict) for row in result.rows]
    assert rows == [(1, 1), (1, 0), (0, 1), (1, 0)]
    assert result.disagreeing == 3
    groups = {
        value: values_of["official"].value for value, values_of in result.groups["type"].items()
    }
    assert groups == {"augmented_test": 0.5, "human_test": 1.0}


def test_only_the_answer_of_a_template_is_scored(tmp_path: Path) -> None:
    answers = ["<think>A? no, 2</think><answer>B</answer>", "<think>D</think>", "A", "B"]
    result = scored(tmp_path, "ai2d", "lmms_eval", answers, "think_answer")
    assert [row.answer for row in result.rows] == ["B", None, None, None]
    assert [row.official for row in result.rows] == [0, 0, 0, 0]
    result = scored(tmp_path / "again", "ai2d", "vlmevalkit", ["A", "(B)", "A b", "b"])
    assert [row.official for row in result.rows] == [1, 1, 0, 0]


def test_mme_adds_accuracy_and_whole_pairs(tmp_path: Path) -> None:
    answers = ["Yes.", "no", "yes", "yes", "No", "No"]
    result = scored(tmp_path, "mme", "lmms_eval", answers)
    # color: 3 of 4 right, 1 of 2 pairs: 75 + 50; OCR: 1 of 2 right, no pair: 50
    assert values(result)["official"] == 175
    assert opened(tmp_path / "b", "mme", "lmms_eval").sample(0).parts[-1] == (
        "Is it red?\nAnswer the question using a single word or phrase."
    )


def test_pope_counts_accuracy_and_f1(tmp_path: Path) -> None:
    result = scored(tmp_path, "pope", "lmms_eval", ["yes", "Yes.", "no", "no"])
    assert values(result)["official"] == 0.5
    assert values(result)["official f1"] == pytest.approx(2 / 3, abs=1e-6)
    result = scored(tmp_path / "b", "pope", "vlmevalkit", ["yes", "Yes.", "no", "no"])
    assert values(result)["official"] == 0.5  # one of two said, one of two true


def test_gaming_answers_are_paid_by_harnesses_and_not_by_us(tmp_path: Path) -> None:
    digits = " ".join(map(str, range(21)))
    result = scored(tmp_path, "countbench", "vlmevalkit", [digits] * 3)
    assert values(result) == {"official": 1.0, "strict": 0.0}
    result = scored(tmp_path, "ocrbench", "lmms_eval", ["x^2 centre of all", "a centre, b"])
    assert values(result)["official"] == 1.0 and values(result)["strict"] < 0.6


def test_a_wrong_number_of_rows_is_an_error(tmp_path: Path, checkpoint: Path) -> None:
    write_published(tmp_path, "chartqa", "test", ROWS["chartqa"])
    done = run(checkpoint, tmp_path, tmp_path / "out", "--benchmark", "chartqa")
    assert "expected 2500 rows in split 'test', got 4" in str(done.exception)


def test_other_splits_are_opened_by_name() -> None:
    one = open_benchmark("refcoco:testB", "")
    assert (one.split, one.count) == ("testB", 1810)
    with pytest.raises(UserError, match=r"'refcoco' has no split 'minival'; it has: testA, "):
        open_benchmark("refcoco:minival", "")


def test_an_unknown_protocol_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'ai2d' has no protocol 'lmms'.*lmms_eval@0.7.3.*ours"):
        opened(tmp_path, "ai2d", "lmms")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "step-1"
    small.policy().save(str(folder))
    return folder


@pytest.mark.slow
def test_an_evaluation_goes_on_where_it_was_stopped(tmp_path: Path, checkpoint: Path) -> None:
    for name in ("chartqa", "ai2d"):
        write_published(tmp_path, name, "test", ROWS[name])
    more = ("--benchmark", "chartqa,ai2d", "--limit", "4", "--batch-size", "2", "--max-tokens", "4")
    done = run(checkpoint, tmp_path, tmp_path / "out", *more)
    assert done.exit_code == 0, done.exception
    stored = tmp_path / "out/chartqa/answers.jsonl"
    whole = stored.read_text()
    result = json.loads((tmp_path / "out/chartqa/result.json").read_text())
    assert result["manifest"]["rows"] == 4 and len(result["manifest"]["weights_sha256"]) == 64
    stored.write_text("".join(whole.splitlines(keepends=True)[:3]))
    assert run(checkpoint, tmp_path, tmp_path / "out", *more).exit_code == 0
    assert stored.read_text() == whole
    refused = run(checkpoint, tmp_path, tmp_path / "out", *more[:-1], "5")
    assert "given with another max_tokens: expected 5, got 4" in str(refused.exception)


def test_exported_answers_are_what_the_rule_was_given(tmp_path: Path) -> None:
    answers = ["<think>A</think><answer>B</answer>", "no tags", "<answer>C</answer>", ""]
    source = opened(tmp_path, "ai2d", "lmms_eval", "think_answer")
    result = judged(source, "lmms_eval", answers)
    log = json.loads(export_answers("lmms_eval", tmp_path, source, result).read_text())
    assert log["model_configs"] == {"task": "ai2d"}
    assert log["logs"][0] == {"doc_id": 0, "resps": [["B"]]} and len(log["logs"]) == 4
    with pytest.raises(UserError, match=r"--export vlmevalkit: expected --protocol vlmevalkit"):
        export_answers("vlmevalkit", tmp_path, source, result)
    refused = opened(tmp_path, "path_vqa", "vlmevalkit")
    with pytest.raises(UserError, match="'path_vqa' has no task of vlmevalkit"):
        export_answers("vlmevalkit", tmp_path, refused, judged(refused, "vlmevalkit", ["yes"]))


def test_vlmevalkit_is_handed_a_data_set_and_its_predictions(tmp_path: Path) -> None:
    answers = [
        "<think>A</think><answer>B</answer>",
        '<answer>a\tb\n"c"</answer>',
        "<answer>None</answer>",
        "",
    ]
    for name, given in (("ai2d", answers), ("pope", ["<answer>yes</answer>"] * 4)):
        source = opened(tmp_path, name, "vlmevalkit", "think_answer")
        result = judged(source, "vlmevalkit", given)
        script = export_answers("vlmevalkit", tmp_path / "out", source, result)
    assert "--data AI2D_TEST_ai2d POPE_pope " in script.read_text()
    table = tmp_path / "out/vlmrl/T20000101-000000/vlmrl_AI2D_TEST_ai2d.tsv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    assert [row["prediction"] for row in rows] == ["B", 'a\tb\n"c"', "None ", " "]
    assert [rows[1][key] for key in ("index", "A", "D", "E", "answer")] == [
        "2",
        "a fox",
        "3",
        "",
        "B",
    ]
    with (tmp_path / "out/LMUData/POPE_pope.tsv").open(newline="") as file:
        assert [r["answer"] for r in csv.DictReader(file, dialect="excel-tab")] == ["Yes", "No"] * 2


# --------------------------------------------------------------------------------- intervals


def drawn(draw: np.random.Generator, aggregate: str, count: int = 120) -> tuple[Rows, list[str]]:
    """Rows in clusters of two whose scores depend on each other, in three groups."""
    cluster = np.repeat(np.arange(count // 2), 2)
    easy = draw.beta(2, 2, count // 2)[cluster]
    scores = (draw.random(count) < easy).astype(float)
    right = np.where(draw.random(count) < 0.5, "yes", "no")
    said = np.where(scores == 1, right, np.where(right == "yes", "no", "yes"))
    by = [f"{'abc'[int(c) % 3]}/{c}" if aggregate in PAIRED else "abc"[int(c) % 3] for c in cluster]
    return Rows(scores, by, [str(s) for s in said], [str(r) for r in right]), [
        str(c) for c in cluster
    ]


PAIRED = ("sum_of_pairs", "all_of_groups")
TRUE = {
    "mean": 0.5,
    "mean_of_groups": 0.5,
    "mean_of_groups_of_parts": 0.5,
    "f1": 0.5,
    "sum_of_pairs": 3 * (50 + 30),
    "all_of_groups": 0.3,
    **{f"recall_at_{threshold}": 0.5 for threshold in (0.3, 0.5, 0.7)},
}
"""What the aggregates are of the distribution that `drawn` draws from: P(both right) = E[p^2] = 0.3."""


def coverage(aggregate: str, sets: int, resamples: int) -> float:
    """Share of data sets whose 95 % interval holds the truth."""
    draw, inside = np.random.default_rng(0), 0
    for seed in range(sets):
        rows, clusters = drawn(draw, aggregate)
        _, low, high = estimate(aggregate, rows, clusters, resamples=resamples, seed=seed)
        inside += low <= TRUE[aggregate] <= high
    return inside / sets


def paired_coverage(aggregate: str, sets: int, resamples: int) -> float:
    """Share of pairs of data sets with the same clusters whose interval holds a difference of 0."""
    draw, inside = np.random.default_rng(1), 0
    for seed in range(sets):
        pair = [statistic_of(aggregate, *drawn(draw, aggregate)) for _ in range(2)]
        (first, count), (second, _) = pair
        low, high = estimate_difference([first], [second], count, resamples, seed)[3:]
        inside += low <= 0 <= high
    return inside / sets


@pytest.mark.parametrize("aggregate", sorted(TRUE))
def test_intervals_cover_the_truth(aggregate: str) -> None:
    # 200 draws: 0.95 within three standard errors
    assert 0.90 <= coverage(aggregate, 200, 200) <= 0.985


def test_intervals_of_differences_cover_the_truth() -> None:
    assert 0.90 <= paired_coverage("mean", 200, 200) <= 0.985


@pytest.mark.nightly
@pytest.mark.parametrize("aggregate", sorted(TRUE))
def test_intervals_cover_93_to_97_per_cent(aggregate: str) -> None:
    assert 0.93 <= coverage(aggregate, 4000, 1000) <= 0.97
    assert 0.93 <= paired_coverage(aggregate, 4000, 1000) <= 0.97


def test_without_clusters_intervals_would_be_too_narrow() -> None:
    rows, clusters = drawn(np.random.default_rng(1), "mean", 2000)
    _, low, high = estimate("mean", rows, clusters)
    _, lower, higher = estimate("mean", rows, [str(i) for i in range(2000)])
    assert high - low > 1.05 * (higher - lower)
