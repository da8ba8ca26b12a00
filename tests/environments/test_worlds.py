"""The shipped worlds can be solved, pay for that alone, and Gymnasium's are stepped as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vlmrl.errors import UserError
from vlmrl.interaction.environment import Environment, Frame, Move, Refused, Sample
from vlmrl.parts.environments import board
from vlmrl.parts.environments.frozen_lake import FrozenLake
from vlmrl.parts.environments.grid_world import GridWorld
from vlmrl.parts.environments.gui_world import HEIGHT, LEFT, OPTIONS, ROW, WIDTH, Form, GuiWorld
from vlmrl.parts.environments.gymnasium import Gymnasium
from vlmrl.parts.environments.jigsaw import Jigsaw
from vlmrl.parts.environments.spot_the_difference import SpotTheDifference
from vlmrl.schema import Point, Truth

SAMPLE = Sample("world", "worlds", (), Truth(none=True))
NORM = Frame(1, 1, "norm1")


def do(world: Environment, state: Any, name: str, **arguments: Any) -> Any:
    return world.step(state, Move("", name, arguments, NORM))


def way(world: Any, state: Any, goal: board.Cell, blocked: frozenset[board.Cell]) -> list[str]:
    """Directions from the agent to the goal, by distances from the goal."""
    far = board.reachable(goal, world.size, blocked)
    cell, found = state.agent, []
    while cell != goal:
        near = {d: board.step_to(cell, d) for d in ("up", "down", "left", "right")}
        direction = min(near, key=lambda d: far.get(near[d], 999))
        found.append(direction)
        cell = near[direction]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_board_and_a_lake_can_be_solved(seed: int) -> None:
    grid = GridWorld(max_moves=99)
    state = grid.reset(SAMPLE, seed)
    for direction in way(grid, state, state.goal, state.walls):
        step = do(grid, state, "move", direction=direction)
        state = step.state
    assert (step.reward, step.done) == (1.0, True)
    lake = FrozenLake(max_moves=99)
    ice = lake.reset(SAMPLE, seed)
    for direction in way(lake, ice, (3, 3), ice.holes):
        step = do(lake, ice, "move", direction=direction)
        ice = step.state
    assert (step.reward, step.done) == (1.0, True)


def test_a_hole_ends_the_world_and_pays_nothing() -> None:
    lake = FrozenLake()
    state = replace(lake.reset(SAMPLE, 0), holes=frozenset({(1, 0)}))
    step = do(lake, state, "move", direction="right")
    assert (step.reward, step.done) == (0.0, True)


def test_slippery_ice_goes_where_it_should_in_a_third() -> None:
    lake = FrozenLake(size=9, slippery=True)
    state = replace(lake.reset(SAMPLE, 0), holes=frozenset(), agent=(4, 4))
    ends = [
        do(lake, replace(state, seed=s), "move", direction="up").state.agent for s in range(900)
    ]
    assert {*ends} == {(4, 3), (3, 4), (5, 4)}
    assert ends.count((4, 3)) / 900 == pytest.approx(1 / 3, abs=0.05)


def test_a_jigsaw_is_solved_by_swapping_tiles_into_place() -> None:
    puzzle = Jigsaw(size=3, max_swaps=20)
    state = puzzle.reset(SAMPLE, 1)
    whole = np.asarray(puzzle.observe(replace(state, order=tuple(range(9))))[0])
    assert not np.array_equal(np.asarray(puzzle.observe(state)[0]), whole)
    for place in range(9):
        if state.order[place] != place:
            there = state.order.index(place)
            step = do(puzzle, state, "swap", first=place + 1, second=there + 1)
            state = step.state
    assert (step.reward, step.done, step.metrics["progress"]) == (1.0, True, 1.0)
    with pytest.raises(Refused, match="two different places from 1 to 9"):
        do(puzzle, state, "swap", first=1, second=1)


@pytest.mark.parametrize("seed", range(5))
def test_the_difference_is_where_the_drawings_differ(seed: int) -> None:
    world = SpotTheDifference()
    state = world.reset(SAMPLE, seed)
    both = np.asarray(world.observe(state)[0]).astype(int)
    half = len(both) // 2
    rows, columns = np.nonzero(np.abs(both[: half - 3] - both[half : 2 * half - 3]).sum(-1))
    ys, xs = rows[rows > 2], columns[rows > 2]
    x, y = (xs.min() + xs.max() + 1) / 2 / both.shape[1], (ys.min() + ys.max() + 1) / 2 / len(both)
    assert do(world, state, "point_at", point=[x, y]).reward == 1.0
    assert do(world, state, "point_at", point=[x, y + 0.5]).reward == 1.0
    missed = do(world, state, "point_at", point=[(x + 0.4) % 1, y])
    assert (missed.reward, missed.done) == (0.0, False)
    assert do(world, missed.state, "point_at", point=[x, y]).reward == 0.75


def fill_in(world: GuiWorld, state: Form, place: int) -> Form:
    """Do what the goal asks of one row, as a user would."""

    def click(state: Form, row: int) -> Form:
        found = ((row + 0.5) * ROW - state.top) / HEIGHT
        while not 0 <= found <= 1:
            state = do(world, state, "scroll", direction="down").state
            found = ((row + 0.5) * ROW - state.top) / HEIGHT
        return do(world, state, "click", point=[(LEFT + 10) / WIDTH, found]).state

    row = state.rows[place]
    state = click(state, place)
    if row.kind == "field":
        state = do(world, state, "type", text=row.wanted).state
    elif row.kind == "menu":
        state = click(state, place + 1 + OPTIONS.index(row.wanted))
    return state


@pytest.mark.parametrize(("seed", "rows"), [(0, 4), (1, 4), (2, 4), (3, 8), (4, 8), (5, 8)])
def test_a_form_is_filled_in_by_clicking_typing_and_scrolling(seed: int, rows: int) -> None:
    world = GuiWorld(rows=rows, goals=2, max_moves=50)
    state = world.reset(SAMPLE, seed)
    for place, row in enumerate(state.rows):
        if row.wanted != row.before:
            assert row.label in world.task(state)
            state = fill_in(world, state, place)
    unsaved = state
    while rows * ROW + ROW > state.top + HEIGHT:
        state = do(world, state, "scroll", direction="down").state
    save = [0.7, ((rows + 0.5) * ROW - state.top) / HEIGHT]
    step = do(world, state, "click", point=save)
    assert (step.reward, step.done) == (1.0, True)
    wrong = replace(state, values=tuple(row.before for row in state.rows))
    assert do(world, wrong, "click", point=save).reward == 0.0
    assert np.asarray(world.observe(unsaved)[0]).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_the_button_are_anywhere_where_a_form_has_gaps(seed: int) -> None:
    world = GuiWorld(rows=3, gaps=4, goals=2, max_moves=50)
    state = world.reset(SAMPLE, seed)
    assert len(state.places) == 4 and [*state.places] == sorted({*state.places})
    assert state.places[-1] < 8
    for line in {*range(8)} - {*state.places}:
        top = max(0, (line + 1) * ROW - HEIGHT)
        beside = replace(state, top=top)
        point = [(LEFT + 10) / WIDTH, ((line + 0.5) * ROW - top) / HEIGHT]
        step = do(world, beside, "click", point=point)
        assert not step.done and step.state == replace(beside, moves=1)
    reward = 0.0
    for name, given in world.play(state):
        point = {key: [p.x, p.y] if isinstance(p, Point) else p for key, p in given.items()}
        step = do(world, state, name, **point)
        state, reward = step.state, step.reward
    assert reward == 1.0


def test_nothing_can_be_typed_before_a_field_is_clicked() -> None:
    world = GuiWorld()
    with pytest.raises(Refused, match="no field was clicked"):
        do(world, world.reset(SAMPLE, 0), "type", text="Ada")


# -------------------------------------------------------------------------------------- gymnasium


def test_gymnasium_steps_map_one_to_one() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    plain = gymnasium.make("FrozenLake-v1")
    world = Gymnasium("FrozenLake-v1", names=("left", "down", "right", "up"))
    state, (seen, _) = world.reset(SAMPLE, 4), plain.reset(seed=4)
    assert world.observe(state) == [str(seen)]
    for number in (2, 1, 1, 2, 0):
        step = do(world, state, "act", action=world.names[number])
        seen, reward, ended, cut, _ = plain.step(number)
        assert (step.reward, step.done) == (reward, ended or cut)
        if step.done:
            break
        assert step.parts == [str(seen)]
        state = step.state


def test_a_world_of_gymnasium_that_failed_within_a_step_is_played_again() -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Fails(gymnasium.Wrapper):  # type: ignore[misc, name-defined]
        """Fails once, after the step was done."""

        failed = False

        def step(self, action: int) -> Any:
            found = self.env.step(action)
            if not Fails.failed:
                Fails.failed = True
                raise ConnectionError("gone")
            return found

    sure = {"is_slippery": False}
    gymnasium.register("Fails-v0", lambda **options: Fails(gymnasium.make("FrozenLake-v1", **sure)))
    world, plain = Gymnasium("Fails-v0"), Gymnasium("FrozenLake-v1", options=sure)
    begin = world.reset(SAMPLE, 3)
    with pytest.raises(ConnectionError, match="gone"):
        world.act(begin, "2")
    assert world.act(begin, "2").parts == plain.act(begin, "2").parts


def test_gymnasium_mistakes_are_the_users() -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(UserError, match=r"gymnasium 'NoSuchGame-v0'"):
        Gymnasium("NoSuchGame-v0").task(Gymnasium("NoSuchGame-v0").reset(SAMPLE, 0))
    with pytest.raises(UserError, match="expected discrete actions"):
        Gymnasium("Pendulum-v1").task(None)  # type: ignore[arg-type]


SMALL = {
    "rows": 3,
    "goals": 1,
    "kinds": ("tick", "field"),
    "width": 112,
    "height": 112,
    "row_px": 28,
}


@pytest.mark.parametrize("options", [{}, {"rows": 8, "goals": 4, "max_moves": 60}, SMALL])
def test_the_script_of_a_form_solves_it(options: dict[str, Any]) -> None:
    form = GuiWorld(**options)
    for seed in range(10):
        state = form.reset(SAMPLE, seed)
        assert form.observe(state)[0].size == (form.width, form.height)
        for name, given in form.play(state):
            plain = {k: [v.x, v.y] if isinstance(v, Point) else v for k, v in given.items()}
            step = do(form, state, name, **plain)
            state = step.state
        assert (step.reward, step.done) == (1.0, True)
