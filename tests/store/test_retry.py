"""Deadlines, retries, and the state of being away: with a store that fails, hangs and comes back by plan."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from tests.contracts.exchanges import ExchangeContract
from tests.contracts.store import NOBODY, StoreContract, content, publish, staged_file
from tests.store.faults import FaultStore
from volfs.errors import NotFound, StoreError, StoreTimeout
from volfs.store.base import Reader
from volfs.store.directory import DirectoryStore
from volfs.store.retry import RetryingReader, RetryingStore

DEADLINE_S = 30.0


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultStore]:
    """A store with planned faults; no threads, so that time is the mock clock's alone."""
    root = tmp_path / "backing"
    root.mkdir()
    beneath = DirectoryStore(root, local=True)
    beneath.open_staging("test")
    yield FaultStore(beneath)
    beneath.remove_staging()
    beneath.close()


@pytest.fixture
def store(faulty: FaultStore) -> RetryingStore:
    """What a daemon puts around a store that is not local."""
    return RetryingStore(faulty, DEADLINE_S)


class TestContract(StoreContract, ExchangeContract):
    """Every promise of a store, through the wrapper."""


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET])
async def test_an_error_that_passes_is_not_seen(
    store: RetryingStore, faulty: FaultStore, tmp_path: Path, autojump_clock: MockClock, number: int
) -> None:
    """Calls that change nothing are made up to three times."""
    (tmp_path / "backing/f").write_bytes(b"bytes")
    for operation in ("stat", "open", "reader.read"):
        faulty.faults.fail(operation, number, times=2)
    assert (await store.stat(b"f")).size == 5
    assert await content(store, b"f") == b"bytes"
    assert faulty.faults.met == {"stat": 2, "open": 2, "reader.read": 2}


async def test_an_error_that_stays_is_told(
    store: RetryingStore, faulty: FaultStore, autojump_clock: MockClock
) -> None:
    """With its own errno, after three tries."""
    faulty.faults.fail("stat", errno.EIO, times=None)
    with pytest.raises(StoreError) as raised:
        await store.stat(b"f")
    assert raised.value.errno == errno.EIO
    assert faulty.faults.calls["stat"] == 3


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT])
async def test_an_answer_is_not_asked_for_again(
    store: RetryingStore, faulty: FaultStore, number: int
) -> None:
    """What the store says of the file is true the first time."""
    faulty.faults.fail("stat", number, times=None)
    with pytest.raises(StoreError) as raised:
        await store.stat(b"f")
    assert raised.value.errno == number
    assert faulty.faults.calls["stat"] == 1


async def test_a_change_is_made_once(
    store: RetryingStore, faulty: FaultStore, autojump_clock: MockClock
) -> None:
    """It may have been made although its answer was lost: a second mkdir would say that the name is taken."""
    faulty.faults.lose("mkdir", errno.EIO)
    with pytest.raises(StoreError) as raised:
        await store.mkdir(b"d", 0o755, NOBODY)
    assert raised.value.errno == errno.EIO
    assert (await store.stat(b"d")).is_dir
    assert faulty.faults.calls["mkdir"] == 1


async def test_a_call_that_hangs_ends_at_the_deadline(
    store: RetryingStore, faulty: FaultStore, autojump_clock: MockClock
) -> None:
    """ETIMEDOUT; others then fail at once, but for one now and then; the first answer ends it."""
    faulty.faults.hang("stat", times=None)
    began = trio.current_time()
    with pytest.raises(StoreTimeout):
        await store.stat(b"f")
    assert trio.current_time() - began == pytest.approx(DEADLINE_S)
    asked = faulty.faults.calls["stat"]
    for _ in range(100):
        with pytest.raises(StoreTimeout):
            await store.stat(b"f")
    assert trio.current_time() - began == pytest.approx(DEADLINE_S)
    assert faulty.faults.calls["stat"] == asked

    await trio.sleep(1.1)
    with pytest.raises(StoreTimeout):
        await store.stat(b"f")
    assert trio.current_time() - began < DEADLINE_S + 4
    assert faulty.faults.calls["stat"] == asked + 1

    faulty.faults.release()
    await trio.sleep(1.1)
    with pytest.raises(NotFound):
        await store.stat(b"f")
    assert not store.deadlines.away


async def test_one_file_that_hangs_is_not_the_store(
    store: RetryingStore, faulty: FaultStore, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Others were answered meanwhile: nobody else is refused."""
    (tmp_path / "backing/f").write_bytes(b"bytes")
    faulty.faults.hang("stat", times=None, where=lambda path: path == b"bad")
    async with trio.open_nursery() as nursery:

        async def bad() -> None:
            with pytest.raises(StoreTimeout):
                await store.stat(b"bad")

        nursery.start_soon(bad)
        await trio.sleep(DEADLINE_S / 2)
        await store.stat(b"f")
    assert not store.deadlines.away
    assert (await store.stat(b"f")).size == 5


@pytest.mark.parametrize("how", ["hang", "fail"])
async def test_root_and_capacity_are_answered_from_memory(
    store: RetryingStore, faulty: FaultStore, autojump_clock: MockClock, how: str
) -> None:
    """B3: `df` and `stat` of the mount answer within a second, whatever the store does."""
    root, capacity = await store.stat(b""), await store.capacity()
    for operation in ("stat", "capacity"):
        if how == "hang":
            faulty.faults.hang(operation, times=None)
        else:
            faulty.faults.fail(operation, errno.EIO, times=None)
    began = trio.current_time()
    assert await store.stat(b"") == root
    assert await store.capacity() == capacity
    assert trio.current_time() - began < 2.0


async def test_a_commit_takes_as_long_as_it_takes(
    store: RetryingStore, faulty: FaultStore, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Bytes need their time; who waits for a commit has a patience of its own."""
    faulty.faults.delay("upload", 10 * DEADLINE_S)
    await publish(store, tmp_path, b"f", b"bytes")
    assert await content(store, b"f") == b"bytes"


async def test_a_commit_shows_that_the_store_is_back(
    store: RetryingStore, faulty: FaultStore, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """B3: nobody is refused any more once bytes have arrived."""
    faulty.faults.hang("stat")
    with pytest.raises(StoreTimeout):
        await store.stat(b"f")
    assert store.deadlines.away
    fd = staged_file(tmp_path, b"bytes")
    upload = await store.upload(fd, None, durable=False, observe=None)
    assert not store.deadlines.away
    await upload.discard()
    os.close(fd)


class _SlowCopy:
    """A reader of which only one call matters, without a thread that the mock clock would not wait for."""

    async def copy_to(self, target: int, size: int) -> None:
        await trio.sleep(2 * DEADLINE_S)


async def test_a_large_copy_has_more_time(store: RetryingStore, autojump_clock: MockClock) -> None:
    """A GB may need longer than a byte, but not for ever."""
    reader = RetryingReader(cast(Reader, _SlowCopy()), store.deadlines)
    await reader.copy_to(-1, 1 << 30)
    with pytest.raises(StoreTimeout):
        await reader.copy_to(-1, 5)
