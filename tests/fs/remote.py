"""A file system over a directory that is treated as a remote store, in one process and without a kernel."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio
import trio.testing

from tests.notifiers import Deaf
from tests.store.fault_plan import Call
from tests.store.faults import Faults, FaultStore
from volfs.cache.fill import Cache
from volfs.commit.journal import Journal
from volfs.commit.queue import CommitQueue
from volfs.commit.staging import Staging
from volfs.fs.tree import ROOT, Tree
from volfs.fs.vfs import Caller, Entry, Vfs
from volfs.fs.volume import Policy, Volume
from volfs.store.directory import DirectoryStore

__all__ = ["READER", "Late", "Remote", "remote", "until"]

READER = Caller(0, 0, 1)

T = TypeVar("T")


class Late:
    """A fault: the call is made at once, and answered when it is let."""

    def __init__(self) -> None:
        self.made, self.let = trio.Event(), trio.Event()

    async def around(self, call: Call[T]) -> T:
        answer = await call.whole()
        self.made.set()
        await self.let.wait()
        return answer


async def until(condition: Callable[[], object]) -> None:
    """Wait for threads, bounded."""
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.001)


@dataclass
class Remote:
    """The file system, its store's directory, and what a kernel would do with it."""

    vfs: Vfs
    root: Path
    store: DirectoryStore
    faults: Faults

    @property
    def cache(self) -> Cache:
        assert self.vfs.volume.cache is not None
        return self.vfs.volume.cache

    @property
    def held_bytes(self) -> int:
        """Memory of the cache that is taken."""
        return self.cache._traffic.in_flight

    def calls(self) -> dict[str, int]:
        """Calls to the store since the last time, without those that make listings."""
        counts = {name: count for name, count in self.store.requests.items() if count and "sc" not in name}
        self.store.requests.clear()
        return counts

    def make(self, directory: str, count: int, size: int = 1000) -> dict[str, bytes]:
        """Files in the store, whose names, numbers and place in the listing have nothing in common."""
        (self.root / directory).mkdir(exist_ok=True)
        files = {}
        for i in range(count):
            name = f"{i * 7919 % 10007:05d}"
            files[name] = bytes([i % 251]) * (size + i)
            (self.root / directory / name).write_bytes(files[name])
        return files

    async def number(self, path: str) -> int:
        """As the kernel resolves a path."""
        number = ROOT
        for name in path.split("/") if path else ():
            number = (await self.vfs.lookup(number, os.fsencode(name), READER)).number
        return number

    async def list(self, directory: str) -> list[tuple[str, int]]:
        """Names and inode numbers in the order of the listing."""
        handle = await self.vfs.opendir(await self.number(directory))
        found: list[tuple[str, int]] = []

        def emit(name: bytes, entry: Entry, after: int) -> bool:
            found.append((os.fsdecode(name), entry.number))
            return True

        try:
            await self.vfs.readdir(handle, 0, emit)
        finally:
            await self.vfs.releasedir(handle)
        return found

    async def read(self, path: str) -> bytes:
        """All bytes, by an open of its own."""
        handle = (await self.vfs.open(await self.number(path), os.O_RDONLY, READER)).handle
        try:
            return bytes(await self.vfs.read(handle, 0, 1 << 20))
        finally:
            await self.vfs.flush(handle)
            await self.vfs.release(handle)


@asynccontextmanager
async def remote(
    tmp_path: Path, *, freshness_s: float = 1000.0, memory_bytes: int = 64 << 20
) -> AsyncIterator[Remote]:
    """At the end no memory of the cache may be taken that nobody holds."""
    root = tmp_path / "backing"
    root.mkdir()
    directory = DirectoryStore(root, local=False)
    directory.granularity_ns = 0  # what a test writes is old at once
    faults = Faults()
    store = FaultStore(directory, faults)
    journal = Journal(tmp_path / "journal.db")
    (tmp_path / "staging").mkdir()
    (tmp_path / "cache").mkdir()
    staging = Staging(os.open(tmp_path / "staging", os.O_RDONLY | os.O_DIRECTORY), in_store=False)
    directory.open_staging("test")
    cache = Cache.open(tmp_path / "cache", 1 << 30, memory_bytes)
    vfs: Vfs

    async def commit(number: int) -> None:
        await vfs.files.commit_number(number)

    volume = Volume(
        store=store,
        tree=Tree(await store.stat(b""), lambda node: None, remembers=4096),
        journal=journal,
        queue=CommitQueue(commit),
        policy=Policy(
            commit_at_close=True,
            commit_interval_s=5,
            freshness_s=freshness_s,
            poll_interval_s=5,
            read_only=False,
            store_timeout_s=10,
            stale_if_error_s=0,
            durable_close=False,
            own_files=False,
        ),
        notifier=Deaf(),
        staging=staging,
        staging_path=tmp_path / "staging",
        cache=cache,
    )
    vfs = Vfs(volume, dict)
    async with trio.open_nursery() as nursery:
        volume.tasks = nursery
        await nursery.start(cache.run)
        nursery.start_soon(vfs.siblings.run)
        await trio.testing.wait_all_tasks_blocked()
        mount = Remote(vfs, root, directory, faults)
        mount.calls()
        yield mount
        await until(lambda: not vfs.siblings._fetches)
        cache.wholes.clear()
        await until(lambda: not mount.held_bytes)
        nursery.cancel_scope.cancel()
    assert journal.entries() == []
    journal.close()
    cache.close()
    directory.remove_staging()
    directory.close()
