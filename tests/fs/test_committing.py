"""Commits where the store may hang: who asked stops waiting, the commit goes on, and others join it.

And the turn of the queue that comes late.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.fs.remote import READER, remote
from volfs.errors import StoreError, StoreTimeout
from volfs.fs import committing
from volfs.fs.committing import Attempt, commit_file
from volfs.fs.patience import Progress

PATIENCE_S = 10.0


class Store:
    """What a commit meets: it waits until it is let, and counts."""

    def __init__(self) -> None:
        self.let = trio.Event()
        self.error: StoreError | None = None
        self.commits: list[bool] = []

    async def commit(self, file: Any, attempt: Attempt) -> None:
        self.commits.append(attempt.durable)
        await self.let.wait()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def a_file(monkeypatch: pytest.MonkeyPatch, store: Store) -> AsyncIterator[Any]:
    """As much of an open file as a commit needs to be waited for."""
    monkeypatch.setattr(committing, "_commit", store.commit)
    async with trio.open_nursery() as nursery:
        volume = SimpleNamespace(
            policy=SimpleNamespace(store_timeout_s=PATIENCE_S), tasks=nursery, errors=0, queue=None
        )
        node = SimpleNamespace(number=7)
        yield SimpleNamespace(volume=volume, node=node, attempt=None, progress=Progress(PATIENCE_S))


async def test_who_asked_stops_waiting_and_the_commit_goes_on(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """B3a: ETIMEDOUT after the patience; who asks again joins the same commit, however often."""
    store = Store()
    async with a_file(monkeypatch, store) as file:
        for _ in range(5):
            with pytest.raises(StoreTimeout):
                await commit_file(file, durable=False)
        assert trio.current_time() == pytest.approx(5 * PATIENCE_S)
        assert store.commits == [False]
        store.let.set()
        await commit_file(file, durable=False)
        assert store.commits == [False]
        assert file.attempt is None


async def test_fsync_does_not_join_less(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    """A commit that need not survive a power cut is no answer to fsync; the other way round it is."""
    store = Store()
    async with a_file(monkeypatch, store) as file:
        for durable in (False, True, False):
            with pytest.raises(StoreTimeout):
                await commit_file(file, durable=durable)
        assert store.commits == [False, True]
        store.let.set()


async def test_all_who_wait_hear_of_the_error(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The store's own, for each of them."""
    store = Store()
    store.error = StoreError("full", errno=28)
    heard: list[int] = []
    async with a_file(monkeypatch, store) as file:

        async def ask() -> None:
            with pytest.raises(StoreError) as raised:
                await commit_file(file, durable=False)
            heard.append(raised.value.errno)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.sleep(1)
            store.let.set()
    assert heard == [28, 28, 28]
    assert store.commits == [False]


async def test_who_wants_it_in_any_case_joins_the_queue(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A commit that is made only if the queue owes it is made in any case once a close waits for it."""
    store = Store()
    async with a_file(monkeypatch, store) as file:
        with pytest.raises(StoreTimeout):
            await commit_file(file, durable=False, if_owed=True)
        assert file.attempt.if_owed
        with pytest.raises(StoreTimeout):
            await commit_file(file, durable=False)
        assert not file.attempt.if_owed
        with pytest.raises(StoreTimeout):
            await commit_file(file, durable=False, if_owed=True)
        assert not file.attempt.if_owed
        assert store.commits == [False]
        store.let.set()


async def test_a_turn_of_the_queue_that_comes_late(tmp_path: Path) -> None:
    """What it was for is committed, and the file emptied since and half written: that is not shown (W6)."""
    async with remote(tmp_path) as mount:
        (mount.root / "f").write_bytes(b"what was acknowledged")
        number, queue = await mount.number("f"), mount.vfs.volume.queue
        handle = (await mount.vfs.open(number, os.O_WRONLY | os.O_TRUNC, READER)).handle
        await mount.vfs.write(handle, 0, b"half of")
        await mount.vfs.files.commit_number(number)
        assert (mount.root / "f").read_bytes() == b"what was acknowledged"
        queue.add(number)
        await mount.vfs.files.commit_number(number)
        assert (mount.root / "f").read_bytes() == b"half of"
        await mount.vfs.flush(handle)
        await mount.vfs.release(handle)
