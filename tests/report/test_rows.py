"""The rows of a run as `vlmrl watch` shows them: found, chosen, told whole, and nothing in them runs."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from helpers.report_page import Page, begin_run, completion, row, verdict
from vlmrl.features.report.page import build_report
from vlmrl.features.report.row_pages import heat_of
from vlmrl.features.report.rows import RowFilter, RowIndex, read_range
from vlmrl.features.report.watch_server import WatchedRuns, build_watch_app
from vlmrl.runs import run_folder
from vlmrl.system import files

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def write_rows(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    files.write_lines(run_folder.rollouts_path(folder, step), rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three stored steps: `a` is asked in all, `b/c` in one, the row of another source in two."""
    made = begin_run(tmp_path / "mine")
    fault = {"box_iou": verdict(None, fault="timed out")}
    failing = completion(0.0, valid=False, verdicts=fault)
    for step in (1, 5, 10):
        pair = [completion(0.2, [0, 0, 0.5, 0.5]), completion(step / 10, [0.25, 0.5, 0.75, 1])]
        rows = [row("a", pair)]
        if step == 5:
            rows.append(row("b/c", [completion(0.4), failing]))
        if step > 1:
            rows.append(row("x", [completion(0.9), completion(0.9)], source="other"))
        write_rows(made, step, rows)
    greedy = row("a", [completion(0.7)], drawn="greedy")
    files.write_lines(run_folder.evaluation_path(made, 5).with_suffix(".jsonl"), [greedy])
    return made


@pytest.fixture
def client(folder: Path) -> TestClient:
    return TestClient(build_watch_app(WatchedRuns(folder.parent), None, ("testserver",)))


def whole(folder: Path) -> RowIndex:
    index = RowIndex(folder)
    index.refresh()
    return index


def named(index: RowIndex, **wanted: Any) -> list[tuple[int, str]]:
    return [(found.step, found.id) for found in index.chosen(RowFilter(**wanted))]


def test_rows_are_chosen_by_what_one_of_their_answers_is(folder: Path) -> None:
    index = whole(folder)
    every = [(1, "a"), (5, "a"), (5, "b/c"), (5, "x"), (10, "a"), (10, "x")]
    assert named(index) == every
    assert named(index, only="other") == [(5, "x"), (10, "x")]
    assert named(index, first=2, last=5) == every[1:4]
    assert named(index, least=0.95) == [(10, "a")]
    assert named(index, most=0.15) == [(1, "a")]  # a masked answer has no reward
    assert named(index, spread=0.3) == [(10, "a")]
    assert named(index, failed=True) == [(5, "b/c")]
    assert named(index, by="box_iou", least=0.4, most=0.5) == [(5, "a"), (5, "b/c")]
    assert named(index, by="no such verifier") == []
    assert named(index, ids=("x",), last=9) == [(5, "x")]
    assert named(index, part="evals") == [(5, "a")]
    (only,) = index.chosen(RowFilter(failed=True))
    assert RowFilter(failed=True).fitting(only) == [1]


def test_a_filter_is_in_the_address_and_nonsense_says_nothing() -> None:
    wanted = RowFilter("evals", "o & ü", 3, 9, "box_iou", -0.5, 0.5, 0.125, True)
    assert RowFilter.read(wanted.query()) == wanted
    assert RowFilter().query() == {}
    nonsense = {
        "part": "..",
        "first": "-1",
        "last": "²",
        "least": "nan",
        "most": "x",
        "failed": "0",
    }
    assert RowFilter.read(nonsense) == RowFilter()


@pytest.mark.parametrize(
    ("text", "ends"), [("2:8", (2, 8)), (":-.5", (None, -0.5)), ("3:", (3, None)), ("4", (4, 4))]
)
def test_a_range_has_two_ends_or_one(text: str, ends: Any) -> None:
    assert read_range(text, "--steps") == ends
    for bad in ("", "a:b", "1:x", "nan"):
        with pytest.raises(Exception, match="--steps: expected a range"):
            read_range(bad, "--steps")


def test_files_are_read_again_only_where_they_have_changed(folder: Path) -> None:
    index = whole(folder)
    (kept,) = index.chosen(RowFilter(last=1))
    write_rows(folder, 12, [row("new", [completion(0.1)])])
    write_rows(folder, 5, [row("again", [completion(0.1)])])  # as a resumed run writes it
    run_folder.rollouts_path(folder, 10).unlink()
    index.refresh()
    assert named(index) == [(1, "a"), (5, "again"), (12, "new")]
    assert index.chosen(RowFilter(last=1))[0] is kept


def test_a_damaged_line_is_counted_and_the_others_are_there(folder: Path) -> None:
    path = run_folder.rollouts_path(folder, 5)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"{", b"[1]", *lines[1:]]))
    index = whole(folder)
    assert index.damaged == 2 and (5, "b/c") in named(index)
    (found,) = index.chosen(RowFilter(ids=("b/c",)))
    assert index.load(found)["id"] == "b/c"  # its place in the file


def test_neighbours_and_answers_of_other_steps(folder: Path) -> None:
    index = whole(folder)
    here = index.find("rollouts", 5, "shapes", "a", None)
    assert here is not None
    before, after = index.neighbours(here, RowFilter())
    assert before and after and (before.step, before.id, after.id) == (1, "a", "b/c")
    before, after = index.neighbours(here, RowFilter(only="other"))  # it is none of them itself
    assert before is None and after and (after.step, after.id) == (5, "x")
    asked = [(one.part, one.step) for one in index.answers("shapes", "a")]
    assert asked == [("rollouts", 1), ("evals", 5), ("rollouts", 5), ("rollouts", 10)]
    assert index.find("rollouts", 5, "shapes", "none", None) is None
    assert index.find("rollouts", 7, "shapes", "a", None) is None


def tokens(folder: Path, step: int, completions: list[dict[str, Any]]) -> None:
    line = {"step": step, "id": "a", "source": "shapes", "completions": completions}
    files.write_lines(run_folder.tokens_path(folder, step), [line])


def test_heat_says_how_far_engine_and_trainer_part_and_what_is_not_known() -> None:
    stored = {
        "texts": ["a", "\n", "c", "d"],
        "engine": [-0.001, -0.5, -3.0, None],
        "trainer": [-0.002, -0.6, -1.5, -0.1],
    }
    heat = heat_of(stored, [2, 2])
    assert heat is not None and [len(turn) for turn in heat.turns] == [2, 2]
    cells = [cell for turn in heat.turns for cell in turn]
    assert [cell.far for cell in cells] == [0, 2, 4, None]
    assert [cell.rare for cell in cells] == [0, 2, 4, 1]
    assert "-0.5000 (0.607)" in cells[1].title and "trainer - engine -0.1000" in cells[1].title
    assert f"{(0.001 + 0.1 + 1.5) / 3:.4f}" in heat.summary and "1.5000 at most" in heat.summary
    unknown = heat_of({**stored, "engine": None}, [4])
    assert unknown is not None and "not known" in unknown.summary
    alone = heat_of({**stored, "trainer": None}, [4])
    assert alone is not None and "took no part in the update" in alone.summary
    assert heat_of(stored, [3]) is None  # of another completion


def test_a_row_is_told_whole_with_links_that_keep_the_filter(
    client: TestClient, folder: Path, tmp_path: Path
) -> None:
    nine = {"texts": ["to"] * 9, "engine": [-0.1] * 9, "trainer": [-0.4] * 9}
    tokens(folder, 5, [nine, {**nine, "trainer": None}])
    place = {"source": "shapes", "id": "a", "step": "5", "last": "9"}
    reply = client.get("/run/mine/row", params=place)
    assert reply.status_code == 200
    saved = tmp_path / "row.html"
    saved.write_text(reply.text)
    page = Page(saved)
    assert "reward 0.500" in page.text and "advantage -0.300" in page.text
    assert "iou 0.5" in page.text and "weight 1" in page.text and "ended: stop" in page.text
    assert "part by 0.3000 nats on average" in page.text
    assert len(page.with_class("far3")) == 9 + 1  # and one in the legend
    drawn = re.findall(r'class="guess c(\d)".*?<path class="digit" d="([^"]*)"', reply.text)
    assert drawn == [("0", "M1,0V2"), ("1", "M0,0H1V1H0V2H1")]  # 1 and 2
    links = {a["rel"]: html.unescape(a["href"] or "") for t, a in page.tags if a.get("rel")}
    assert "id=b%2Fc&step=5" in links["next"] and links["next"].endswith("last=9")
    following = client.get(links["next"])
    assert following.status_code == 200 and "timed out" in following.text
    others = [
        a["href"] or "" for t, a in page.tags if t == "a" and "step=10" in (a.get("href") or "")
    ]
    assert len(others) == 1 and client.get(html.unescape(others[0])).status_code == 200
    assert "part=evals" in reply.text  # the held-out answer of the same row


def test_turns_and_calls_are_told(client: TestClient, folder: Path) -> None:
    call = {"name": "crop", "arguments": {"bbox_2d": [0, 0, 9, 9]}, "outcome": "refused"}
    call |= {"note": "too small", "seconds": 0.004, "box": None, "image": None}
    segments = [
        {"by": "policy", "text": "let me see", "tokens": 3, "media": [], "calls": [call]},
        {"by": "tool", "text": "no", "tokens": 4, "media": ["red.png"], "calls": []},
        {"by": "policy", "text": "then here", "tokens": 6, "media": [], "calls": []},
    ]
    write_rows(folder, 20, [row("t", [completion(0.5, segments=segments)])])
    line = {"texts": ["x"] * 9, "engine": [-1.0] * 9, "trainer": [-1.0] * 9}
    stored = {"step": 20, "id": "t", "source": "shapes", "completions": [line]}
    files.write_lines(run_folder.tokens_path(folder, 20), [stored])
    reply = client.get("/run/mine/row", params={"source": "shapes", "id": "t", "step": "20"})
    assert "let me see" in reply.text and "too small" in reply.text
    assert "turn 1" in reply.text and "turn 2" in reply.text  # of tokens
    assert reply.text.count('href="#m') >= 2  # its image, and what the tool showed


@pytest.mark.parametrize("address", ["rows", "row", "rows.jsonl", "rows.zip"])
def test_hostile_rows_stay_text_under_a_policy_and_nothing_is_written(
    client: TestClient, folder: Path, address: str
) -> None:
    bad = completion(0.5, [0, 0, 1, 1], text=HOSTILE, thought=HOSTILE, answer=HOSTILE)
    bad["verdicts"] = {HOSTILE: verdict(0.5, note=HOSTILE)}
    name = f"{HOSTILE}\ud800/../..?#"
    hostile = row(name, [bad], source=HOSTILE, question=HOSTILE, prompt=HOSTILE)
    hostile["media"][0]["thumbnail"] = "../../config.json"
    hostile["truth"]["boxes"][0]["label"] = HOSTILE
    hostile["frame"] = {"width": 20, "height": 10, "space": "pixel"}
    write_rows(folder, 30, [hostile])
    line = {"texts": [HOSTILE] * 9, "engine": [-1.0] * 9, "trainer": None}
    stored = {"step": 30, "id": name, "source": HOSTILE, "completions": [line]}
    files.write_lines(run_folder.tokens_path(folder, 30), [stored])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    listed = client.get("/run/mine/rows", params={"first": "30"})
    (link,) = re.findall(r'href="([^"]*/row\?[^"]*)"', listed.text)
    asked = html.unescape(link) if address == "row" else f"/run/mine/{address}?first=30"
    reply = client.get(asked)
    if address == "rows.zip":  # its medium is outside of the run's
        assert reply.status_code == 409 and "has no copy" in reply.text
    else:
        assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    if address in ("row", "rows"):
        assert reply.text.count("<script>") == 1 and "<img src=x" not in reply.text
        assert "&lt;script&gt;alert(1)" in reply.text
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_only_rows_that_are_stored_have_a_page(client: TestClient, folder: Path) -> None:
    good = {"source": "shapes", "id": "a", "step": "5"}
    assert client.get("/run/mine/row", params=good).status_code == 200
    for wrong in (
        {"id": "z"},
        {"step": "7"},
        {"step": "x"},
        {"step": "9" * 30},
        {"part": "evals", "step": "1"},
    ):
        assert client.get("/run/mine/row", params={**good, **wrong}).status_code == 404
    assert client.get("/run/none/row", params=good).status_code == 404
    assert client.get("/run/mine/rows", params={"skip": "x", "first": "-"}).status_code == 200
    refused = TestClient(build_watch_app(WatchedRuns(folder), "secret", ("testserver",)))
    for end in ("rows", "row", "rows.jsonl", "rows.zip"):
        assert refused.get(f"/run/mine/{end}").status_code == 401


def test_the_live_page_links_to_its_rows_and_the_report_to_its_own_cards(
    client: TestClient, folder: Path, tmp_path: Path
) -> None:
    write_rows(folder, 11, [row("b/c", [completion(0.4)])])
    seen = {"seen": json.dumps({"rollouts": ""})}
    part = client.get("/run/mine/changes", params=seen).json()["rollouts"][1]
    (link,) = re.findall(r'href="(/run/mine/row\?[^"]*)"', part)
    assert client.get(html.unescape(link)).status_code == 200
    page = Page(build_report(folder))
    here = [a["href"] for t, a in page.tags if t == "a" and (a.get("href") or "").startswith("#")]
    there = [a["id"] for t, a in page.tags if t == "article" and a.get("id")]
    assert there and len(set(there)) == len(there)
    assert {f"#{name}" for name in there} <= set(here)
