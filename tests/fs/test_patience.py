"""Waiting while something moves."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from volfs.errors import StoreTimeout
from volfs.fs.patience import PatientLock, Progress


async def test_what_moves_is_waited_for(autojump_clock: MockClock) -> None:
    """B3a: as long as there is a sign of life within each patience, however long it takes in all."""
    progress, done = Progress(10), trio.Event()

    async def work() -> None:
        for _ in range(20):
            await trio.sleep(9)
            progress.moved()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await progress.wait(done.wait)
    assert trio.current_time() == pytest.approx(180)


async def test_what_stands_still_is_given_up(autojump_clock: MockClock) -> None:
    """Within two patiences after the last sign of life."""
    progress = Progress(10)
    with pytest.raises(StoreTimeout):
        await progress.wait(trio.sleep_forever)
    assert trio.current_time() == pytest.approx(10)


async def test_none_waits_for_ever(autojump_clock: MockClock) -> None:
    """A store whose calls end by themselves."""
    await Progress(None).wait(lambda: trio.sleep(1e6))
    assert trio.current_time() == pytest.approx(1e6)


async def test_who_waits_for_a_lock_in_vain_hears_of_it(autojump_clock: MockClock) -> None:
    """Its holder waits for the store; the lock is whole afterwards."""
    lock = PatientLock(Progress(10))
    async with trio.open_nursery() as nursery:
        held = trio.Event()

        async def hold() -> None:
            async with lock:
                held.set()
                await trio.sleep(100)

        nursery.start_soon(hold)
        await held.wait()
        with pytest.raises(StoreTimeout):
            async with lock:
                raise AssertionError("two hold it")
    async with lock:
        pass
