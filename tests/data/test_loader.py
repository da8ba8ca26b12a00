"""The loader: same rows with and without workers, exact resume, shards, mixtures, bad rows."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.loaders import Files, Meeting, numbers, pictures, prompt
from vlmrl import config
from vlmrl.assemble.build import load_policy_model
from vlmrl.assemble.prompts import build_loader
from vlmrl.config import SourceConfig
from vlmrl.data.card import select
from vlmrl.data.loader import Loader, eval_batches
from vlmrl.data.quarantine import Quarantine
from vlmrl.data.source import Source, open_source, reading_of
from vlmrl.errors import UserError
from vlmrl.media import decode as decode_module
from vlmrl.policy.policy import Policy
from vlmrl.schema import Encoded, Frame, Prompt, Sample


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten images of different height and a broken one."""
    for i in range(10):
        Image.new("RGB", (8, 4 + i), (i, i, i)).save(tmp_path / f"{i}.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "9.png").read_bytes()[:50])
    return tmp_path


GOOD = [f"{i}.png" for i in range(10)]


def take(loader: Loader, batches: int) -> list[str]:
    """Source and id of the prompts of the next batches."""
    found = [p for _ in range(batches) for p in loader.next().prompts]
    return [f"{p.sample.source}/{p.sample.id}" for p in found]


def settle(reached: Callable[[], bool]) -> None:
    """Wait until something holds, at most 30 s."""
    end = time.monotonic() + 30
    while not reached() and time.monotonic() < end:
        time.sleep(0.01)
    assert reached()


def threads() -> list[str]:
    """Names of the threads that loaders have started and that live."""
    return [t.name for t in threading.enumerate() if t.name == "loader"]


def test_an_epoch_has_every_row_once_and_the_next_another_order() -> None:
    loader = Loader([numbers(20)], prompt, 5, seed=3)
    first, second = take(loader, 4), take(loader, 4)
    assert len(set(first)) == 20
    assert sorted(first) == sorted(second)
    assert first != second
    assert take(Loader([numbers(20)], prompt, 5, seed=4), 4) != first


def test_orders_are_the_same_on_every_machine_and_version() -> None:
    found = take(Loader([numbers(8)], prompt, 8, seed=1), 3)[16:]
    assert [int(name[-1]) for name in found] == [5, 6, 1, 2, 3, 7, 0, 4]


def test_the_quickstart_draws_the_rows_that_it_always_drew() -> None:
    settings = config.load("quickstart")
    sources = [open_source(source) for source in settings.data.train]

    def undrawn(sample: Sample, images: list[Image.Image]) -> Prompt:
        encoded = Encoded((1,), (0,), {}, torch.zeros(1, 1), 1)
        return Prompt(sample, sample.text, encoded, Frame())

    loader = Loader(sources, undrawn, settings.rollout.prompts, seed=settings.run.seed)
    names = "".join(f"{name}\n" for name in take(loader, 150))
    digest = hashlib.sha256(names.encode()).hexdigest()
    assert digest == "9e7a047c093ba028bd8dd88cb9117e739c2925989053e01772ca81474ab5c794"


def test_mixture_follows_the_weights() -> None:
    sources = [numbers(7, "a", 3), numbers(1000, "b", 1)]
    counts = Counter(name[0] for name in take(Loader(sources, prompt, 50), 80))
    assert counts["a"] / 4000 == pytest.approx(0.75, abs=0.03)  # 4 standard errors


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 5)), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_ranks_share_the_rows_of_one_rank(
    sizes: list[tuple[int, float]], batch: int, world: int, seed: int
) -> None:
    sources = [numbers(count, str(i), weight) for i, (count, weight) in enumerate(sizes)]
    alone = Loader(sources, prompt, batch, seed=seed)
    wanted = take(alone, 6)
    meeting = Meeting(world)

    def shard(rank: int) -> tuple[list[str], list[int], Any]:
        gather = functools.partial(meeting.gather, rank)
        loader = Loader(sources, prompt, batch, seed=seed, rank=rank, world=world, gather=gather)
        batches = [loader.next() for _ in range(6)]
        prompts = [p for each in batches for p in each.prompts]
        names = [f"{p.sample.source}/{p.sample.id}" for p in prompts]
        return names, [p.home for p in prompts], loader.state

    with ThreadPoolExecutor(world) as pool:
        shards = list(pool.map(shard, range(world)))
    assert shards[0] == (wanted, [i % world for i in range(len(wanted))], alone.state)
    assert all(each == shards[0] for each in shards)


@pytest.mark.parametrize("workers", [0, 1])
def test_weights_that_change_give_ranks_the_rows_of_one_rank(folder: Path, workers: int) -> None:
    sources = [pictures(folder, GOOD, "a"), pictures(folder, ["", *GOOD], "b")]
    limit: dict[str, Any] = {"quarantine_limit": 0.5, "weights": lambda share: [1 - share, share]}

    def batches(loader: Loader) -> list[Prompt]:
        return [p for step in range(10) for p in loader.next(progress=step / 9).prompts]

    alone = batches(Loader(sources, prompt, 4, **limit))
    drawn = [p.sample.source for p in alone]
    assert set(drawn[:4]) == {"a"} and set(drawn[-4:]) == {"b"}
    assert len(set(drawn[8:-8])) == 2
    meeting = Meeting(2)

    def shard(rank: int) -> list[Prompt]:
        gather = functools.partial(meeting.gather, rank)
        ranks = {"rank": rank, "world": 2, "gather": gather}
        with Loader(sources, prompt, 4, workers=workers, **ranks, **limit) as loader:
            return batches(loader)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(shard, range(2)))
    assert [[p.place for p in each] for each in found] == [[p.place for p in alone]] * 2


@pytest.mark.parametrize("world", [1, 2])
def test_rows_are_recalled_by_their_places_and_the_draws_stay(folder: Path, world: int) -> None:
    sources = [pictures(folder, ["", *GOOD], "a"), pictures(folder, GOOD, "b")]
    places, meeting = [(1, 3), (0, 0), (0, 2)], Meeting(world)

    def shard(rank: int) -> tuple[Any, ...]:
        gather = functools.partial(meeting.gather, rank)
        kind: dict[str, Any] = {"rank": rank, "world": world, "gather": gather}
        before = [
            p.place for p in Loader(sources, prompt, 4, quarantine_limit=1, **kind).next().prompts
        ]
        loader = Loader(sources, prompt, 4, quarantine_limit=1, **kind)
        found = loader.recall(places)
        again = loader.recall(places[2:], homes=[world - 1])
        assert [p.place for p in loader.next().prompts] == before
        return [p and p.place for p in found], [p and p.home for p in found], again[0].home

    with ThreadPoolExecutor(world) as pool:
        for rows, homes, home in pool.map(shard, range(world)):
            assert rows == [(1, 3), None, (0, 2)]
            assert homes == [0, None, 0] and home == world - 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_row_leaves_ranks_the_batches_of_one_rank(folder: Path, workers: int) -> None:
    paths = [*GOOD[:5], "", "broken.png", *GOOD[5:]]
    alone = Loader([pictures(folder, paths)], prompt, 4, quarantine_limit=0.5)
    meeting = Meeting(2)

    def shard(rank: int) -> list[Prompt]:
        gather = functools.partial(meeting.gather, rank)
        source = pictures(folder, paths)
        limit = {"quarantine_limit": 0.5, "workers": workers}
        with Loader([source], prompt, 4, rank=rank, world=2, gather=gather, **limit) as loader:
            return [p for _ in range(5) for p in loader.next().prompts]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(shard, range(2))
    ids = take(alone, 5)
    assert [f"pictures/{p.sample.id}" for p in first] == ids
    assert [p.sample.id for p in second] == [p.sample.id for p in first]
    for here, there in zip(first, second, strict=True):
        assert (len(here.media), len(there.media)) == ((1, 0) if here.home == 0 else (0, 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 6))
def test_resume_goes_on_at_the_next_unseen_row(a: int, b: int, batch: int, before: int) -> None:
    sources = [numbers(a, "a"), numbers(b, "b", 2.0)]
    whole = Loader(sources, prompt, batch, seed=1)
    take(whole, before)
    state = json.loads(json.dumps(whole.state))
    resumed = Loader(sources, prompt, batch, seed=1)
    resumed.restore(state)
    assert take(resumed, 5) == take(whole, 5)
    assert resumed.state == whole.state


def test_a_batch_carries_the_state_after_it() -> None:
    loader = Loader([numbers(9)], prompt, 4)
    batch = loader.next()
    assert batch.cursor == loader.state
    assert batch.cursor["draws"] == 4


def test_resume_with_other_data_is_refused() -> None:
    state = Loader([numbers(9)], prompt, 4, seed=1).state
    with pytest.raises(UserError, match="sources was"):
        Loader([numbers(8)], prompt, 4, seed=1).restore(state)
    with pytest.raises(UserError, match="seed was 1, now is 2"):
        Loader([numbers(9)], prompt, 4, seed=2).restore(state)


def test_workers_change_neither_rows_nor_state(folder: Path) -> None:
    paths = [*GOOD, "broken.png", "", "text", "missing.png"]
    results = []
    for workers in (0, 2):
        source = pictures(folder, paths)
        with Loader([source], prompt, 4, workers=workers, quarantine_limit=0.5) as loader:
            ids = take(loader, 2)
            middle = loader.state
            ids += take(loader, 5)
            results.append((ids, middle, loader.state, loader.quarantine.counts))
            loader.restore(middle)
            assert take(loader, 5) == ids[8:]
    assert results[0] == results[1]


def test_workers_bring_the_same_pixels(folder: Path) -> None:
    with Loader([pictures(folder, GOOD)], prompt, 10, workers=2, prefetch_mb=1) as loader:
        for made in loader.next().prompts:
            value = int(made.sample.id.rpartition("-")[2])
            np.testing.assert_array_equal(
                made.images[0], np.full((4 + value, 8, 3), value, np.uint8)
            )


def test_a_worker_imports_no_torch() -> None:
    code = "import sys, vlmrl.media.decode; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_decoding_ahead_stays_within_its_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (512, 512)).save(folder / "big.png")  # 0.75 MiB decoded
    started: list[int] = []
    with Loader(
        [pictures(folder, ["big.png"] * 30)], prompt, 8, workers=1, prefetch_mb=2
    ) as loader:
        submit = loader._pool.submit  # type: ignore[union-attr]
        monkeypatch.setattr(
            loader._pool, "submit", lambda *a, **k: started.append(1) or submit(*a, **k)
        )
        loader.next()
        # Three finished prompts are past 2 MiB, and one more image is under way.
        settle(lambda: len(started) == 8 + 3 + 1)
        time.sleep(0.2)
    assert len(started) == 8 + 3 + 1


def test_prompts_are_made_ahead_and_the_state_is_that_of_what_was_handed_out(folder: Path) -> None:
    made: list[str] = []

    def noting(sample: Sample, images: list[Image.Image]) -> Prompt:
        made.append(threading.current_thread().name)
        return prompt(sample, images)

    with Loader([numbers(500)], noting, 3, workers=1) as loader:
        loader.next()
        settle(lambda: len(made) == 3 + 6)  # two batches ahead, and no more
        time.sleep(0.1)
        assert len(made) == 9
        assert loader.state["draws"] == loader.state["seen"] == 3
    assert set(made) == {"loader"}
    assert not threads()


def test_bad_rows_that_were_made_ahead_are_noted_when_they_are_met(folder: Path) -> None:
    source = pictures(folder, ["text"] * 3 + [""] * 3 + ["text"] * 24)
    with Loader([source], prompt, 1, seed=2, workers=1, quarantine_limit=1) as loader:
        counts = []
        for _ in range(20):
            loader.next()
            time.sleep(0.01)
            counts.append((loader.state["bad"], loader.quarantine.counts["row"]))
    assert all(bad == noted for bad, noted in counts)
    assert counts[0] < counts[-1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_goes_up_after_the_batches_before_it(workers: int) -> None:
    seen: list[str] = []

    def failing(sample: Sample, images: list[Image.Image]) -> Prompt:
        seen.append(sample.id)
        if len(seen) == 6:
            raise OSError(28, "No space left on device")
        return prompt(sample, images)

    with Loader([numbers(30)], failing, 2, workers=workers) as loader:
        assert [int(p.sample.id[6:]) for _ in range(2) for p in loader.next().prompts]
        state = loader.state
        with pytest.raises(OSError, match="No space left"):
            loader.next()
        assert not loader.quarantine.counts
        loader.restore(state)
        assert [p.sample.id for p in loader.next().prompts] == seen[4:6]
    assert not threads()


def drawn(sources: Sequence[Source], seed: int) -> list[int]:
    """The sources of the first two draws."""
    plan = Loader(sources, prompt, 1, seed=seed).plan
    return [plan.place(row).source for row in itertools.islice(plan.stream(0, wait=False), 2)]


def sleep_long(*_: Any) -> None:
    time.sleep(600)


def test_close_and_restore_end_the_thread_at_once_though_a_decoder_hangs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [numbers(30), pictures(folder, GOOD)]
    wanted = ["numbers", "pictures"]
    seed = next(n for n in range(99) if [sources[s].name for s in drawn(sources, n)] == wanted)
    loader = Loader(sources, prompt, 1, seed=seed, workers=1)
    first = loader.state
    monkeypatch.setattr(decode_module, "_decode_bounded", sleep_long)
    loader.next()
    assert threads()
    loader.restore(first)
    assert not threads()
    loader.next()
    assert threads()
    loader.close()
    assert not threads()
    loader.close()


@pytest.mark.slow
def test_the_thread_makes_the_same_tensors_and_leaves_the_trainer_alone() -> None:
    settings = config.load("video_grounding")
    sources = [open_source(SourceConfig(card="videos"), reading=reading_of(settings.data))]
    policy = Policy(*load_policy_model(settings, None, sources), settings.model)
    texts = ["When is the square red?", "When?"]
    threads_before = torch.get_num_threads()
    torch.manual_seed(5)
    random = torch.get_rng_state()
    found = []
    for workers in (0, 1):
        update = settings.data.model_copy(update={"workers": workers})
        changed = settings.model_copy(update={"data": update})
        with build_loader(changed, sources, policy, 4, Quarantine()) as loader:
            prompts = []
            for _ in range(3):
                prompts += loader.next().prompts
                # Padding changes a fast tokenizer: in use by another thread it would refuse.
                for _ in range(20):
                    policy.processor.tokenizer(texts, padding=True)
            found.append(prompts)
    for alone, ahead in zip(*found, strict=True):
        assert (alone.sample, alone.text, alone.frame) == (ahead.sample, ahead.text, ahead.frame)
        assert alone.encoded.ids == ahead.encoded.ids
        assert torch.equal(alone.encoded.position_ids, ahead.encoded.position_ids)
        assert alone.encoded.tensors.keys() == ahead.encoded.tensors.keys()
        for key, tensor in alone.encoded.tensors.items():
            assert torch.equal(tensor, ahead.encoded.tensors[key])
    assert torch.get_num_threads() == threads_before
    assert torch.equal(torch.get_rng_state(), random)


def exit_at_once(*_: Any) -> None:
    os._exit(7)


def test_a_row_that_kills_its_worker_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "_decode_bounded", exit_at_once)
    quarantine = Quarantine(folder / "quarantine.jsonl")
    source = pictures(folder, GOOD[:2])
    with (
        Loader([source], prompt, 1, workers=1, quarantine=quarantine) as loader,
        pytest.raises(UserError, match="rows seen are bad"),
    ):
        loader.next()
    lines = (folder / "quarantine.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {"train-0", "train-1"}
    assert "died (exit code 7)" in lines[0]


# --------------------------------------------------------------------------------------- bad rows


def test_bad_rows_are_replaced_counted_listed_and_not_opened_again(folder: Path) -> None:
    file = folder / "run" / "quarantine.jsonl"
    paths = [*GOOD, "broken.png", "", "../out.png"]
    source = pictures(folder, paths)
    loader = Loader(
        [source], prompt, 5, quarantine=Quarantine(file), quarantine_limit=0.5, max_prompt_tokens=15
    )
    seen = take(loader, 8)
    assert len(seen) == 40
    assert set(seen) == {
        f"pictures/train-{i}" for i in range(9)
    }  # 9.png is 13 rows high: 16 tokens
    assert loader.quarantine.counts == {"media": 2, "row": 1, "length": 1}
    lines = {line["id"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert set(lines) == {"train-9", "train-10", "train-11", "train-12"}
    assert lines["train-9"]["reason"] == "prompt of 16 tokens; data.max_prompt_tokens is 15"
    assert lines["train-10"]["source"] == "pictures"
    assert lines["train-10"]["split"] == "train"
    assert lines["train-10"]["row"] == 10
    assert "broken.png" in lines["train-10"]["reason"]
    assert "outside" in lines["train-12"]["reason"]

    # Mended meanwhile, but listed: it must not come back in the middle of a run.
    Image.new("RGB", (8, 8)).save(folder / "broken.png")
    again = Loader([source], prompt, 5, quarantine=Quarantine(file), quarantine_limit=0.5)
    assert "pictures/train-10" not in take(again, 8)
    assert again.quarantine.counts == loader.quarantine.counts


def test_resume_in_the_middle_of_bad_rows_is_exact(folder: Path) -> None:
    file = folder / "quarantine.jsonl"
    source = pictures(folder, [*GOOD, "broken.png", "", "missing.png"])
    whole = Loader([source], prompt, 3, quarantine=Quarantine(file), quarantine_limit=0.5)
    take(whole, 2)
    state = whole.state
    rest = take(whole, 8)  # the killed run noted rows after its last checkpoint
    with file.open("ab") as torn:
        torn.write(b'{"id": "train-')
    resumed = Loader([source], prompt, 3, quarantine=Quarantine(file), quarantine_limit=0.5)
    resumed.restore(state)
    assert take(resumed, 8) == rest
    assert resumed.state == whole.state
    assert len(file.read_text().splitlines()) == 3


def test_too_many_bad_rows_stop_the_run(folder: Path) -> None:
    source = pictures(folder, ["text"] * 50 + ["missing.png"] * 50)
    loader = Loader([source], prompt, 8)
    with pytest.raises(UserError) as caught:
        take(loader, 50)
    assert "rows seen are bad, more than data.quarantine_limit 0.05 allows" in str(caught.value)
    assert "missing.png: no such file" in str(caught.value)
    assert 20 <= loader.state["seen"] <= 25


@pytest.mark.parametrize("seed", range(20))
def test_a_share_of_bad_rows_below_the_limit_never_stops_a_run(folder: Path, seed: int) -> None:
    source = pictures(folder, ["text"] * 58 + [""] * 2)
    take(Loader([source], prompt, 10, seed=seed), 20)


def test_limit_zero_and_limit_one(folder: Path) -> None:
    one_bad = pictures(folder, ["text"] * 30 + [""])
    with pytest.raises(UserError, match=r"^1 of (2\d|3\d) rows"):
        take(Loader([one_bad], prompt, 31, quarantine_limit=0), 2)
    all_bad = pictures(folder, [""] * 30)
    with pytest.raises(UserError, match="no row of the training data can be used"):
        Loader([all_bad], prompt, 1, quarantine_limit=1).next()


@dataclass(frozen=True)
class Buggy(Files):
    """A card that does not foresee its second row."""

    def to_sample(self, row: Mapping[str, Any], source: str) -> Sample:
        if row["id"] == "train-1":
            raise KeyError("boxes")
        return super().to_sample(row, source)


def test_any_exception_over_a_row_is_about_that_row(tmp_path: Path) -> None:
    def picky_make(sample: Sample, media: list[Any]) -> Prompt:
        if sample.id == "train-2":
            raise ValueError("odd shape")
        return prompt(sample, media)

    card = Buggy(paths=("text",) * 12)
    source = Source("buggy", card, "train", card.rows("train"))
    quarantine = Quarantine(tmp_path / "quarantine.jsonl")
    take(Loader([source], picky_make, 10, quarantine=quarantine, quarantine_limit=1), 2)
    assert quarantine.rows(source) == {1, 2}
    noted = (tmp_path / "quarantine.jsonl").read_text()
    assert "buggy train row 1: the card: KeyError: 'boxes'" in noted
    assert "sample 'train-2': ValueError: odd shape" in noted


def test_a_fault_that_is_not_the_rows_goes_up(folder: Path) -> None:
    def broken_make(sample: Sample, images: list[Image.Image]) -> Prompt:
        raise OSError(28, "No space left on device")

    loader = Loader([pictures(folder, GOOD)], broken_make, 2)
    with pytest.raises(OSError, match="No space left"):
        loader.next()
    assert not loader.quarantine.counts


# ------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_takes_every_good_row_once_and_in_order(folder: Path, world: int) -> None:
    sources = [pictures(folder, [*GOOD, "broken.png"]), numbers(5)]
    quarantine = Quarantine()
    shards = []
    for rank in range(world):
        batches = eval_batches(
            sources,
            prompt,
            4,
            rank=rank,
            world=world,
            quarantine=quarantine,
            quarantine_limit=0.3,
        )
        shards.append([f"{p.sample.source}/{p.sample.id}" for b in batches for p in b.prompts])
    expected = [f"pictures/train-{i}" for i in range(10)] + [f"numbers/train-{i}" for i in range(5)]
    if world == 1:
        assert shards[0] == expected
    assert sorted(name for shard in shards for name in shard) == sorted(expected)
    assert quarantine.counts == {"media": 1}


# ---------------------------------------------------------------------------------------- splits


def test_percent_splits_part_every_row_and_keep_a_picture_together() -> None:
    @dataclass(frozen=True)
    class Grouped(Files):
        def group(self, row: Mapping[str, Any]) -> str | None:
            return str(row["path"])

    card = Grouped(paths=tuple(f"{i % 200}.png" for i in range(600)))
    first, second = select(card, "train[:80%]"), select(card, "train[80%:]")
    assert len(first) + len(second) == 600
    groups = [{row["path"] for row in part} for part in (first, second)]
    assert not groups[0] & groups[1]
    assert len(groups[0]) == pytest.approx(160, abs=20)
    assert list(first) == list(select(replace(card), "train[0%:80%]"))


def test_position_splits_are_slices_and_other_spellings_are_refused() -> None:
    card = Files(paths=("text",) * 10)
    assert [row["id"] for row in select(card, "train[2:4]")] == ["train-2", "train-3"]
    assert len(select(card, "train[:3]")) == 3
    assert select(card, "train[5:]")[1:3][0]["id"] == "train-6"
    for wrong in ("train[", "train[1]", "train[:2][:1]", "train[a:b]", ""):
        with pytest.raises(UserError, match="split"):
            select(card, wrong)
    with pytest.raises(UserError, match="both bounds in percent"):
        select(card, "train[10:50%]")


def test_a_source_applies_limit_template_and_name() -> None:
    config = SourceConfig(card="shapes", name="toy", limit=7, template="answer_only", weight=2)
    source = open_source(config)
    assert len(source.rows) == 7
    assert source.sample(0).template == "answer_only"
    assert source.sample(0).source == "toy"
    with pytest.raises(UserError, match="has no rows"):
        open_source(SourceConfig(card="shapes", split="train[5000:]"))
    with pytest.raises(UserError, match="no split 'tset'"):
        open_source(SourceConfig(card="shapes", split="tset"))
