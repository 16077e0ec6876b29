"""The shared lock: many or one, nobody overtakes, a cancelled asker bars nobody."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from volfs.errors import StoreTimeout
from volfs.fs.locks import SharedLock


async def test_sharers_together_and_alone_by_itself(nursery: trio.Nursery) -> None:
    """Two share; who wants it alone waits for both, and a later sharer waits for him."""
    lock = SharedLock()
    order: list[str] = []
    gates = {name: trio.Event() for name in ("a", "b", "alone")}

    async def share(name: str) -> None:
        async with lock.shared():
            order.append(name)
            if name in gates:
                await gates[name].wait()

    async def hold() -> None:
        async with lock.alone():
            order.append("alone")
            await gates["alone"].wait()

    for task in ("a", "b"):
        nursery.start_soon(share, task)
        await wait_all_tasks_blocked()
    nursery.start_soon(hold)
    await wait_all_tasks_blocked()
    nursery.start_soon(share, "late")
    await wait_all_tasks_blocked()
    assert order == ["a", "b"]
    gates["a"].set()
    await wait_all_tasks_blocked()
    assert order == ["a", "b"]
    gates["b"].set()
    await wait_all_tasks_blocked()
    assert order == ["a", "b", "alone"]
    gates["alone"].set()
    await wait_all_tasks_blocked()
    assert order == ["a", "b", "alone", "late"]


async def test_a_cancelled_asker_bars_nobody(nursery: trio.Nursery) -> None:
    """Sharers that stood behind it go on."""
    lock = SharedLock()
    done = trio.Event()

    async def late() -> None:
        async with lock.shared():
            done.set()

    async with lock.shared():
        with trio.CancelScope() as scope:

            async def cancel() -> None:
                await wait_all_tasks_blocked()
                nursery.start_soon(late)
                await wait_all_tasks_blocked()
                scope.cancel()

            nursery.start_soon(cancel)
            async with lock.alone():
                raise AssertionError("it is shared")
        with trio.fail_after(5):
            await done.wait()


@pytest.mark.parametrize("wanted", ["shared", "alone"])
async def test_who_waits_in_vain_hears_of_it(autojump_clock: MockClock, wanted: str) -> None:
    """B3: a holder that waits for the store holds up others for the patience, and no longer."""
    lock = SharedLock(patience_s=10)
    async with trio.open_nursery() as nursery:
        held, done = trio.Event(), trio.Event()

        async def hold() -> None:
            async with lock.alone():
                held.set()
                await done.wait()

        nursery.start_soon(hold)
        await held.wait()
        with pytest.raises(StoreTimeout):
            async with getattr(lock, wanted)():
                raise AssertionError("two hold it")
        done.set()
    assert trio.current_time() == pytest.approx(10)
    async with lock.shared(), lock.shared():
        pass
