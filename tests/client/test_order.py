"""The order of an epoch, and who takes what of it: tables and properties of pure functions."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from volfs_client.order import TAILS, Grid, Pass, Tail, permutation

grids = st.builds(lambda world, batch: (world, batch), st.integers(1, 5), st.integers(1, 5))


def rank_steps(this: Pass, workers: int) -> list[list[int]]:
    """The batches of one rank, as a DataLoader takes them from its workers in turn."""
    size = this.grid.batch
    parts = [list(this.places(worker, workers)) for worker in range(workers)]
    batches = [[part[at : at + size] for at in range(0, len(part), size)] for part in parts]
    return [batches[step % workers][step // workers] for step in range(sum(map(len, batches)))]


def steps(total: int, tail: Tail, start: int, world: int, batch: int, workers: int = 1) -> list[list[int]]:
    """What all ranks together take in each step, rank 0 first."""
    ranks = [
        rank_steps(Pass(total, tail, 0, start, Grid(rank, world, batch)), workers) for rank in range(world)
    ]
    assert len({len(each) for each in ranks}) == 1, "unequal steps"
    return [[place for part in parts for place in part] for parts in zip(*ranks, strict=True)]


def test_an_order_is_what_it_was() -> None:
    """C1: The orders are fixed for good: a resumed run, in any Python version, must find its own again."""
    assert list(permutation(10, 0, 0)) == [8, 9, 2, 5, 3, 6, 1, 0, 7, 4]
    assert list(permutation(10, 0, 1)) == [4, 7, 6, 9, 0, 8, 5, 3, 2, 1]
    whole = permutation(20_000, 7, 3)
    assert hashlib.sha256(" ".join(map(str, whole)).encode()).hexdigest()[:16] == "539e2b970e4db907"


@given(st.integers(0, 300), st.integers(), st.integers(0, 10**6))
def test_an_order_has_every_file_once(total: int, seed: int, epoch: int) -> None:
    """C1: It is a permutation, and the same when asked again."""
    order = list(permutation(total, seed, epoch))
    assert sorted(order) == list(range(total))
    assert order == list(permutation(total, seed, epoch))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """C1: No two of some epochs and seeds go in the same order."""
    orders = [
        tuple(permutation(50, seed, epoch)) for seed in (-1, 0, 1, 10, 2**70) for epoch in (0, 1, 10, 11)
    ]
    assert len(set(orders)) == len(orders)


def test_an_order_is_spread() -> None:
    """Each place gets each file about equally often: chi-squared with 81 degrees of freedom, 0.1 % level."""
    counts = [[0] * 10 for _ in range(10)]
    for epoch in range(2000):
        for place, file in enumerate(permutation(10, 5, epoch)):
            counts[place][file] += 1
    assert sum((count - 200) ** 2 / 200 for row in counts for count in row) < 126.1


@given(st.integers(1, 120), st.sampled_from(TAILS), st.integers(0, 120), grids, st.integers(1, 4))
def test_a_pass_has_each_place_once(
    total: int, tail: Tail, start: int, grid: tuple[int, int], workers: int
) -> None:
    """From the start on, in order, whoever takes them; padding comes last and from the epoch's beginning."""
    world, batch = grid
    start = min(start, total)
    taken = [place for step in steps(total, tail, start, world, batch, workers) for place in step]
    left = list(range(start, total))
    if tail == "drop":
        assert taken == left[: len(taken)] and len(left) - len(taken) < world * batch
    else:
        assert taken[: len(left)] == left
        assert taken[len(left) :] == [place % total for place in range(len(taken) - len(left))]
        assert len(taken) - len(left) < world * batch


@given(st.integers(1, 120), st.sampled_from(TAILS), grids, st.data())
def test_padding_is_told(total: int, tail: Tail, grid: tuple[int, int], data: st.DataObject) -> None:
    """C2: The valid places of all ranks and steps are what was consumed."""
    world, batch = grid
    start = data.draw(st.integers(0, total))
    passes = [Pass(total, tail, 0, start, Grid(rank, world, batch)) for rank in range(world)]
    for done in range(passes[0].steps + 1):
        valid = sum(each.valid(step) for each in passes for step in range(done))
        assert start + valid == passes[0].consumed(done)


@given(st.integers(1, 150), grids, grids, st.data())
def test_a_pass_goes_on_in_any_grid(
    total: int, first: tuple[int, int], second: tuple[int, int], data: st.DataObject
) -> None:
    """Left after any number of steps and gone on by others, an epoch has each file once, in one order."""
    whole = Pass(total, "pad", 0, 0, Grid(0, *first))
    done = data.draw(st.integers(0, whole.steps))
    before = [place for step in steps(total, "pad", 0, *first)[:done] for place in step]
    after = [place for step in steps(total, "pad", whole.consumed(done), *second, 3) for place in step]
    consumed = whole.consumed(done)
    assert before[:consumed] + after[: total - consumed] == list(range(total))


@pytest.mark.parametrize(
    ("total", "tail", "start", "width", "count"),
    [
        (10, "pad", 0, 4, 3), (10, "drop", 0, 4, 2), (8, "pad", 0, 4, 2), (3, "pad", 0, 4, 1),
        (3, "drop", 0, 4, 0), (10, "pad", 10, 4, 0), (10, "pad", 9, 4, 1), (10, "drop", 7, 4, 0),
        (1, "pad", 0, 64, 1),
    ],
)  # fmt: skip
def test_how_many_steps(total: int, tail: Tail, start: int, width: int, count: int) -> None:
    """A table of step counts."""
    assert Pass(total, tail, 0, start, Grid(0, 1, width)).steps == count
