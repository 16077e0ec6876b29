"""The queue of commits: order, back-off, one bad file, hurry. Time is trio's mock clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from volfs.commit.queue import AT_ONCE, CommitQueue
from volfs.errors import StoreError


class Commits:
    """Records attempts; numbers in `bad` fail."""

    def __init__(self) -> None:
        self.tried: list[int] = []
        self.bad: set[int] = set()

    async def attempt(self, number: int) -> None:
        """One attempt."""
        self.tried.append(number)
        if number in self.bad:
            raise StoreError("no", errno=13)


@pytest.fixture
def commits() -> Commits:
    """What the queue calls."""
    return Commits()


@pytest.fixture
async def queue(
    commits: Commits, nursery: trio.Nursery, autojump_clock: MockClock
) -> AsyncIterator[CommitQueue]:
    """A running queue."""
    made = CommitQueue(commits.attempt)
    nursery.start_soon(made.run)
    yield made
    nursery.cancel_scope.cancel()


async def test_oldest_first_and_each_once(
    queue: CommitQueue, commits: Commits, autojump_clock: MockClock
) -> None:
    """The order of arrival, and no second commit for a second add."""
    for number in (3, 1, 2, 3):
        queue.add(number)
    assert len(queue) == 3
    await queue.wait_empty()
    assert commits.tried == [3, 1, 2]
    assert queue.oldest_age_s is None


async def test_a_bad_file_waits_alone(
    queue: CommitQueue, commits: Commits, autojump_clock: MockClock
) -> None:
    """Five hundred others go out at once while one fails; it is tried again until it heals."""
    commits.bad = {0}
    for number in range(500):
        queue.add(number)
    await wait_all_tasks_blocked()
    assert len(queue) == 1
    assert 0 in queue
    await trio.sleep(100)
    tries = commits.tried.count(0)
    assert 4 <= tries <= 20  # 0.5, 1, 2, 4 ... 30 s apart, each at least halved by the jitter
    assert queue.last_error == "no"
    assert (queue.oldest_age_s or 0) >= 100
    commits.bad = set()
    await queue.wait_empty()


async def test_drain_makes_all_due(queue: CommitQueue, commits: Commits, autojump_clock: MockClock) -> None:
    """An unmount does not wait for a back-off."""
    commits.bad = {7}
    queue.add(7)
    await trio.sleep(60)
    commits.bad = set()
    start = trio.current_time()
    await queue.drain()
    assert trio.current_time() - start < 0.1
    assert len(queue) == 0


async def test_drain_does_not_wait_for_what_cannot_be(
    queue: CommitQueue, commits: Commits, autojump_clock: MockClock
) -> None:
    """Each file is tried once more, not until a deadline."""
    commits.bad = {7}
    queue.add(7)
    queue.add(8)
    await trio.sleep(60)
    start = trio.current_time()
    tries = commits.tried.count(7)
    await queue.drain()
    assert trio.current_time() - start < 0.1
    assert commits.tried.count(7) == tries + 1
    assert len(queue) == 1


async def test_a_removed_file_is_not_tried_again(
    queue: CommitQueue, commits: Commits, autojump_clock: MockClock
) -> None:
    """Unlinked, or committed by a close."""
    commits.bad = {7}
    queue.add(7)
    await wait_all_tasks_blocked()
    queue.remove(7)
    await queue.wait_empty()
    await trio.sleep(60)
    assert commits.tried == [7]


async def test_an_unexpected_exception_costs_one_try(
    queue: CommitQueue, commits: Commits, autojump_clock: MockClock
) -> None:
    """A bug in one commit ends neither the queue nor the others' commits."""

    async def attempt(number: int) -> None:
        commits.tried.append(number)
        if len(commits.tried) == 1:
            raise KeyError("bug")

    queue._attempt = attempt
    queue.add(1)
    queue.add(2)
    await queue.wait_empty()
    assert sorted(commits.tried) == [1, 1, 2]


class Held:
    """Attempts that last until they are let go, and what was owed when they ended."""

    def __init__(self) -> None:
        self.tried: list[int] = []
        self.owed: list[bool] = []
        self.let = trio.Event()
        self.queue = CommitQueue(self.attempt)

    async def attempt(self, number: int) -> None:
        """One attempt."""
        self.tried.append(number)
        await self.let.wait()
        self.owed.append(self.queue.owes(number))


async def test_what_was_settled_while_it_waited_for_a_place_is_not_tried(nursery: trio.Nursery) -> None:
    """It was committed elsewhere, and the file may hold something else by now."""
    held = Held()
    nursery.start_soon(held.queue.run)
    for number in range(AT_ONCE + 1):
        held.queue.add(number)
    await wait_all_tasks_blocked()
    held.queue.remove(AT_ONCE)
    assert not held.queue.owes(AT_ONCE)
    held.let.set()
    await held.queue.wait_empty()
    assert sorted(held.tried) == list(range(AT_ONCE))
    assert all(held.owed)
    nursery.cancel_scope.cancel()


async def test_what_is_settled_while_it_is_tried_is_owed_no_more(nursery: trio.Nursery) -> None:
    """The attempt is told so, and ends it."""
    held = Held()
    nursery.start_soon(held.queue.run)
    held.queue.add(1)
    await wait_all_tasks_blocked()
    held.queue.remove(1)
    held.let.set()
    await held.queue.wait_empty()
    assert (held.tried, held.owed) == ([1], [False])
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("settled", [False, True])
async def test_what_is_added_while_it_is_tried_is_tried_again(nursery: trio.Nursery, settled: bool) -> None:
    """The attempt may have begun too early for it."""
    held = Held()
    nursery.start_soon(held.queue.run)
    held.queue.add(1)
    await wait_all_tasks_blocked()
    if settled:
        held.queue.remove(1)
    held.queue.add(1)
    held.let.set()
    await held.queue.wait_empty()
    assert (held.tried, held.owed) == ([1, 1], [True, True])
    nursery.cancel_scope.cancel()
