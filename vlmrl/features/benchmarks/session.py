"""A model with its engine, asking benchmarks one after the other; what was answered is not asked again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmrl import plugins
from vlmrl.answers.text import tokens
from vlmrl.assemble.prompts import build_prompt_maker
from vlmrl.assemble.turns import drive, schemas_of
from vlmrl.benchmarking.base import OURS, Benchmark, BenchmarkCard
from vlmrl.benchmarking.rows import INDEX
from vlmrl.benchmarking.scoring import (
    ANSWERS,
    CONTROLS,
    Answer,
    Figure,
    Result,
    score_answers,
    write_result,
)
from vlmrl.config import Config, PluginRef, SourceConfig, TurnsConfig
from vlmrl.data.files.rows import RowsView
from vlmrl.data.loader import eval_batches
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.source import Source, open_target
from vlmrl.engines.base import Engine, RunningEngine, Sampling
from vlmrl.errors import UserError
from vlmrl.features.benchmarks.controls import NO_THINK, BestConstant, best_constant, controlled
from vlmrl.features.benchmarks.judge import Judge, judge_unread, open_judge
from vlmrl.media.decode import decode
from vlmrl.models.loading import pixels_of
from vlmrl.policy.policy import Policy
from vlmrl.runs import run_folder
from vlmrl.runs.output.outputs import Output
from vlmrl.schema import Completion, PromptBatch, Sample
from vlmrl.schema.media import PilImage
from vlmrl.scoring.reward_components import form_of
from vlmrl.system import files
from vlmrl.system.files import hash_weights
from vlmrl.training import evaluation
from vlmrl.training.evaluation import interval, pass_at_k
from vlmrl.truths.json_form import to_json

# --------------------------------------------------------------------------------------------------
# A hint of contamination: which rows of a benchmark look like rows that a model was trained on.
#
# It cannot prove that there is none: a copy that was cropped or a question that was reworded is not
# found, and an image without detail may be taken for another one.


WORDS = 8
"""Words in a row that two questions share; a shorter question is shared by chance."""
SIDE = 8
"""The hash of an image compares SIDE x SIDE pairs of neighbouring pixels."""
MAX_BITS = 3
"""Bits in which the hashes of one image in two sizes or formats may differ."""
MIN_DETAIL = 8
"""An image with fewer set bits in its hash, or fewer unset, is too plain to be told from others."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Numbers of the rows that share an image, or eight words in a row, with the training data.

    `unread` counts training rows whose media cannot be read.
    """

    images: tuple[int, ...]
    texts: tuple[int, ...]
    rows: int
    unread: int


def find_overlap(benchmark: Source, train: Source) -> Overlap:
    """Compare every row of a benchmark with all training rows.

    Images are compared by their difference hash (64 bits), which survives another size or format;
    texts by runs of eight words.

    Raises:
        UserError: an image of the benchmark cannot be read.
    """
    images: set[int] = set()
    grams: set[tuple[str, ...]] = set()
    unread = 0
    for index in range(len(train.rows)):
        try:
            sample = train.sample(index)
            images |= set(_hashes(train, sample))
        except UserError:
            unread += 1
            continue
        grams |= set(_grams(sample.text))
    same_image, same_text = [], []
    seen = np.array(sorted(images), np.uint64)
    for index in range(len(benchmark.rows)):
        sample = benchmark.sample(index)
        for fingerprint in _hashes(benchmark, sample):
            differing = (seen ^ np.uint64(fingerprint)).view(np.uint8).reshape(-1, 8)
            if (np.unpackbits(differing, axis=1).sum(1) <= MAX_BITS).any():
                same_image.append(index)
                break
        if not grams.isdisjoint(_grams(sample.text)):
            same_text.append(index)
    return Overlap(tuple(same_image), tuple(same_text), len(benchmark.rows), unread)


def _hashes(source: Source, sample: Sample) -> Iterator[int]:
    for medium in decode(sample, source.access, source.reading):
        if isinstance(medium, PilImage):
            # Is each of 8 x 8 places darker than its right neighbour?
            small = medium.convert("L").resize((SIDE + 1, SIDE), Image.Resampling.BOX)
            pixels = np.asarray(small, dtype=np.int16)
            bits = np.packbits(pixels[:, :-1] < pixels[:, 1:])
            fingerprint = int.from_bytes(bits.tobytes(), "big")
            if MIN_DETAIL <= fingerprint.bit_count() <= SIDE**2 - MIN_DETAIL:
                yield fingerprint


def _grams(text: str) -> Iterator[tuple[str, ...]]:
    words = tokens(text)
    return (tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1))


# --------------------------------------------------------------------------------------------------


MAX_TOKENS = 512
"""Longest answer, or turn, where neither the user nor a harness says."""
PASSES = 0.5
"""A sampled answer is right when its strict score is at least this."""
SAMPLES = "samples.jsonl"
NOT_ASKED = ("versions", "git", "engine", "judge")
"""Keys of a manifest that may change while answers are kept."""


@dataclass(frozen=True)
class Plan:
    """What to evaluate and how: see `vlmrl eval --help`."""

    protocol: str
    data_root: Path
    out: Path
    engine: PluginRef
    limit: int | None = None
    batch_size: int = 32
    max_tokens: int | None = None
    export: str | None = None
    controls: tuple[str, ...] = ()
    samples: int = 0
    train_data: str | None = None
    judge: str | None = None
    tools: tuple[PluginRef, ...] = ()
    template: str | None = None

    def acting(self, benchmark: str) -> SourceConfig:
        """Return what a config would say of a benchmark with these tools."""
        return SourceConfig(card=benchmark, name=benchmark, tools=[*self.tools])


@dataclass(frozen=True)
class EvaluatedBenchmark:
    """A benchmark's result, that of each control by name, and the best constant answers.

    `pass_at_k` is by k the chance that one of k sampled answers is right by the strict number.
    """

    result: Result
    controls: Mapping[str, Result]
    constants: Sequence[BestConstant]
    pass_at_k: Mapping[str, Figure]
    overlap: Overlap | None
    source: Source
    frames: Mapping[int, Mapping[str, Any]]
    """By row the frame of its answer's coordinates."""


def build_engine(plan: Plan, sources: Sequence[Source], turns: TurnsConfig | None) -> Engine:
    """Build the plan's engine, with a driver around it where there are tools."""
    engine: Engine = plugins.build("engine", plan.engine.name, plan.engine.options)
    if turns is None:
        return engine
    acting = [plan.acting(source.name) for source in sources]
    return drive(engine, acting, turns, {source.name: source.access for source in sources})


@dataclass(frozen=True)
class Session:
    """An engine that serves a policy, and how it is to be asked."""

    engine: RunningEngine
    policy: Policy
    plan: Plan
    model: str
    output: Output
    turns: TurnsConfig | None = None
    """The limits of several turns; None: the plan has no tools."""
    run: Config | None = None
    """The config of the model's run, whose `models` may judge."""

    def evaluate(self, benchmark: Benchmark, source: Source, control: str = "") -> Result:
        """Ask all rows, greedily, score the answers, some by the plan's judge, and write the result.

        Raises:
            UserError: the output folder holds answers to other questions, a row cannot be asked, a tool
                failed, or the judge does not answer.
        """
        folder = self._folder(source, control)
        manifest = to_json(self._manifest(benchmark, source, control))
        answers = self._ask(folder / ANSWERS, source, manifest, self._sampling(benchmark), control)
        with self.output.doing(f"scoring {source.name} {control}".strip()):
            result = score_answers(benchmark, source, self.plan.protocol, answers)
        if judge := self._judge(benchmark):
            result = judge_unread(judge, benchmark, source, result, folder, self.output)
        write_result(folder, result, manifest)
        return result

    def with_controls(
        self, benchmark: Benchmark, source: Source, result: Result
    ) -> EvaluatedBenchmark:
        """Ask and score the plan's controls and samples as well."""
        lines = files.read_lines(self._folder(source, "") / ANSWERS)
        frames = {line["index"]: line["frame"] for line in lines}
        constants = []
        if self.plan.controls:
            constants = best_constant(source, self.plan.protocol, frames[result.rows[0].index])
        controls = {
            name: self.evaluate(benchmark, controlled(source, name), name)
            for name in self.plan.controls
        }
        passes = self._pass_at_k(benchmark, source) if self.plan.samples else {}
        # By our own prompt: a harness's words around every question are no overlap.
        plain = replace(source, card=BenchmarkCard(benchmark, OURS))
        train = open_target(self.plan.train_data) if self.plan.train_data else None
        overlap = find_overlap(plain, train) if train else None
        extra = {
            "overlap": asdict(overlap) if overlap else None,
            "best_constant": [asdict(constant) for constant in constants],
            "pass_at_k": {k: asdict(figure) for k, figure in passes.items()},
            "controls": {
                name: {number: asdict(figure) for number, figure in control.figures.items()}
                for name, control in controls.items()
            },
        }
        if self.plan.controls or self.plan.samples or overlap:
            files.write_json(self._folder(source, "") / CONTROLS, extra)
        return EvaluatedBenchmark(result, controls, constants, passes, overlap, source, frames)

    def _pass_at_k(self, benchmark: Benchmark, source: Source) -> dict[str, Figure]:
        """Sample each prompt K times, in one request, and return pass@k with intervals over clusters."""
        folder, count = self._folder(source, ""), self.plan.samples
        sampling = replace(self._sampling(benchmark), n=count, greedy=False, seed=1)
        manifest = to_json({**self._manifest(benchmark, source, ""), "samples": count})
        answers = self._ask(folder / SAMPLES, source, manifest, sampling, "")
        rows = score_answers(benchmark, source, self.plan.protocol, answers).rows
        right: dict[int, list[float]] = {}
        for row in rows:
            right.setdefault(row.index, []).append(float((row.strict or 0.0) >= PASSES))
        clusters = {row.index: row.cluster for row in rows}
        figures = {}
        for k in sorted({2**i for i in range(count.bit_length())} | {count}):
            values = [(clusters[i], pass_at_k(len(r), int(sum(r)), k)) for i, r in right.items()]
            mean = sum(value for _, value in values) / len(values)
            figures[str(k)] = Figure(mean, *interval(values, 1000), len(values))
        return figures

    def _judge(self, benchmark: Benchmark) -> Judge | None:
        official, address = benchmark.official(self.plan.protocol), self.plan.judge
        if not address or not official or not official.judge:
            return None
        return open_judge(address, official, self.run)

    def _folder(self, source: Source, control: str) -> Path:
        return self.plan.out / source.name / control if control else self.plan.out / source.name

    def _sampling(self, benchmark: Benchmark) -> Sampling:
        official = benchmark.official(self.plan.protocol)
        # A harness's limit leaves no room for a call.
        limit = MAX_TOKENS if self.plan.tools or official is None else official.max_tokens
        return Sampling(1, self.plan.max_tokens or limit, greedy=True)

    def _ask(
        self,
        file: Path,
        source: Source,
        manifest: Mapping[str, object],
        sampling: Sampling,
        control: str,
    ) -> list[Answer]:
        """Generate the answers that are not in the file yet; return all, in the order of the rows."""
        stored: dict[int, list[Answer]] = {}
        for answer in _stored(file, manifest):
            stored.setdefault(answer.index, []).append(answer)
        count = sampling.n  # what a kill left of a row's samples comes before all of them
        stored = {i: some[-count:] for i, some in stored.items() if len(some) >= count}
        left = [index for index in range(len(source.rows)) if index not in stored]
        faults: dict[int, str] = {}
        what = f"{'asking' if sampling.greedy else 'sampling'} {source.name} {control}".strip()
        with self.output.doing(what, len(source.rows), len(stored)) as activity:
            for batch in self._batches(source, left) if left else ():
                groups = self._generate(batch, sampling, control)
                for prompt, group in zip(batch.prompts, groups, strict=True):
                    index = prompt.sample.meta[INDEX]
                    ended = [c for c in group if c.finish_reason == "abort"]
                    calls = (call for completion in ended for call in completion.calls)
                    if failed := next((call for call in calls if call.outcome == "fault"), None):
                        faults[index] = f"{failed.name}: {failed.note}"
                        continue
                    stored[index] = [_answer(index, completion) for completion in group]
                    for answer in stored[index]:
                        files.append_line(file, asdict(answer))
                activity.done(len(stored))
        if faults:
            raise UserError(
                f"benchmark {source.name!r}: a tool failed on {len(faults)} rows, the first row "
                f"{min(faults)}: {faults[min(faults)]}; the same command asks them again"
            )
        return [answer for index in sorted(stored) for answer in stored[index]]

    def _generate(
        self, batch: PromptBatch, sampling: Sampling, control: str
    ) -> Sequence[Sequence[Completion]]:
        if control != NO_THINK:
            return self.engine.generate(batch, sampling).completions
        if not all(map(evaluation.can_be_forced, batch.prompts)):
            raise UserError(
                "vlmrl eval --control no_think: expected a model whose template begins with a thought"
            )
        return evaluation.generate(
            self.engine, self.policy, batch, "direct", sampling.max_tokens
        ).completions

    def _batches(self, source: Source, left: Sequence[int]) -> Iterator[PromptBatch]:
        """Yield the prompts of some rows.

        Raises:
            UserError: a row cannot be asked.
        """
        assert isinstance(source.card, BenchmarkCard)
        quarantine = Quarantine()
        forms = {source.name: form_of([source.card.benchmark.strict.reward()])}
        instruct = {source.name: self.plan.protocol == OURS}
        offered = {source.name: schemas_of(self.plan.acting(source.name), self.policy.family.space)}
        make = build_prompt_maker(self.policy, instruct, forms, tools=offered)
        part = replace(source, rows=RowsView(source.rows, left))
        yield from eval_batches([part], make, self.plan.batch_size, quarantine=quarantine)
        if quarantine.counts:
            raise UserError(
                f"benchmark {source.name!r}: rows that cannot be asked: {quarantine.counts}"
            )

    def _manifest(self, benchmark: Benchmark, source: Source, control: str) -> dict[str, Any]:
        """Return all that another person needs to get the same number."""
        official = benchmark.official(self.plan.protocol)
        policy, judge = self.policy, self._judge(benchmark)
        return {
            "model": self.model,
            "weights_sha256": hash_weights(Path(self.model)),
            "benchmark": source.name,
            "split": source.split,
            "rows": len(source.rows),
            "protocol": official.protocol if official else OURS,
            "ask": official.ask if official else None,
            "template": str(source.template),
            "decoding": "greedy",
            "max_tokens": self._sampling(benchmark).max_tokens,
            "engine": self.plan.engine.model_dump(mode="json"),
            "space": policy.family.space,
            "pixels": pixels_of(policy.processor),
            "judge": {"model": judge.model, "task": judge.task} if judge else None,
            "tools": [tool.model_dump(mode="json") for tool in self.plan.tools] or None,
            "turns": self.turns.limits() if self.turns else None,
            "versions": run_folder.versions(),
            "git": run_folder.revision(),
            **({"control": control} if control else {}),
        }


def _answer(index: int, completion: Completion) -> Answer:
    facts = (completion.text, len(completion.token_ids), completion.finish_reason)
    turns = enumerate(completion.turns)
    calls = [{"turn": n, **to_json(asdict(call))} for n, turn in turns for call in turn.calls]
    return Answer(index, *facts, asdict(completion.frame), calls)


def _stored(file: Path, manifest: Mapping[str, object]) -> Iterator[Answer]:
    """Yield the answers of an earlier, interrupted evaluation; refuse those of another one."""
    asked = {k: v for k, v in manifest.items() if k not in NOT_ASKED}
    note = file.parent / ("asked.json" if file.name == ANSWERS else "asked_samples.json")
    if note.is_file():
        before = files.read_json(note)
        if differing := [key for key in asked if asked[key] != before.get(key)]:
            raise UserError(
                f"{file.parent}: its answers were given with another {differing[0]}: expected "
                f"{asked[differing[0]]!r}, got {before.get(differing[0])!r}; choose another --out"
            )
        if file.is_file():
            yield from (Answer(**line) for line in files.read_lines(file))
        return
    files.write_json(note, asked)
