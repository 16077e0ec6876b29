"""Threads that can be left behind: nothing that they hold is lost, and nothing waits for them."""

from __future__ import annotations

import threading
import time

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from volfs.errors import StoreTimeout
from volfs.store import threads
from volfs.store.threads import StoreThreads


class Hanging:
    """A call that returns when it is let."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let = threading.Event()

    def __call__(self, answer: str) -> str:
        self.began.set()
        assert self.let.wait(10)
        return answer


async def leave(pool: StoreThreads, call: Hanging, dropped: list[str], ended: list[bool]) -> None:
    """Begin the call and leave it."""
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await pool.run(call, "answer", drop=dropped.append, ended=lambda: ended.append(True))

        nursery.start_soon(run)
        await trio.to_thread.run_sync(call.began.wait)
        nursery.cancel_scope.cancel()


async def until(condition: object) -> None:
    """Wait, bounded, for something that a thread hands to the trio thread."""
    assert callable(condition)
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.001)


async def test_an_answer_and_an_error_come_back() -> None:
    """As from any thread; `ended` is told in both cases, `drop` in none."""
    pool, ended, dropped = StoreThreads(), [], []
    assert await pool.run(str.upper, "x", drop=dropped.append, ended=lambda: ended.append(1)) == "X"
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0, ended=lambda: ended.append(2))
    assert (ended, dropped, pool.left) == ([1, 2], [], 0)


async def test_a_call_that_is_left_ends_when_it_returns() -> None:
    """Its result is thrown away, and what it used is let go, then and not before."""
    pool, call = StoreThreads(), Hanging()
    dropped: list[str] = []
    ended: list[bool] = []
    await leave(pool, call, dropped, ended)
    assert (pool.left, dropped, ended) == (1, [], [])
    call.let.set()
    await until(lambda: pool.left == 0)
    assert (dropped, ended) == (["answer"], [True])


async def test_others_go_on_beside_calls_that_hang() -> None:
    """A call that is left gives its place back: more of them than places take nothing from others."""
    pool = StoreThreads()
    calls = [Hanging() for _ in range(threads._AT_ONCE + 3)]
    for call in calls:
        await leave(pool, call, [], [])
    assert pool.left == len(calls)
    assert await pool.run(str.upper, "x") == "X"
    for call in calls:
        call.let.set()
    await until(lambda: pool.left == 0)


async def test_calls_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is dead for good takes so many threads and no more; each that returns is free again."""
    monkeypatch.setattr(threads, "_MOST_LEFT", 2)
    pool = StoreThreads()
    calls = [Hanging() for _ in range(2)]
    for call in calls:
        await leave(pool, call, [], [])
    ended: list[bool] = []
    with pytest.raises(StoreTimeout):
        await pool.run(str.upper, "x", ended=lambda: ended.append(True))
    assert ended == [True]
    calls[0].let.set()
    await until(lambda: pool.left == 1)
    assert await pool.run(str.upper, "x") == "X"
    calls[1].let.set()
    await until(lambda: pool.left == 0)


async def test_who_is_cancelled_before_a_thread_was_free_used_nothing() -> None:
    """The call is never made, and what it would have used is let go at once."""
    pool = StoreThreads()
    hanging = [Hanging() for _ in range(threads._AT_ONCE)]
    made: list[str] = []
    ended: list[bool] = []
    async with trio.open_nursery() as nursery:
        for call in hanging:
            nursery.start_soon(pool.run, call, "answer")
        await trio.to_thread.run_sync(hanging[-1].began.wait)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as waiting:

                async def late() -> None:
                    await pool.run(made.append, "made", ended=lambda: ended.append(True))

                waiting.start_soon(late)
                await wait_all_tasks_blocked()
                scope.cancel()
        assert (made, ended, pool.left) == ([], [True], 0)
        for call in hanging:
            call.let.set()


async def test_calls_that_are_left_as_they_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a call is left, its place is given back once: the bound on threads holds for ever."""
    monkeypatch.setattr(threads, "_AT_ONCE", 4)
    pool = StoreThreads()
    at_once: list[int] = []
    running = 0
    mutex = threading.Lock()

    def work(pause: float) -> None:
        nonlocal running
        with mutex:
            running += 1
            at_once.append(running)
        time.sleep(pause)
        with mutex:
            running -= 1

    for i in range(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.run, work, 0.0001 * (i % 5))
            await trio.sleep(0.0001 * (i % 7))
            nursery.cancel_scope.cancel()
    await until(lambda: pool.left == 0 and not pool._active)
    at_once.clear()
    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(pool.run, work, 0.002)
    assert max(at_once) == 4
    await until(lambda: not pool._active)
